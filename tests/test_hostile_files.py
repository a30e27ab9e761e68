"""Weights and configs that nobody would write on purpose: each ends in one sentence, before anything large is made."""

from __future__ import annotations

import copy
import json
import math
import random
import resource
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from achieve import load_agent
from achieve.agent import describe_agent
from achieve.config import TrainConfig, from_dict, to_dict
from achieve.errors import AchieveError, ConfigError, DivergedError, RunFolderError
from achieve.migration import REMOVED
from achieve.nn.model import ActorCritic
from achieve.presets import PRESETS
from achieve.run.weights import save_weights
from tests.system.tiny import tiny_config

SHAPE, ACTIONS = (16, 24, 3), 5
HUGE = 2**40
COUNT = 300


def metadata() -> dict[str, Any]:
    about: dict[str, Any] = json.loads(describe_agent(tiny_config(), SHAPE, ACTIONS)["agent"])
    return about


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    return ActorCritic(tiny_config().model, SHAPE, ACTIONS, auxiliary=False).state_dict()


@contextmanager
def little_memory(room: int = 2**30) -> Iterator[None]:
    """Within the block, the process may take no more than so much more address space."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + room, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def describe(config: str) -> str:
    return f'{{"config": {config}, "image_shape": [16, 24, 3], "num_actions": 5}}'


def refused(path: Path, sentence: str) -> None:
    with little_memory(), pytest.raises(RunFolderError, match=sentence) as caught:
        load_agent(path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("not json", "the description of its agent is not JSON"),
        ("", "is not JSON"),
        ("[1, 2]", r"must be a table of settings, not \[1, 2\]"),
        ("null", "agent must be a table of settings, not None"),
        ("3", "must be a table of settings, not 3"),
        ("[" * 100_000 + "]" * 100_000, "nested too deep"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "nested too deep"),
        ("9" * 10_000, "is not JSON"),
        ('"\\ud800"', r"must be a table of settings, not '\\ud800'"),
        ("{}", "agent.config is missing"),
        ('{"config": {}}', "agent.image_shape is missing"),
        (describe('{"model": 3}'), "model must be a table of settings, not 3"),
        (describe('{"seed": 1e400}'), "seed is inf; a value of type int is needed"),
    ],
)
def test_metadata_that_is_no_agent(tmp_path: Path, weights: dict[str, Any], text: str, sentence: str) -> None:
    path = tmp_path / "a.safetensors"
    save_weights(path, weights, {"agent": text})
    refused(path, sentence)


@pytest.mark.parametrize(
    ("place", "value", "sentence"),
    [
        ("num_actions", 0, "agent.num_actions is 0; it must be above 0"),
        ("num_actions", -3, "num_actions is -3; it must be above 0"),
        ("num_actions", True, "num_actions is True; a value of type int is needed"),
        ("num_actions", 5.0, "num_actions is 5.0; a value of type int"),
        ("num_actions", None, "num_actions is None; a value of type int"),
        ("num_actions", HUGE, "too few for the network"),
        ("num_actions", 10**400, "num_actions is a huge number; integers go up to"),
        ("num_actions", 6, "policy.weight' is missing or has another size"),
        ("image_shape", [16, 24], r"observations of shape \(16, 24\); its encoder needs"),
        ("image_shape", [16, 24, 0], "image_shape is 0; it must be above 0"),
        ("image_shape", [-16, -24, 3], "image_shape is -16; it must be above 0"),
        ("image_shape", [True, 24, 3], "image_shape is True; a value of type int is needed"),
        ("image_shape", ["16", 24, 3], "image_shape is '16'; a value of type int is needed"),
        ("image_shape", [4, 4, 3], "shape .*, at least 8 x 8"),
        ("image_shape", {"a": 1}, "image_shape is {'a': 1}; give a list"),
        ("image_shape", "abc", "image_shape is 'abc'; give a list"),
        ("image_shape", [HUGE, HUGE, 3], "too few for the network"),
        ("image_shape", [16, 24, HUGE], "too few for the network"),
        ("image_shape", [10**300, 8, 1], "image_shape is a huge number"),
        ("image_shape", [16, 31, 3], None),
        ("image_shape", [16, 48, 3], "is missing or has another size"),
        ("image_shape", [16, 16, 3], "is missing or has another size"),
        ("model.hidden_size", HUGE, "too few for the network"),
        ("model.dense_size", HUGE, "too few for the network"),
        ("model.channels", [4, HUGE, 8], "too few for the network"),
        ("model.channels", [4, 100_000, 8], "too few for the network"),
        ("model.channels", [4, 8, 9], "is missing or has another size"),
        ("model.channels", [4, 8], "give three positive numbers"),
        ("model.channels", [4, 8, -8], "give three positive numbers"),
        ("model.encoder", "residual", "too few for the network"),
        ("model.norm", False, "is missing or has another size"),
        ("trainer", "qrdqn", "cannot be used"),
    ],
)
def test_impossible_shapes(
    tmp_path: Path, weights: dict[str, torch.Tensor], place: str, value: Any, sentence: str | None
) -> None:
    path = tmp_path / "a.safetensors"
    about = metadata()
    *tables, name = place.split(".")
    table = about if place in ("num_actions", "image_shape") else about["config"]
    for part in tables:
        table = table[part]
    table[name] = value
    save_weights(path, weights, {"agent": json.dumps(about)})
    if sentence is None:  # another image, but the same number of features
        assert load_agent(path).observation_shape == tuple(value)
    else:
        refused(path, sentence)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["policy.weight", "encoder.convs.1.bias", "normalizer.mean_ewma"])
def test_weights_that_are_not_finite(tmp_path: Path, weights: dict[str, Any], name: str, value: float) -> None:
    path = tmp_path / "a.safetensors"
    broken = {key: tensor.clone() for key, tensor in weights.items()}
    broken[name].view(-1)[0] = value
    save_weights(path, broken, {"agent": json.dumps(metadata())})
    refused(path, f"{name}' has values that are not finite")


def test_weights_so_large_that_nothing_comes_of_them(tmp_path: Path, weights: dict[str, torch.Tensor]) -> None:
    path = tmp_path / "a.safetensors"
    save_weights(path, {name: t * 0 + 1e38 for name, t in weights.items()}, {"agent": json.dumps(metadata())})
    with pytest.raises(DivergedError, match="logits are not finite"):
        load_agent(path).act(torch.full(SHAPE, 255, dtype=torch.uint8).numpy())


def test_weights_of_other_types(tmp_path: Path, weights: dict[str, torch.Tensor]) -> None:
    path, about = tmp_path / "a.safetensors", {"agent": json.dumps(metadata())}
    for kind in (torch.int64, torch.int8, torch.bool):
        save_weights(path, {**weights, "policy.bias": torch.ones(ACTIONS, dtype=kind)}, about)
        refused(path, "'policy.bias' is missing or has another size or type")
    save_weights(path, {**weights, "policy.bias": torch.full((ACTIONS,), 1e300, dtype=torch.float64)}, about)
    refused(path, "not finite")
    save_weights(path, {**weights, "policy.bias": torch.ones(ACTIONS, dtype=torch.float64)}, about)
    assert load_agent(path).network.state_dict()["policy.bias"].tolist() == [1.0] * ACTIONS
    save_weights(path, {**weights, "another": torch.ones(2)}, about)
    refused(path, "'another' is missing or has another size")
    save_weights(path, {**weights, "x\n" * 1000: torch.ones(2)}, about)
    refused(path, "missing or has another size")
    save_weights(path, {}, about)
    refused(path, "they are 0 numbers, too few")


def header(entries: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


LIES = {
    "nothing": b"",
    "seven bytes": b"\0" * 7,
    "no header": struct.pack("<Q", 0),
    "a header longer than the file": header({}, length=10**6),
    "a header of all memory": header({}, length=2**64 - 1),
    "a header that is a list": header([]),
    "a header that is no JSON": header(b"{" * 50),
    "a deep header": header(b'{"a":' * 10_000 + b"1" + b"}" * 10_000),
    "more data than the file has": header({"w": {"dtype": "F32", "shape": [HUGE], "data_offsets": [0, 4 * HUGE]}}),
    "a shape that overflows": header({"w": {"dtype": "F32", "shape": [2**33, 2**33], "data_offsets": [0, 4]}}, b"1234"),
    "a shape of other size": header({"w": {"dtype": "F32", "shape": [100], "data_offsets": [0, 4]}}, b"1234"),
    "a negative shape": header({"w": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"1234"),
    "offsets turned round": header({"w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, b"1234"),
    "an unknown type": header({"w": {"dtype": "Q9", "shape": [1], "data_offsets": [0, 4]}}, b"1234"),
    "a type with a line break": header({"w": {"dtype": "F\n", "shape": [1], "data_offsets": [0, 4]}}, b"1234"),
    "a half-byte type": header({"w": {"dtype": "F4", "shape": [8], "data_offsets": [0, 4]}}, b"1234"),
    "an eight-bit float": header({"w": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}, b"1234"),
    "a complex type": header({"w": {"dtype": "C64", "shape": [1], "data_offsets": [0, 8]}}, b"12345678"),
    "metadata of numbers": header({"__metadata__": {"agent": 3}}),
    "data no tensor has": header({"w": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}, b"1234"),
}


@pytest.mark.parametrize("content", LIES.values(), ids=LIES)
def test_headers_that_lie(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    refused(path, "not a weight file of achieve|does not say which agent")


def test_sources_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "run" / "weights.safetensors").mkdir(parents=True)
    for source in ("a\0b", "x" * 5000, "\udcff", "", tmp_path, tmp_path / "run", "/dev/null"):
        with pytest.raises(RunFolderError):
            load_agent(source)


ODD: list[Any] = [
    None, True, 0, -1, 2**31, 2**63 - 1, 2**63, -(2**63), 10**5000, 0.5, -0.0, math.nan, math.inf, -math.inf, 1e308,
    5e-324, "", "x", "1", "\0", "\ud800", "\x1b[31m", "../x", "a:b", "x" * 100_000, "1e400", [], [[]], [1, 2, 3],
    [0] * 10_000, [None], ["a"], ["a=1"], ["depth=" + "[" * 3000], ["x=" + "-" * 4000 + "1"], ["x=" + "9" * 4000], 
    ["seed=1"], ["=3"], ["x=a:b"], {}, {"a": 1}, {"name": {}}, b"x", (), {1: 2}, object(),
]  # fmt: skip


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def places(tree: dict[str, Any], where: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in tree.items():
        yield (*where, name)
        if isinstance(value, dict):
            yield from places(value, (*where, name))


def changed(tree: dict[str, Any], where: tuple[str, ...], value: Any) -> dict[str, Any]:
    tree = copy.deepcopy(tree)
    inner = tree
    for part in where[:-1]:
        inner = inner[part]
    inner[where[-1]] = value
    return tree


@pytest.mark.parametrize("preset", ["quick", "qrdqn-ad"])
def test_every_setting_with_every_odd_value(preset: str) -> None:
    """Refused in a sentence, or a config that can be written down and read again."""
    tree, odd = to_dict(PRESETS[preset]), [*ODD, nested(100_000)]
    taken = 0
    gone = [(table, name) for table, settings in REMOVED.items() for name in settings if table in tree]
    for where in [(), ("algo",), *gone, *places(tree)]:
        for value in odd:
            try:
                config = from_dict(changed(tree, where, value) if where else value)
            except ConfigError as error:
                assert "\n" not in str(error) and len(str(error)) < 2000, (where, type(value))
                str(error).encode()
                continue
            taken += 1
            text = json.dumps(to_dict(config), allow_nan=False)
            text.encode()
            assert from_dict(json.loads(text)) == config, (where, value)
    assert taken > 50


def test_names_that_are_no_settings() -> None:
    for name in ("sede", "", "x" * 10_000, "\ud800", "a\nb", 3, None, (1,), "__class__"):
        with pytest.raises(ConfigError, match="unknown setting") as caught:
            from_dict({name: 1})  # type: ignore[dict-item]
        str(caught.value).encode()
        assert len(str(caught.value)) < 2000


AS_JSON = [
    odd for odd in ODD if isinstance(odd, int | float | str | list | dict | None) and odd not in (10**5000, {1: 2})
]


def mutated(rng: random.Random, value: Any) -> Any:
    """The tree with some of its values replaced, removed or doubled."""
    if rng.random() < 0.005:
        return rng.choice(AS_JSON)
    if isinstance(value, dict):
        kept = {k: mutated(rng, v) for k, v in value.items() if rng.random() > 0.002}
        return kept if rng.random() > 0.02 else {**kept, rng.choice(["x", "algo", "ppo", "config"]): 1}
    if isinstance(value, list):
        return [mutated(rng, item) for item in value for _ in range(rng.choice((1, 1, 1, 1, 2)))]
    return value


def test_agents_at_random(tmp_path: Path, weights: dict[str, torch.Tensor]) -> None:
    """A quick version of what `benchmarks/reliability.md` tells of."""
    rng = random.Random(0)
    path = tmp_path / "a.safetensors"
    save_weights(path, weights, {"agent": json.dumps(metadata())})
    whole, outcomes = path.read_bytes(), []
    for _ in range(COUNT):
        about = json.dumps(mutated(rng, metadata())).encode("utf-8", "surrogatepass").decode("utf-8", "replace")
        tensors = {n: t for n, t in weights.items() if rng.random() > 0.002}
        if rng.random() < 0.5:
            save_weights(path, tensors, {"agent": about})
        else:
            data = bytearray(whole)
            for _ in range(rng.choice((1, 4, 64))):
                data[rng.randrange(min(len(data), rng.choice((16, 4000, len(data)))))] = rng.randrange(256)
            path.write_bytes(data[: rng.choice((len(data), rng.randrange(len(data))))])
        try:
            outcomes.append(load_agent(path).network.num_actions == ACTIONS)
        except AchieveError as error:
            assert "Traceback" not in str(error)
    assert 0 < len(outcomes) < COUNT and all(outcomes)


def test_deep_trees_do_not_need_a_deep_stack() -> None:
    limit = sys.getrecursionlimit()
    with pytest.raises(ConfigError):
        from_dict({"env": {"options": nested(100_000)}})
    assert sys.getrecursionlimit() == limit
    assert isinstance(from_dict({}), TrainConfig)
