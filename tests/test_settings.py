"""What is read from files fits, or it is said what does not."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

from achieve.config import EnvConfig, PPOConfig, TrainConfig, validate
from achieve.errors import ConfigError
from achieve.settings import (
    LARGEST,
    LONGEST,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Range,
    UnfitError,
    UnitFloat,
    convert,
)


@dataclass(frozen=True)
class Inner:
    size: PositiveInt = 1


@dataclass(frozen=True)
class Outer:
    inner: Inner = Inner()
    names: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("hint", "good", "bad"),
    [
        (Any, [None, 1, "x"], []),
        (int, [-1, 7, LARGEST], [1.0, True, "1", None, LARGEST + 1]),
        (NonNegativeInt, [0, 7], [-1]),
        (PositiveInt, [1], [0, -1]),
        (Annotated[int, Range(1, 3)], [1, 3], [0, 4]),
        (float, [-1, 0.5, 1e9], [True, "1", None, float("nan"), float("inf"), [1], LARGEST + 1]),
        (NonNegativeFloat, [0, 0.5], [-0.1]),
        (PositiveFloat, [0.1], [0, 0.0]),
        (UnitFloat, [0, 1, 0.3], [-0.1, 1.1]),
        (bool, [True, False], [0, 1, None, "true"]),
        (str, ["", "x"], [1, None, "a\n", "x" * (LONGEST + 1)]),
        (Literal["a", "b"], ["a"], ["c", None, ["a"]]),
        (PositiveInt | None, [None, 1], ["x", 0]),
        (Annotated[list[int], Range(2, 2)], [[1, 2]], [[1], [1, 2, 3], "12", None, [1, "2"]]),
        (Annotated[list[int], Range(0, 2)], [[], [1, 2]], [[1, 2, 3]]),
        (tuple[int, ...], [[], (1, 2), [1, 2]], [3, ["x"], [0] * (LONGEST + 1)]),
        ({"a": int}, [{"a": 1}, {"a": 1, "b": "x"}], [{}, {"a": "x"}, [], None]),
        (dict[str, float], [{}, {"x": 1}], [{"x": "y"}, 3]),
        (Outer, [{}, {"inner": {"size": 2}, "names": ["x"]}], [3, {"inner": 3}, {"names": "x"}]),
    ],
)
def test_what_fits(hint: Any, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        convert(hint, value, "it")
    for value in bad:
        with pytest.raises(UnfitError, match=r"^it"):
            convert(hint, value, "it")


def test_what_comes_back_has_the_promised_types() -> None:
    assert convert(Outer, {"inner": {"size": 2}, "names": ["x", "y"]}) == Outer(Inner(2), ("x", "y"))
    assert type(convert(float, 3)) is float


def test_the_place_is_named() -> None:
    with pytest.raises(UnfitError, match=r"^a\.b is 0; it must be above 0$"):
        convert({"a": {"b": PositiveInt}}, {"a": {"b": 0}})
    with pytest.raises(UnfitError, match=r"^a\.b is missing$"):
        convert({"a": {"b": PositiveInt}}, {"a": {}})
    with pytest.raises(UnfitError, match=r"^unknown setting inner\.other; known here: size$"):
        convert(Outer, {"inner": {"other": 1}})


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (TrainConfig(seed="1"), "seed is '1'; a value of type int is needed"),  # type: ignore[arg-type]
        (TrainConfig(name=3), "name is 3; a value of type str is needed"),  # type: ignore[arg-type]
        (TrainConfig(precision="fp8"), "precision is 'fp8'; accepted: 'auto', 'fp16'"),  # type: ignore[arg-type]
        (TrainConfig(env=EnvConfig(num_envs=0)), "env.num_envs is 0; it must be above 0"),
        (TrainConfig(ppo=PPOConfig(gamma=1.1)), "ppo.gamma is 1.1; it must lie between 0 and 1"),
        (TrainConfig(ppo=PPOConfig(ent_coef=float("nan"))), "ppo.ent_coef is nan; a finite number is needed"),
    ],
)
def test_a_config_made_in_python_is_checked_as_one_from_a_file(config: TrainConfig, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        validate(config)
    assert str(refused.value).startswith(sentence)
