"""Runs with the tokens encoder: its codebooks grow, are saved, resumed and exported with the weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from achieve import load_agent, make_vec, train
from achieve.agent import export_agent
from achieve.config import ModelConfig, TrainConfig, from_dict, to_dict, validate
from achieve.errors import ConfigError
from achieve.nn.tokens import TokenEncoder
from achieve.presets import get_preset
from examples.token_pictures import ACROSS, GAP, PIXEL
from examples.token_pictures import main as draw
from tests.system.tiny import tiny_config
from tests.trust.stopping import assert_resumes

TOKENS: dict[str, Any] = {"model": {"encoder": "tokens", "direction_size": 8}}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny run. Not to be written to."""
    folder = tmp_path_factory.mktemp("tokens") / "run"
    train(tiny_config(**TOKENS), folder, quiet=True)
    return folder


def tokens_of(path: Path) -> TokenEncoder:
    encoder = load_agent(path).network.encoder
    assert isinstance(encoder, TokenEncoder)
    return encoder


def test_a_run_fills_its_codebooks(run: Path) -> None:
    encoder = tokens_of(run)
    assert encoder.tiles.filled > 8 and encoder.tops.filled >= 4 and encoder.wholes.filled > encoder.tops.filled


def test_a_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    """The codebooks grow after each update: a run that is stopped in between must have them as they were."""
    assert_resumes(tiny_config(**TOKENS, checkpoint_seconds=0.0), tmp_path)


def test_an_exported_agent_reads_as_before(run: Path, tmp_path: Path) -> None:
    """Entries are rounded to half precision, what is compared exactly is not."""
    export_agent(run, tmp_path / "agent.safetensors")
    before, after = tokens_of(run), tokens_of(tmp_path / "agent.safetensors")
    for name in ("tops", "wholes"):
        assert torch.equal(getattr(before, name).entries, getattr(after, name).entries)
    envs = make_vec("crafter", 8, 3)
    images = torch.from_numpy(envs.reset()[0])
    envs.close()
    one, other = before.look(images).tokens, after.look(images).tokens
    assert torch.equal(one.view, other.view) and torch.equal(one.wholes, other.wholes)


def test_an_agent_acts_on_images(run: Path) -> None:
    envs, agent = make_vec("crafter", 4, 9), load_agent(run)
    images, _ = envs.reset()
    first = agent.act(images)
    assert first.shape == (4,) and torch.as_tensor(agent.values).isfinite().all()
    envs.close()


def test_settings_of_tokens_need_tokens() -> None:
    for name, value in (("tile_grid", [7, 7, 2]), ("token_sure", 0.3), ("direction_size", 7)):
        with pytest.raises(ConfigError, match=rf"model\.{name} has no effect without"):
            tiny_config(model={name: value})


@pytest.mark.parametrize("value", [[9, 7], [9, 7, 0], [9, 7, 5000]])
def test_odd_codebooks_are_refused(value: list[int]) -> None:
    for name in ("tile_grid", "codebooks"):
        with pytest.raises(ConfigError, match="three numbers from 1 to 4,096"):
            tiny_config(model={"encoder": "tokens", name: value})


def test_qrdqn_refuses_tokens() -> None:
    config = get_preset("qrdqn")
    settings = to_dict(config)
    settings["model"]["encoder"] = "tokens"
    with pytest.raises(ConfigError, match="codebooks"):
        validate(from_dict(settings))


def test_ad_max_is_small() -> None:
    """Ten million parameters are allowed, those of the auxiliary nets included."""
    config: TrainConfig = get_preset("ad-max")
    assert config.model == ModelConfig(encoder="tokens", dense_size=128, hidden_size=256)


def test_quick_max_is_a_shorter_ad_max() -> None:
    short = get_preset("quick-max")
    assert short.total_steps % short.phase_steps == 0, "its last phase is not cut off"
    whole = get_preset("ad-max")
    lengths = {"total_steps": whole.total_steps, "score_steps": whole.score_steps}
    assert replace(short, preset="ad-max", **lengths) == whole


def test_codebooks_can_be_drawn(run: Path, tmp_path: Path) -> None:
    draw([str(run), str(tmp_path / "codebooks.png")])
    picture, encoder = np.asarray(Image.open(tmp_path / "codebooks.png")), tokens_of(run)
    cell = encoder.grid.size * PIXEL
    entries = -(-encoder.tiles.filled // ACROSS) + -(-encoder.wholes.filled // ACROSS)
    assert picture.shape == (entries * (cell + GAP) + GAP, ACROSS * (cell + GAP) + GAP, 3)
    below = picture[-(cell + GAP) :][:cell:PIXEL, GAP : GAP + cell : PIXEL]
    start = encoder.wholes.filled - 1 - (encoder.wholes.filled - 1) % ACROSS
    assert np.array_equal(below.ravel(), encoder.wholes.entries[start].numpy())
