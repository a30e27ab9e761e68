"""What is read from files fits, or it is said what does not."""

from typing import Any

import pytest

from achieve.schema import Check, UnfitError, boolean, each_value, items, maybe, number, one_of, table, whole


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (whole(), [0, 7, 2**62], [-1, 1.0, True, "1", None, 2**63]),
        (whole(1, 3), [1, 3], [0, 4]),
        (number(), [-1, 0.5, 1e9], [True, "1", None, float("nan"), float("inf"), [1]]),
        (number(0), [0, 0.5], [-0.1]),
        (boolean, [True, False], [0, 1, None, "true"]),
        (one_of("a", "b"), ["a"], ["c", None, ["a"]]),
        (maybe(whole()), [None, 1], ["x"]),
        (items(whole(), 2), [[1, 2]], [[1], [1, 2, 3], (1, 2), "12", None, [1, "2"]]),
        (items(whole(), most=2), [[], [1, 2]], [[1, 2, 3]]),
        (table({"a": whole()}), [{"a": 1}, {"a": 1, "b": "x"}], [{}, {"a": "x"}, [], None]),
        (table({}, {"a": whole()}), [{}, {"a": 1}], [{"a": None}]),
        (each_value(number()), [{}, {"x": 1}], [{"x": "y"}, 3]),
    ],
)
def test_checks(check: Check, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        check(value, "it")
    for value in bad:
        with pytest.raises(UnfitError, match=r"^it"):
            check(value, "it")


def test_the_place_is_named() -> None:
    check = table({"a": items(table({"b": whole(1)}), 2)})
    with pytest.raises(UnfitError, match=r"^a\[1\]\.b is 0, not a whole number from 1$"):
        check({"a": [{"b": 1}, {"b": 0}]}, "")


def test_what_is_quoted_stays_on_one_line() -> None:
    with pytest.raises(UnfitError, match=r"^it\.a b is 'x', not a number$"):
        each_value(number())({"a\n b": "x"}, "it")
