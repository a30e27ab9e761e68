"""Wrong inputs by the million: each is accepted, or refused in one line, and nothing else ever happens."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import mmap
import os
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, ClassVar

import numpy as np

from tests.reliability import values
from tests.reliability.forks import Tally, in_child, spread
from tests.reliability.kill import METHODS, shared_memory

PATIENCE = 10.0
"""Seconds of computing that one input may take; of waiting, ten times as many."""
ROOM = 2 << 30
"""Bytes of memory the inputs of a block may add."""
MOST_DEATHS = 20
"""Children of a block that may die before the rest of it is left out."""
MOST_ALIKE = 3
"""Failures of a block at one place that are told one by one; the others are only counted."""
RAN_CODE = 77
SAMPLE = 1 / 16
"""Share of refusals after which it is looked whether anything has changed."""


class Broken(Exception):
    """What was accepted or refused is not as it should be."""


def must_not_run(*_: object, **__: object) -> None:
    """Named in files as if it were an environment: a file never runs code."""
    os._exit(RAN_CODE)


class Kind:
    """A kind of input: how one is made, and what it is given to."""

    block: ClassVar[int] = 1000
    refusals: tuple[type[Exception], ...] = (ValueError, TypeError)

    def prepare(self, folder: Path) -> None:
        """Once, before processes are forked: valid inputs, and room for files."""
        self.folder = folder

    def begin(self, seed: int) -> None:
        """At the beginning of a block, in a process of its own."""

    def attempt(self, rng: Random) -> None:
        """Make an input and use it; raises one of `refusals`, or `Broken`, or what must not be raised."""
        raise NotImplementedError


@contextlib.contextmanager
def untouched(rng: Random, look: Callable[[], Any]) -> Iterator[None]:
    """A refusal within the block leaves everything as it was; looked at now and then."""
    before = look() if rng.random() < SAMPLE else None
    try:
        yield
    except (ValueError, TypeError) as error:
        if before is not None and look() != before:
            raise Broken(f"refused, and yet changed ({error})") from error
        raise


# Environments


class Worlds(Kind):
    """Environments of all kinds, made anew in every block."""

    def begin(self, seed: int) -> None:
        import gymnasium

        import achieve
        from achieve.envs.crafter import CrafterEnv, Env

        small: dict[str, Any] = {"area": (16, 16), "length": 40}
        self.single = [CrafterEnv(seed=seed, **small), Env(seed=seed, **small)]
        self.vector: list[Any] = [
            achieve.make_vec("crafter", num_envs=3, seed=seed, threads=1, **small),
            achieve.make_vec(
                "crafter", num_envs=2, seed=seed, threads=1, infos="all", size=(20, 24), view=(5, 6), area=(12, 30)
            ),
            achieve.make_vec("minigrid", num_envs=3, seed=seed, infos="all"),
        ]
        if seed % 20 == 0:
            with contextlib.suppress(ImportError):
                self.vector.append(achieve.make_vec("heist", num_envs=2, seed=seed, threads=1))
        if seed % 4 == 0:
            with contextlib.suppress(ImportError):
                self.single.append(gymnasium.make("achieve/DoorKeyTree-v1", disable_env_checker=True))
        for env in (*self.single, *self.vector):
            env.reset()

    def pick(self, rng: Random, envs: list[Any]) -> Any:
        """One of them; those that come last and are slow, seldom."""
        common = 2 if envs is self.single else 3
        return rng.choice(envs[:common]) if len(envs) == common or rng.random() < 0.97 else envs[common]


class Actions(Worlds):
    block = 5000

    def attempt(self, rng: Random) -> None:
        if rng.random() < 0.4:
            env = self.pick(rng, self.single)
            limit = int(env.action_space.n)
            with untouched(rng, getattr(env, "save_state", lambda: None)):
                _, _, *over, _ = env.step(values.scalar(rng, limit))
            if any(over):
                env.reset()
            return
        env = self.pick(rng, self.vector)
        with untouched(rng, env.save_state):
            obs, *_ = env.step(values.actions(rng, env.num_envs, int(env.single_action_space.n)))
        if obs.shape != env.observation_space.shape or obs.dtype != np.uint8:
            raise Broken(f"observations are {obs.dtype} {obs.shape}")


class Buffers(Worlds):
    block = 5000

    def attempt(self, rng: Random) -> None:
        env = self.pick(rng, self.vector)
        out, ground = values.buffer(rng, env.observation_space.shape)
        chosen = [rng.randrange(int(env.single_action_space.n)) for _ in range(env.num_envs)]
        roll = rng.random()
        with untouched(rng, env.save_state):
            if roll < 0.02:
                given = env.reset(out=out)[0]
            elif roll < 0.3:
                given = env.observe(out=out)
            else:
                given = env.step(chosen, out=out)[0]
        if ground is not None:
            if given is not out or not np.array_equal(env.observe(), out):
                raise Broken("the buffer does not hold the observations")
            start = (out.__array_interface__["data"][0] - ground.__array_interface__["data"][0])
            if not (np.all(ground[:start] == 0xA5) and np.all(ground[start + out.size :] == 0xA5)):
                raise Broken("written beyond the buffer")


class States(Worlds):
    block = 1000

    def begin(self, seed: int) -> None:
        super().begin(seed)
        rng = Random(seed)
        self.targets = [env for env in (*self.single, *self.vector) if hasattr(env, "load_state")]
        self.saved: list[list[bytes]] = []
        for env in self.targets:
            states = []
            for steps in (0, 3, 60):
                for _ in range(steps):
                    self._play(env, rng)
                states.append(env.save_state())
            self.saved.append(states)

    def _play(self, env: Any, rng: Random) -> None:
        if not hasattr(env, "num_envs"):
            if any(env.step(rng.randrange(17))[2:-1]):
                env.reset()
        else:
            env.step([rng.randrange(int(env.single_action_space.n)) for _ in range(env.num_envs)])

    def attempt(self, rng: Random) -> None:
        heist = len(self.vector) > 3
        which = rng.randrange(len(self.targets) - heist) if not heist or rng.random() < 0.9 else len(self.targets) - 1
        env, states = self.targets[which], self.saved[which]
        packed = heist and which == len(self.targets) - 1
        data = values.torn_state(rng, rng.choice(states), [s for group in self.saved for s in group], packed=packed)
        try:
            with untouched(rng, env.save_state):
                env.load_state(data if rng.random() < 0.9 else rng.choice((bytearray(data), memoryview(data))))
        except (ValueError, TypeError):
            if rng.random() < SAMPLE:
                self._use(env, rng)
            raise
        self._use(env, rng)
        # What was accepted and played on is a state like any other.
        again = env.save_state()
        try:
            env.load_state(again)
        except ValueError as error:
            raise Broken(f"its own state is refused: {error}") from error
        if env.save_state() != again:
            raise Broken("a state that is loaded is saved as another")
        env.load_state(rng.choice(states))

    def _use(self, env: Any, rng: Random) -> None:
        for _ in range(3):
            try:
                self._play(env, rng)
            except RuntimeError as error:
                if "call reset()" not in str(error):
                    raise
                env.reset()
        if hasattr(env, "observe"):
            env.observe()
        if hasattr(env, "pop_episodes") and rng.random() < 0.5:
            env.pop_episodes()


# Files


class Files(Kind):
    """What is read from files and refused by one of the project's own errors."""

    def prepare(self, folder: Path) -> None:
        from achieve.errors import AchieveError

        super().prepare(folder)
        self.refusals = (AchieveError,)

    def config(self, method: str, **changes: Any) -> Any:
        from achieve.config import from_dict

        settings = {**METHODS[method], "preset": "tiny", "device": "cpu", "torch_threads": 1, "total_steps": 256}
        settings["env"] = {**settings["env"], "num_envs": 2}
        return from_dict({**settings, "score_steps": 256, **changes})

    def begin(self, seed: int) -> None:
        self.room = self.folder / str(os.getpid())
        self.room.mkdir()

    def trainer_of(self, config: Any) -> Any:
        from achieve.trainers.ppo import PPOTrainer
        from achieve.trainers.qrdqn import QRDQNTrainer

        return QRDQNTrainer(config) if config.trainer == "qrdqn" else PPOTrainer(config)

    def header_changed(self, rng: Random, data: bytes) -> bytes:
        """A safetensors file with another header: lengths, offsets, types and names are free to lie."""
        size = int.from_bytes(data[:8], "little")
        header = json.dumps(values.changed(rng, json.loads(data[8 : 8 + size]))).encode()
        length = rng.choice((len(header), len(header), len(header), size, 0, 2**63, len(header) + 8))
        return length.to_bytes(8, "little") + header + data[8 + size :]


class Weights(Files):
    block = 250

    def prepare(self, folder: Path) -> None:
        super().prepare(folder)
        self.paths = [in_child_value(lambda m=method: self._weights(m)) for method in ("ppo", "ad", "qrdqn")]

    def _weights(self, method: str) -> str:
        from achieve.agent import describe_agent
        from achieve.run.weights import save_weights

        config = self.config(method)
        trainer = self.trainer_of(config)
        path = self.folder / f"{method}.safetensors"
        about = describe_agent(config, trainer.observation_shape, trainer.num_actions)
        save_weights(path, trainer.network.state_dict(), about)
        return str(path)

    def begin(self, seed: int) -> None:
        from achieve.run.weights import load_weights

        super().begin(seed)
        self.files = [(path.read_bytes(), *load_weights(path)) for path in map(Path, self.paths)]

    def attempt(self, rng: Random) -> None:
        from achieve import load_agent
        from achieve.run.tensors import write_tensors

        data, tensors, metadata = rng.choice(self.files)
        path = self.room / "weights.safetensors"
        roll = rng.random()
        if roll < 0.1:
            path.write_bytes(values.torn(rng, data, [file[0] for file in self.files]))
        elif roll < 0.25:
            path.write_bytes(self.header_changed(rng, data))
        elif roll < 0.6:
            about = values.changed(rng, json.loads(metadata["agent"]))
            write_tensors(path, tensors, {"agent": json.dumps(about)})
        elif roll < 0.7:
            text = values.torn_text(rng, metadata["agent"].encode()).decode(errors="replace")
            other = {"agent": text} if roll < 0.69 else {rng.choice(values.WORDS): text}
            write_tensors(path, tensors, other)
        else:
            write_tensors(path, values.changed_tensors(rng, tensors), metadata)
        agent = load_agent(path)
        height, width, channels = agent.observation_shape
        action = agent.act(np.zeros((height, width, channels), np.uint8))
        if not all(bool(tensor.isfinite().all()) for tensor in agent.network.state_dict().values()):
            raise Broken("weights that are not finite were loaded")
        if not 0 <= action < agent.logits.shape[1]:
            raise Broken(f"the action is {action}")


class Checkpoints(Files):
    block = 250
    methods = ("ppo", "ad", "qrdqn-ad", "minigrid")

    def prepare(self, folder: Path) -> None:
        super().prepare(folder)
        for method in self.methods:
            in_child_value(lambda m=method: self._stopped(m))

    def _run_config(self, method: str) -> Any:
        return self.config(method, total_steps=384, checkpoint_seconds=0.001)

    def _stopped(self, method: str) -> None:
        """A run folder with a checkpoint in the middle of the run."""
        import achieve
        from achieve.run.checkpoint import CheckpointWriter

        config, folder = self._run_config(method), self.folder / method
        plain = CheckpointWriter.save

        def save_once(writer: Any, *args: Any, **kwargs: Any) -> None:
            plain(writer, *args, **kwargs)
            writer.wait()
            if json.loads(json.dumps(args[1]))["rollouts"] >= 2:
                raise KeyboardInterrupt

        CheckpointWriter.save = save_once  # type: ignore[method-assign]
        with contextlib.suppress(KeyboardInterrupt):
            achieve.train(config, folder, quiet=True)
        CheckpointWriter.save = plain  # type: ignore[method-assign]

    def begin(self, seed: int) -> None:
        from achieve.run.checkpoint import load_checkpoint
        from achieve.run.segments import RowFiles

        super().begin(seed)
        method = self.methods[seed % len(self.methods)]
        self.template = self.folder / method
        self.run = self.room / "run"
        shutil.copytree(self.template, self.run)
        self.run_config = self._run_config(method)
        saved = load_checkpoint(self.run / "checkpoint")
        assert saved is not None, method
        # Tensors that are read lie in the file, which is written over and over here.
        self.good = saved._replace(tensors={name: tensor.clone() for name, tensor in saved.tensors.items()})
        self.data = (self.run / "checkpoint" / "checkpoint.safetensors").read_bytes()
        self.frames = {path: path.read_bytes() for path in (self.run / "checkpoint").glob("rows/*")}
        self.trainer = self.trainer_of(self.run_config)
        self.row_files = RowFiles(self.run / "checkpoint")

    def attempt(self, rng: Random) -> None:
        from achieve.run.checkpoint import load_checkpoint

        for path, data in self.frames.items():
            path.write_bytes(data)
        self._write(rng)
        if rng.random() < 0.005:
            return self._train()
        try:
            saved = load_checkpoint(self.run / "checkpoint")
            if saved is None:
                return None
            self.trainer.load(saved, self.row_files)
        except self.refusals:
            if rng.random() < 0.1:
                for path, data in self.frames.items():
                    path.write_bytes(data)
                self.trainer.load(self.good, self.row_files)
            raise
        if rng.random() < 0.1:
            self.trainer.save()
        self.trainer.load(self.good, self.row_files)
        return None

    def _write(self, rng: Random) -> None:
        import torch

        from achieve.run.checkpoint import save_checkpoint
        from achieve.run.tensors import read_tensors, write_tensors
        from achieve.trainers.base import ENVS

        folder, good = self.run / "checkpoint", self.good
        path = folder / "checkpoint.safetensors"
        roll = rng.random()
        if roll < 0.08:
            path.write_bytes(values.torn(rng, self.data))
        elif roll < 0.18:
            path.write_bytes(self.header_changed(rng, self.data))
        elif roll < 0.6:
            state = values.changed(rng, good.state)
            save_checkpoint(folder, good.tensors, state)
        elif roll < 0.85:
            save_checkpoint(folder, values.changed_tensors(rng, good.tensors), good.state)
        elif roll < 0.95 or not self.frames:
            tensors = {name: tensor for name, tensor in good.tensors.items() if name != ENVS}
            if roll < 0.94:
                data = good.tensors[ENVS].numpy().tobytes()
                torn = values.torn_state(rng, data, [data])
                tensors[ENVS] = torch.tensor(list(torn), dtype=torch.uint8)
            save_checkpoint(folder, tensors, good.state)
        else:
            save_checkpoint(folder, good.tensors, good.state)
            frames, data = rng.choice(list(self.frames.items()))
            if rng.random() < 0.5:
                tensors, metadata = read_tensors(frames)
                write_tensors(frames, values.changed_tensors(rng, tensors), metadata)
            else:
                frames.write_bytes(rng.choice((values.torn, self.header_changed))(rng, data))

    def _train(self) -> None:
        """The whole run from this checkpoint on, as `achieve train` would."""
        import achieve

        folder = self.room / "whole"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.run, folder)
        achieve.train(self.run_config, folder, quiet=True)


class Configs(Files):
    block = 1000

    def prepare(self, folder: Path) -> None:
        from achieve.config import to_dict
        from achieve.presets import PRESETS

        super().prepare(folder)
        old = to_dict(PRESETS["ad"])
        old["algo"] = old.pop("ppo")
        tiny = [to_dict(self.config(method)) for method in METHODS]
        self.trees = [json.loads(json.dumps(t)) for t in (*map(to_dict, PRESETS.values()), old, *tiny)]
        start = {"time": "2026-01-01", "command": "achieve train", "commit": None, "versions": {"torch": "2"}}
        self.records = [{"config": tree, "starts": [start]} for tree in self.trees]
        row = {"step": 64, "length": 16, "reward": 1.1, "achievement_collect_wood": 1, "achievement_place_table": 0}
        self.log = "".join(json.dumps({**row, "step": 64 * n}) + "\n" for n in range(1, 4)).encode()
        self.summary = {"steps": 192, "score": 1.0, "reward": 2.0, "success_rates": {"collect_wood": 1.0}, "seed": 0}

    def attempt(self, rng: Random) -> None:
        roll = rng.random()
        if roll < 0.55:
            self._build(values.changed(rng, rng.choice(self.trees)))
        elif roll < 0.85:
            self._read(rng)
        elif roll < 0.94:
            self._score(rng)
        elif roll < 0.99:
            self._world(rng)
        else:
            self._command_line(rng)

    def _build(self, tree: Any) -> None:
        from achieve.config import from_dict, to_dict

        config = from_dict(tree)
        if from_dict(to_dict(config)) != config:
            raise Broken("a config read back is another")

    def _read(self, rng: Random) -> None:
        from achieve.run.folder import read_config

        path = self.room / "config.json"
        record = rng.choice(self.records)
        if rng.random() < 0.5:
            path.write_text(json.dumps(values.changed(rng, record)))
        else:
            path.write_bytes(values.torn_text(rng, json.dumps(record).encode()))
        self._build(read_config(path)["config"])

    def _score(self, rng: Random) -> None:
        """A run's logs and summary, as `achieve score` reads them."""
        run = self.room / "scored"
        run.mkdir(exist_ok=True)
        files = {
            "config.json": json.dumps(self.records[0]).encode(),
            "summary.json": json.dumps(self.summary).encode(),
            "episodes.jsonl": self.log,
        }
        name = rng.choice(list(files))
        if rng.random() < 0.6:
            lines = [json.loads(line) for line in files[name].splitlines()]
            lines[-1] = values.changed(rng, lines[-1])
            files[name] = "\n".join(map(json.dumps, lines)).encode() + b"\n"
        else:
            files[name] = values.torn_text(rng, files[name])
        for name, data in files.items():
            (run / name).write_bytes(data)
        self._command(["score", str(run)])

    def _world(self, rng: Random) -> None:
        """An environment's own settings, as a config's options give them."""
        from achieve.trainers.setup import make_envs

        name = rng.choice(("crafter", "minigrid"))
        good: dict[str, Any] = {"depth": 2, "tree": [None, 0], "max_steps": 50, "room_size": 5}
        if name == "crafter":
            good = {"length": 50, "area": [16, 16], "view": [9, 9], "size": [64, 64], "reward": True}
        chosen = rng.sample(list(good), rng.choice((1, 1, 2)))
        options = [f"{key}={json.dumps(values.changed(rng, good[key]))}" for key in chosen]
        config = self.config("ppo", env={"name": name, "num_envs": 2, "threads": 1, "options": options})
        envs = make_envs(config)
        if envs.observation_space.shape[1] * envs.observation_space.shape[2] < 10**6:
            envs.reset()
        envs.close()

    def _command_line(self, rng: Random) -> None:
        """A command line; a run that would be started is not."""
        module = sys.modules["achieve.train"]

        def started(config: Any, folder: Any, **_: Any) -> None:
            from achieve.config import validate
            from achieve.errors import ConfigError

            validate(config)
            raise ConfigError("a run would have been started")

        module.train = started  # type: ignore[attr-defined]
        odd = [str(v) for v in (values.anything(rng), values.anything(rng), rng.choice(values.WORDS))]
        flags = (
            "--seed", "--total-steps", "--ppo.gamma", "--env", "--env.options", "--model.channels", "--preset",
            "--config", "--folder", "--device", "--distill.objectives", "--precision", "--trainer", "--no-such",
        )  # fmt: skip
        lines = (
            ["train", rng.choice(flags), odd[0]],
            ["train", "--preset", "quick", rng.choice(flags), odd[0], rng.choice(flags), odd[1]],
            ["train", f"{rng.choice(flags)}={odd[0]}"],
            [rng.choice(("score", "eval", "compare", "curves", "export", "presets")), odd[2]],
            [odd[2], odd[0]],
        )
        self._command(rng.choice(lines))

    def _command(self, line: list[str]) -> None:
        """Run `achieve LINE`, whose refusals are a line on stderr and exit code 2."""
        import achieve.cli
        from achieve.errors import AchieveError

        text = io.StringIO()
        try:
            with contextlib.redirect_stderr(text):
                code = achieve.cli.main(line)
        except SystemExit as stop:  # what the parser says of flags
            if stop.code not in (0, 2):
                raise
            return
        if code == 2 and not text.getvalue().startswith("achieve: unknown command"):
            raise AchieveError(text.getvalue().rstrip("\n"))
        if code not in (0, 2):
            raise Broken(f"exit code {code}")


KINDS: dict[str, type[Kind]] = {
    "actions": Actions, "buffers": Buffers, "states": States, "weights": Weights, "checkpoints": Checkpoints,
    "configs": Configs,
}  # fmt: skip
SHARES = {"actions": 0.4, "buffers": 0.23, "states": 0.2, "weights": 0.05, "checkpoints": 0.05, "configs": 0.07}
"""Of a million inputs: most where they are cheap, and of each kind no fewer than 50,000."""


def in_child_value(work: Callable[[], Any]) -> Any:
    """What `work` returns, computed in a process of its own so that this one starts no threads."""
    return next(spread(lambda _: work(), [None], 1))


class Block:
    """Inputs `start` to `stop` of a kind, tried in a child; one that ends the child is found and left out."""

    def __init__(self, name: str, kind: Kind, seed: int, start: int, stop: int) -> None:
        self._name, self._kind, self._seed = name, kind, seed
        self._start, self._stop = start, stop
        # Where the child is, and how many inputs were accepted, refused, and neither.
        self._shared = mmap.mmap(-1, 32)

    def run(self) -> dict[str, Any]:
        failures: list[dict[str, str]] = []
        counts = {"accepted": 0, "refused": 0, "failed": 0}
        begin, deaths = self._start, 0
        while begin < self._stop and deaths < MOST_DEATHS:
            self._shared[:] = struct.pack("<qqqq", begin, 0, 0, 0)
            with tempfile.TemporaryDirectory(dir=shared_memory()) as folder:
                notes, log = Path(folder) / "notes", Path(folder) / "log"
                end = in_child(lambda b=begin, n=notes: self._child(b, n), log, patience=600.0)
                at, *numbers = struct.unpack("<qqqq", self._shared[:])
                if notes.exists():
                    failures += [json.loads(line) for line in notes.read_text().splitlines()]
            for name, number in zip(counts, numbers, strict=True):
                counts[name] += number
            if end.code == 0:
                break
            endless = f"no end within {PATIENCE:g} s"
            what = {-signal.SIGALRM: endless, -signal.SIGPROF: endless, RAN_CODE: "code named in a file was run"}
            text = what.get(end.code, f"the process ended with {end.code}")
            failures.append({"id": f"{self._name}:{self._seed}:{at}", "what": text, "where": _told(end.output)})
            counts["failed"] += 1
            begin, deaths = at + 1, deaths + 1
        total = {**counts, "inputs": sum(counts.values())}
        total["not tried"] = self._stop - self._start - total["inputs"]
        return {"counts": {**total, **{f"{name} {self._name}": n for name, n in total.items()}}, "failures": failures}

    def _child(self, begin: int, notes: Path) -> int:
        faulthandler.enable(all_threads=False)  # so that a death by signal tells where
        for number in (signal.SIGALRM, signal.SIGPROF):
            faulthandler.register(number, all_threads=False, chain=True)
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*left out a torn last line")  # which is what should happen
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        kind, accepted, refused, failed = self._kind, 0, 0, 0
        alike: dict[tuple[str, str], int] = {}
        kind.begin(self._start // kind.block)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, size + ROOM))
        for index in range(begin, self._stop):
            self._shared[:] = struct.pack("<qqqq", index, accepted, refused, failed)
            signal.setitimer(signal.ITIMER_PROF, PATIENCE)
            signal.setitimer(signal.ITIMER_REAL, 10 * PATIENCE)
            what, trace = "", None
            try:
                kind.attempt(Random(f"{self._name}:{self._seed}:{index}"))
                accepted += 1
            except Broken as error:
                what, trace = str(error), error.__traceback__
            except kind.refusals as error:
                message = str(error)
                if message.strip() and len(message.splitlines()) == 1:
                    refused += 1
                else:
                    what, trace = f"{type(error).__name__} is not one line: {message[:300]!r}", error.__traceback__
            except BaseException as error:
                what, trace = f"{type(error).__name__}: {str(error)[:300]}", error.__traceback__
            if what:
                failed += 1
                place = _place(trace), what.partition(":")[0]
                alike[place] = alike.get(place, 0) + 1
                if alike[place] <= MOST_ALIKE:
                    record = {"id": f"{self._name}:{self._seed}:{index}", "what": what, "where": place[0]}
                    with open(notes, "a") as file:
                        file.write(json.dumps(record) + "\n")
        for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
            signal.setitimer(timer, 0)
        self._shared[:] = struct.pack("<qqqq", self._stop, accepted, refused, failed)
        return 0


def _told(output: str) -> str:
    """The places of the project's own code in a stack that a dying process printed, or the end of what it printed."""
    lines = [line.rpartition("/achieve/")[2] for line in output.splitlines() if "/achieve/" in line]
    return " < ".join(lines[:2]) or output[-300:].strip()


def _place(trace: TracebackType | None) -> str:
    """The last places in the project's own code."""
    frames = [f for f in traceback.extract_tb(trace) if "/achieve/" in f.filename]
    return " > ".join(f"{f.filename.rpartition('/achieve/')[2]}:{f.lineno}" for f in frames[-2:]) or "outside"


def fuzz(
    count: int,
    seed: int = 0,
    *,
    kinds: dict[str, type[Kind]] | None = None,
    workers: int = 2,
    only: str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Tally:
    """Try `count` inputs, of each kind its share; `only` is the id of one, which is tried with those before it."""
    began = time.monotonic()
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="achieve-fuzz-", dir=shared_memory()) as folder:
        chosen = {only.split(":")[0]: KINDS[only.split(":")[0]]} if only else kinds or KINDS
        whole = sum(SHARES.get(name, 1.0) for name in chosen)
        blocks = []
        for name, cls in chosen.items():
            kind = cls()
            room = Path(folder) / name
            room.mkdir()
            kind.prepare(room)
            total = round(count * SHARES.get(name, 1.0) / whole)
            spans = [(start, min(start + kind.block, total)) for start in range(0, total, kind.block)]
            if only:
                seed, index = (int(part) for part in only.split(":")[1:])
                spans = [(index // kind.block * kind.block, index + 1)]
            blocks += [Block(name, kind, seed, *span) for span in spans]
        # Long ones first, so that both workers end at the same time.
        blocks.sort(key=lambda block: block._kind.block)
        for done, result in enumerate(spread(lambda block: block.run(), blocks, workers), 1):
            tally.merge(result)
            if done % 20 == 0:
                inputs, failed = tally.counts["inputs"], tally.counts["failed"]
                say(f"fuzz: {done} of {len(blocks)} blocks, {inputs:,} inputs, {failed} failures")
    tally.seconds = time.monotonic() - began
    return tally
