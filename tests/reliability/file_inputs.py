"""Wrong files: weights, checkpoints, configs and logs; and wrong command lines."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tests.reliability import values
from tests.reliability.forks import spread
from tests.reliability.inputs import Broken, Kind
from tests.reliability.kill import METHODS


def in_child_value(work: Callable[[], Any]) -> Any:
    """What `work` returns, computed in a process of its own so that this one starts no threads."""
    return next(spread(lambda _: work(), [None], 1))


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
        line = rng.choice(lines)
        if line == ["eval", values.MUST_NOT_RUN]:
            return  # an agent of one's own, as module:name: code that the command line names may run
        self._command(line)

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
