"""Runs that start from the weights of another agent (`--init-from`).

The SHA-256 of the weights is part of the config of such a run. Its first checkpoint is written before it learns, so
that it can be resumed without those weights.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from achieve.agent import find_weights, read_weights
from achieve.config import TrainConfig
from achieve.errors import ConfigError, RunFolderError
from achieve.run.files import explained
from achieve.run.folder import read_config
from achieve.run.weights import file_sha256
from achieve.trainers.base import BaseTrainer


def settle(config: TrainConfig, folder: Path) -> TrainConfig:
    """Return the config with the SHA-256 of the initial weights: as recorded in the run folder, or else as of now."""
    if config.init_from is None:
        return config
    if (folder / "config.json").is_file():
        saved = read_config(folder)["config"]
        digest = saved.get("init_sha256")
        if saved.get("init_from") == config.init_from and isinstance(digest, str):
            if config.init_sha256 not in (None, digest):
                raise RunFolderError(
                    f"{folder} holds a run that started from weights with the SHA-256 {digest}, not "
                    f"{config.init_sha256}; choose another run folder"
                )
            return replace(config, init_sha256=digest)
    digest = _sha256(config.init_from)
    if config.init_sha256 not in (None, digest):
        raise ConfigError(
            f"the weights of {config.init_from} have the SHA-256 {digest}, not {config.init_sha256}: they are others"
        )
    return replace(config, init_sha256=digest)


def take_weights(trainer: BaseTrainer) -> str | None:
    """Load the initial weights that the config names into the network. Returns a line on what was loaded.

    The encoder must be there, and whatever is there must fit. The rest, such as the auxiliary networks of an exported
    agent, stays randomly initialised.
    """
    source, digest = trainer.config.init_from, trainer.config.init_sha256
    if source is None:
        return None
    before = _sha256(source)
    theirs, _ = read_weights(source)
    if not before == digest == _sha256(source):
        raise RunFolderError(
            f"the weights of {source} are not those this run was to start from: they have changed meanwhile; "
            "`achieve export` makes a file that does not change"
        )
    mine = trainer.network.state_dict()
    lacking = [name for name in mine if name not in theirs]
    for name, tensor in mine.items():
        there = tuple(theirs[name].shape) if name in theirs else None
        if there != tuple(tensor.shape) and (there is not None or name.startswith("encoder.")):
            has = "is not there" if there is None else f"is of shape {there}"
            raise ConfigError(
                f"the weights of {source} do not fit this run's network: {name} {has}, and {tuple(tensor.shape)} is "
                "needed; the same model.* settings and the same kind of environment make them fit"
            )
    with torch.no_grad():
        for name in mine.keys() & theirs.keys():
            mine[name].copy_(theirs[name])
    trainer.weights_taken()
    unused = [name for name in theirs if name not in mine]
    drawn = f"; randomly initialised: {_parts(lacking)}" if lacking else ""
    left = f"; not used: {_parts(unused)}" if unused else ""
    return f"{trainer.config.origin}{drawn}{left}"


def _parts(names: list[str]) -> str:
    return ", ".join(sorted({name.partition(".")[0] for name in names}))


def _sha256(source: str) -> str:
    path = find_weights(source)
    with explained(f"{path} cannot be read"):
        return file_sha256(path)
