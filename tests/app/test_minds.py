"""What is shown of an agent's head is what its network computes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from achieve.agent import load_agent
from achieve.analysis.discovered import FILE_NAME, find_discovered, load_discovered, save_discovered
from achieve.app.minds import Mind
from achieve.app.worlds import make_world
from achieve.errors import RunFolderError
from achieve.run.weights import file_sha256, save_weights
from tests.app.agents import NAMES, clusters, write_agent


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_agent(tmp_path_factory.mktemp("agent") / "small", seed=7)


def test_thought_is_the_network_s(source: Path) -> None:
    agent = load_agent(source, auxiliary=True)
    found = find_discovered(source)
    assert found is not None
    mind = Mind(agent, 3, clusters=found)
    world = make_world(agent.config.env, 3)
    seen = world.reset()
    first = mind.think(seen, None)
    assert first.memory is None, "nothing was unlocked yet"
    after, _, _ = world.step(first.action)
    thought = mind.think(after, 1.0)  # as if that had unlocked something
    network = agent.network
    with torch.no_grad():
        before, phi = (network.encode(torch.from_numpy(image[None])) for image in (seen, after))
        nu = F.normalize(phi - before, dim=1)
        logits, value = network.heads(phi, nu)  # type: ignore[operator]
        psi = network.predict(phi, torch.tensor([thought.action]), nu)
    np.testing.assert_allclose(thought.probabilities, logits[0].softmax(0), rtol=1e-5)
    np.testing.assert_allclose(thought.value, network.normalizer.denormalize(value)[0], rtol=1e-5)  # type: ignore[operator]
    np.testing.assert_allclose(thought.ahead, psi.numpy()[0] @ found.centres.T, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(thought.memory, nu.numpy()[0] @ found.centres.T, rtol=1e-4, atol=1e-6)
    told = thought.as_dict()
    assert told["choice"] == thought.action and len(told["p"]) == 17 and len(told["ahead"]) == len(NAMES)


def test_acting_is_the_same_with_and_without_the_prediction_nets(source: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 64, 64, 3), np.uint8)
    plain, whole = load_agent(source), load_agent(source, auxiliary=True)
    assert whole.predicts and not plain.predicts
    for image in images:
        assert plain.act(image, 1.0, False) == whole.act(image, 1.0, False)
    assert torch.equal(plain.logits, whole.logits)
    with pytest.raises(RuntimeError, match="without the auxiliary nets"):
        plain.predict(0)
    with pytest.raises(RuntimeError, match="seen nothing"):
        load_agent(source, auxiliary=True).predict(0)


def test_agent_without_prediction_nets_loads_all_the_same(tmp_path: Path) -> None:
    source = write_agent(tmp_path / "plain", auxiliary=False)
    assert not load_agent(source, auxiliary=True).predicts


def test_state_of_an_agent_is_all_it_needs(source: Path) -> None:
    images = np.random.default_rng(1).integers(0, 256, (6, 64, 64, 3), np.uint8)
    agent = load_agent(source, seed=4)
    agent.act(images[0])
    state = agent.state()
    first = [agent.act(image, 1.0, False) for image in images]
    agent.restore(state)
    assert [agent.act(image, 1.0, False) for image in images] == first
    other = load_agent(source, seed=99)
    other.restore(state)
    assert [other.act(image, 1.0, False) for image in images] == first


def test_discovered_survives_the_file(source: Path, tmp_path: Path) -> None:
    found = clusters(5)
    save_discovered(tmp_path / FILE_NAME, found, source)
    read = load_discovered(tmp_path / FILE_NAME, file_sha256(source / "weights.safetensors"))
    assert read.names == NAMES and read.edges == tuple(pairwise(NAMES))
    np.testing.assert_allclose(read.centres, found.centres, atol=2e-3)
    np.testing.assert_allclose(np.linalg.norm(read.centres, axis=1), 1, rtol=1e-6)


def test_discovered_of_another_agent_is_passed_over(source: Path, tmp_path: Path) -> None:
    other = write_agent(tmp_path / "other", seed=8, discovered=False)
    assert find_discovered(other) is None
    save_discovered(other / FILE_NAME, clusters(), source)
    assert find_discovered(other) is None
    with pytest.raises(RunFolderError, match="about another agent"):
        load_discovered(other / FILE_NAME, file_sha256(other / "weights.safetensors"))
    elsewhere = tmp_path / "cache" / file_sha256(other / "weights.safetensors")[:16]
    elsewhere.mkdir(parents=True)
    save_discovered(elsewhere / FILE_NAME, clusters(), other)
    assert find_discovered(other, [tmp_path / "cache"]) is not None


@pytest.mark.parametrize(
    "about",
    ["", "[]", '{"names": ["a"], "labels": ["a"], "edges": [["a", "b"]], "weights": "x"}',
     '{"names": ["a", "a"], "labels": ["a", "a"], "edges": [], "weights": "x"}', '{"names": 3}'],
)  # fmt: skip
def test_broken_discovered_files_are_refused(about: str, tmp_path: Path) -> None:
    save_weights(tmp_path / FILE_NAME, {"centres": torch.ones(1, 32)}, {"discovered": about})
    with pytest.raises(RunFolderError):
        load_discovered(tmp_path / FILE_NAME, "x")
