"""Runs that are killed at every file operation and at any moment: none is lost, and no bit is another."""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from tests.reliability.forks import End, Tally, in_child, spread
from tests.reliability.trace import Event, Tracer, aims
from tests.system.runs import assert_same_checkpoint, read, rows, without_clock

LONG, SHORT = 768, 512
"""Steps of a whole run, and of one that is then extended."""
STAGES = ("fresh", "resumed", "extended", "finished")
IN_THE_MIDDLE = "rename:run/checkpoint/checkpoint.safetensors#2"
"""Where runs are stopped that are then resumed."""
SECONDS = 0.1
"""Between checkpoints at most, so that a short run has some."""
MOMENTS = ("random moment", "file operation")
KILLED_AGAIN = 0.3
"""Share of killed runs whose continuation is killed too."""

_SMALL = {"encoder": "strided", "channels": [4, 4, 4], "dense_size": 8, "hidden_size": 16}
_PLAIN = {"distill": {"enabled": False, "matching": False}}
_DISTILL = {"distill": {"rollouts_per_phase": 2, "num_epochs": 1, "batch_size": 64}}
_PPO = {"ppo": {"rollout_length": 32, "num_epochs": 1, "num_minibatches": 2}}
_VALUES = {
    "trainer": "qrdqn",
    "qrdqn": {
        "target_update": 128, "replay_size": 400, "learning_starts": 200, "num_quantiles": 5, "batch_size": 8,
        "replay_frequency": 16, "epsilon_steps": 500,
    },
}  # fmt: skip
# Short episodes, so that a phase has whole ones to distil.
_CRAFTER = {"env": {"num_envs": 4, "threads": 1, "options": ["length=60"]}}
_MINIGRID = {
    "env": {
        "name": "minigrid", "num_envs": 4, "threads": 1, "unlock_threshold": 0.5,
        "options": ["depth=1", "max_steps=30"],
    },
}  # fmt: skip
METHODS: dict[str, dict[str, Any]] = {
    "ppo": {**_CRAFTER, **_PPO, **_PLAIN, "model": {**_SMALL, "memory": False}},
    "ad": {**_CRAFTER, **_PPO, **_DISTILL, "model": _SMALL, "snapshots": 2},
    "qrdqn": {**_CRAFTER, **_VALUES, **_PLAIN, "model": {**_SMALL, "memory": False, "normalize_value": False}},
    "qrdqn-ad": {
        **_CRAFTER, **_VALUES, "distill": {"num_epochs": 1, "batch_size": 64},
        "model": {**_SMALL, "normalize_value": False},
    },
    "minigrid": {**_MINIGRID, **_PPO, **_DISTILL, "model": _SMALL},
    "ad-gru": {
        **_CRAFTER, **_DISTILL, "ppo": {**_PPO["ppo"], "chunk_length": 8, "burn_in": 2},
        "model": {**_SMALL, "core": "gru", "core_size": 8},
    },
}  # fmt: skip


class Job(NamedTuple):
    """One run to be killed; its text is its id."""

    method: str
    stage: str
    seed: int
    aim: str

    def __str__(self) -> str:
        return f"{self.method}.{self.stage}.{self.seed}@{self.aim}"

    @classmethod
    def read(cls, text: str) -> Job:
        where, _, aim = text.partition("@")
        method, stage, seed = where.split(".")
        return cls(method, stage, int(seed), aim)


class Scenario(NamedTuple):
    """A stage of a run: what is in its folder before, and what happens there when nobody kills it."""

    events: list[Event]
    seconds: float


class Bench:
    """Prepared folders of all methods, and the runs made from them.

    Args:
        folder: room for all that.
        sabotage: called in every process before its run, to break something on purpose.
    """

    def __init__(self, folder: Path, sabotage: Callable[[], None] = lambda: None) -> None:
        self.folder = folder
        self._sabotage = sabotage
        self.scenarios: dict[tuple[str, str], Scenario] = {}

    def prepare(self, places: Iterable[tuple[str, str]], workers: int = 2) -> None:
        """Train each method without interruption, and what its stages begin with; trace every stage."""
        wanted: dict[str, list[str]] = {}
        for method, stage in places:
            wanted.setdefault(method, []).append(stage)
        for traced in spread(lambda item: self._prepare(*item), list(wanted.items()), workers):
            for method, stage, events, seconds in traced:
                self.scenarios[method, stage] = Scenario([Event(*event) for event in events], seconds)

    def _prepare(self, method: str, stages: list[str]) -> list[tuple[str, str, list[Event], float]]:
        found = [(method, "fresh", *self._traced(method, self._root(f"{method}-fresh"), LONG))]
        reference = self.reference(method)
        phases = [row for row in rows(reference / "metrics.jsonl") if row["kind"] == "distill"]
        updates = sum(row["prediction_updates"] for row in phases)
        assert bool(updates) == METHODS[method]["distill"].get("enabled", True), f"{method}: {updates} updates"
        for stage in stages:
            if stage == "fresh":
                continue
            self._begin(method, stage)
            root = self._root(f"{method}-{stage}", self.folder / f"{method}-at-{stage}")
            found.append((method, stage, *self._traced(method, root, LONG)))
            wrong = compare(root / "run", reference, stage)
            assert not wrong, f"{method}, {stage}, without a kill: {wrong}"
        return found if "fresh" in stages else found[1:]

    def _begin(self, method: str, stage: str) -> None:
        """Make the folder a stage begins with."""
        name = f"{method}-at-{stage}"
        if stage == "finished":
            self._root(name, self.folder / f"{method}-fresh")
            return
        root, steps = self._root(name), SHORT if stage == "extended" else LONG
        # A complete run of QR-DQN has given up its replay: one that is under way is extended.
        whole = stage == "extended" and METHODS[method].get("trainer") != "qrdqn"
        end = self.attempt(method, root, None if whole else IN_THE_MIDDLE, steps=steps)
        assert end.killed or (whole and end.code == 0), f"{method}, {stage}: {end.output}"

    def _traced(self, method: str, root: Path, steps: int) -> tuple[list[Event], float]:
        notes = root / "events.json"
        end = self.attempt(method, root, notes=notes, steps=steps)
        assert end.code == 0, f"{method}: {end.output}"
        events = [Event(*event) for event in json.loads(notes.read_text())]
        notes.unlink()
        return events, end.seconds

    def reference(self, method: str) -> Path:
        return self.folder / f"{method}-fresh" / "run"

    def _root(self, name: str, template: Path | None = None) -> Path:
        """A folder that holds a run and the record of runs under way."""
        root = self.folder / name
        shutil.rmtree(root, ignore_errors=True)
        if template is None:
            (root / "tmp").mkdir(parents=True)
        else:
            shutil.copytree(template, root)
        return root

    def attempt(
        self,
        method: str,
        root: Path,
        aim: str | None = None,
        *,
        kill_after: float | None = None,
        notes: Path | None = None,
        steps: int = LONG,
    ) -> End:
        """Call the run once, in a process of its own."""

        def work() -> int:
            import achieve
            from achieve.config import from_dict
            from achieve.errors import AchieveError

            tempfile.tempdir = str(root / "tmp")
            tracer = Tracer(root, aim)
            if aim is not None or notes is not None:
                tracer.install()
            self._sabotage()
            settings = {**METHODS[method], "preset": "tiny", "device": "cpu", "torch_threads": 1}
            length = {"total_steps": steps, "score_steps": LONG}
            config = from_dict({**settings, **length, "checkpoint_seconds": SECONDS})
            try:
                achieve.train(config, root / "run", quiet=True)
            except AchieveError as error:
                print(f"refused: {error}")
                return 2
            if notes is not None:
                notes.write_text(json.dumps(list(tracer.events)))
            return 0

        return in_child(work, root.with_name(f"{root.name}.log"), kill_after)

    def plan(self, count: int, seed: int) -> list[Job]:
        """Every aim of every stage once, then random ones: `count` in all, at least a quarter of it at random.

        Of many more aims than `count`, some of each stage are taken.
        """
        rng = random.Random(seed)
        places = list(self.scenarios)
        everywhere = {key: aims(self.scenarios[key].events) for key in places}
        if sum(map(len, everywhere.values())) > 2 * count:
            share = max(1, count // 2 // len(places))
            everywhere = {key: rng.sample(there, min(share, len(there))) for key, there in everywhere.items()}
        jobs = [Job(*key, rng.randrange(10**6), aim) for key, there in everywhere.items() for aim in there]
        count = max(count, len(jobs) + count // 4)
        # A finished run is called again in a moment, which is soon killed often enough.
        weights = [1.0 if stage != "finished" else 0.1 for _, stage in places]
        while len(jobs) < count:
            key = rng.choices(places, weights)[0]
            jobs.append(Job(*key, rng.randrange(10**6), self.anywhere(key, rng)))
        rng.shuffle(jobs)
        return jobs

    def anywhere(self, key: tuple[str, str], rng: random.Random) -> str:
        """A random moment, or any event at all."""
        if rng.random() < 0.7:
            return f"time:{rng.random():.3f}"
        event = rng.choice(self.scenarios[key].events)
        return f"{event}+half" if event.operation == "write" and rng.random() < 0.7 else str(event)

    def run(self, job: Job) -> dict[str, Any]:
        """Kill one run, once or several times, call it until it is complete, and compare."""
        rng = random.Random(job.seed)
        name = f"job-{os.getpid()}"
        template = None if job.stage == "fresh" else self.folder / f"{job.method}-at-{job.stage}"
        root = self._root(name, template)
        kills, aim = 0, job.aim
        while True:
            end = self._shoot(job, root, aim)
            if not end.killed:
                break
            kills += 1
            # Killed again on its way, or left alone.
            aim = self.anywhere((job.method, job.stage), rng) if rng.random() < KILLED_AGAIN else ""
        wrong = ""
        if end.code:
            wrong = f"lost: it ends with {end.code}: {end.output.strip()[-1500:]}"
        else:
            if aim:  # it came to its end before that moment; what is left may be to be tidied up by the next call
                end = self.attempt(job.method, root)
                wrong = f"lost: complete, and then ends with {end.code}: {end.output[-1500:]}" if end.code else ""
            wrong = wrong or compare(root / "run", self.reference(job.method), job.stage)
        if not wrong:
            shutil.rmtree(root)
            root.with_name(f"{name}.log").unlink()
        failures = [{"id": str(job), "what": wrong, "where": job.aim.partition("#")[0]}] if wrong else []
        counts = {
            "kills": kills,
            "runs": int(kills > 0),
            "runs lost": wrong.startswith("lost"),
            "runs with files left behind": wrong.startswith("left behind"),
            "runs with other bits": bool(wrong) and not wrong.startswith(("lost", "left behind")),
            f"kills {job.method}, {job.stage}": kills,
        }
        counts[f"kills at a {MOMENTS[not job.aim.startswith('time:')]}"] = kills
        return {"counts": counts, "failures": failures}

    def _shoot(self, job: Job, root: Path, aim: str) -> End:
        if aim.startswith("time:"):
            seconds = self.scenarios[job.method, job.stage].seconds
            return self.attempt(job.method, root, kill_after=float(aim.removeprefix("time:")) * seconds)
        return self.attempt(job.method, root, aim or None)


def compare(run: Path, reference: Path, stage: str) -> str:
    """What of a complete run is not as it is in the one that was left alone; nothing if all is."""
    found = {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}
    expected = {str(path.relative_to(reference)) for path in reference.rglob("*") if path.is_file()}
    if stage == "extended":  # which has kept the weights of its first part along the way as well
        found, expected = ({name for name in names if "snapshots" not in name} for names in (found, expected))
    if found != expected:
        return f"left behind: {sorted(found - expected)}, missing: {sorted(expected - found)}"
    for name in sorted(expected):
        exact = name == "episodes.jsonl" or name.startswith(("weights.", "snapshots"))
        if exact and (run / name).read_bytes() != (reference / name).read_bytes():
            return f"{name} has other bytes"
    metrics, others = ([without_clock(row) for row in rows(path / "metrics.jsonl")] for path in (run, reference))
    if metrics != others:
        return "metrics.jsonl has other figures"
    summary, theirs = (without_clock(read(path / "summary.json")) for path in (run, reference))
    if summary != theirs:
        return "summary.json has other figures"
    if read(run / "config.json")["config"] != read(reference / "config.json")["config"]:
        return "config.json has other settings"
    try:
        assert_same_checkpoint(run, reference)
    except AssertionError as error:
        return f"the checkpoint has another state: {error}"
    return ""


def kill_runs(
    count: int,
    seed: int = 0,
    *,
    places: Iterable[tuple[str, str]] = tuple(product(METHODS, STAGES)),
    workers: int = 2,
    sabotage: Callable[[], None] = lambda: None,
    only: str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Tally:
    """Kill runs until `count` have been, in each place and at either kind of moment; `only` is the id of one alone."""
    began = time.monotonic()
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="achieve-kill-", dir=shared_memory()) as folder:
        bench = Bench(Path(folder), sabotage)
        bench.prepare([Job.read(only)[:2]] if only else places, workers)
        traced = [scenario.events for scenario in bench.scenarios.values()]
        tally.add(**{"file operations traced": sum(map(len, traced)), "aims": sum(len(aims(e)) for e in traced)})
        say(f"kill: prepared in {time.monotonic() - began:.0f} s, {tally.counts}")
        jobs = [Job.read(only)] if only else bench.plan(count, seed)
        for done, result in enumerate(spread(bench.run, jobs, workers), 1):
            tally.merge(result)
            for failure in result["failures"]:
                say(f"kill: {failure}")
            if done % 100 == 0:
                say(f"kill: {done} of {len(jobs)} runs, {tally.counts['kills']} kills, {len(tally.failures)} failures")
        more = random.Random(seed + 1)
        while not only:  # some came to their end first, or had fewer checkpoints than when they were traced
            keys = [key for key in bench.scenarios if not tally.counts.get(f"kills {key[0]}, {key[1]}")]
            missing = count - tally.counts["kills"] - len(keys)
            if not all(tally.counts.get(f"kills at a {moment}") for moment in MOMENTS):
                missing = max(missing, 1)
            keys += more.choices(list(bench.scenarios), k=max(0, missing))
            if not keys:
                break
            jobs = [Job(*key, more.randrange(10**6), bench.anywhere(key, more)) for key in keys]
            for result in spread(bench.run, jobs, workers):
                tally.merge(result)
    tally.seconds = time.monotonic() - began
    return tally


def shared_memory() -> str | None:
    """A folder in memory, where there is one: the operations are what counts, not the disk."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
