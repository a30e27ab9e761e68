"""The tokens encoder on a GPU: it reads what the CPU reads, and a run learns, with and without CUDA graphs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from achieve import make_vec, train
from achieve.nn.tokens import TokenEncoder
from achieve.presets import get_preset
from tests.system.tiny import tiny_config

pytestmark = pytest.mark.gpu


def test_both_devices_read_the_same() -> None:
    torch.manual_seed(0)
    envs = make_vec("crafter", 64, 0)
    images = torch.from_numpy(envs.reset()[0])
    envs.close()
    here, there = (TokenEncoder((64, 64, 3), get_preset("ad-max").model) for _ in range(2))
    there.load_state_dict(here.state_dict())
    there.cuda()
    here.observe(images)
    there.observe(images.cuda())
    assert here.tiles.filled == there.tiles.filled > 4
    assert torch.equal(here.wholes.entries, there.wholes.entries.cpu())
    tokens, same = here.look(images).tokens, there.look(images.cuda()).tokens
    assert all(torch.equal(a, b.cpu()) for a, b in zip(tokens, same, strict=True))
    torch.testing.assert_close(there(images.cuda()).cpu(), here(images), atol=2e-2, rtol=0)  # TF32


def test_a_replayed_graph_sees_what_was_learned_since() -> None:
    torch.manual_seed(0)
    envs = make_vec("crafter", 64, 0)
    images = torch.from_numpy(envs.reset()[0]).cuda()
    envs.close()
    encoder = TokenEncoder((64, 64, 3), get_preset("ad-max").model).cuda()
    with torch.no_grad():
        encoder(images)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            tokens = encoder.look(images).tokens
        graph.replay()
        assert (tokens.wholes == encoder.wholes.capacity).all(), "nothing is known yet"
        encoder.observe(images)
        graph.replay()
        for replayed, now in zip(tokens, encoder.look(images).tokens, strict=True):
            assert torch.equal(replayed, now)
        assert (tokens.wholes < encoder.wholes.capacity).any()


@pytest.mark.parametrize("compiled", [True, False])
def test_a_run_fills_its_codebooks(compiled: bool, tmp_path: Path) -> None:
    config = tiny_config(model={"encoder": "tokens", "direction_size": 8}, device="cuda", compile=compiled)
    train(config, tmp_path, quiet=True)
    assert (tmp_path / "summary.json").is_file()
