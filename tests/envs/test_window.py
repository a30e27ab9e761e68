"""A person at the keyboard, by Gymnasium's own means: `gymnasium.utils.play` and ``render_mode="human"``."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy as np
import pytest

import achieve  # noqa: F401, registers the environments
from achieve.envs.crafter import CrafterEnv
from achieve.envs.crafter.data import ACTIONS
from achieve.envs.keys import KNOWN, keys_of
from tests.conftest import Optional


@pytest.fixture
def pygame(optional: Optional, monkeypatch: pytest.MonkeyPatch) -> Any:
    """pygame without a screen."""
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    return optional.module("pygame")


def test_window_shows_every_step_and_changes_nothing(pygame: Any) -> None:
    shown, plain = CrafterEnv(seed=3, render_mode="human"), CrafterEnv(seed=3)
    for one, other in zip(shown.reset(), plain.reset(), strict=True):
        assert np.array_equal(one, other) if isinstance(one, np.ndarray) else True
    for action in (1, 5, 3, 6):
        one, other = shown.step(action), plain.step(action)
        assert np.array_equal(one[0], other[0]) and one[1:4] == other[1:4]
        surface = pygame.surfarray.array3d(pygame.display.get_surface()).swapaxes(0, 1)
        assert np.array_equal(surface, plain.render((576, 576)))
    assert shown.render() is None
    shown.close()
    assert not pygame.display.get_init()


def test_window_has_the_size_that_was_asked_for(pygame: Any) -> None:
    env = CrafterEnv(seed=3, render_mode="human", render_size=(90, 90))
    env.reset()
    assert pygame.display.get_surface().get_size() == (90, 90)
    env.close()


def test_without_pygame_it_is_said_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(ModuleNotFoundError, match="pip install pygame-ce"):
        CrafterEnv(render_mode="human")
    with pytest.raises(ValueError, match="render_mode must be"):
        CrafterEnv(render_mode="window")


@pytest.mark.parametrize(
    ("name", "keys", "actions"),
    [("achieve/Crafter-v1", "dw ", ["move_right", "move_up", "do"]),
     ("achieve/DoorKeyTree-v1", "dw ", ["right", "forward", "toggle"])],
)  # fmt: skip
def test_gymnasium_plays_with_our_keys(
    pygame: Any, optional: Optional, name: str, keys: str, actions: list[str]
) -> None:
    from gymnasium.utils.play import play

    if "Door" in name:
        optional.module("minigrid")
    env: Any = gymnasium.make(name, render_mode="rgb_array")
    names = env.unwrapped.action_names if "Crafter" in name else [action.name for action in env.unwrapped.actions]
    taken: list[str] = []
    waiting = list(keys)

    def press(before: Any, after: Any, action: int, *_: Any) -> None:
        taken.append(names[int(action)])
        if len(taken) > 1:  # the first is taken before any key is pressed
            pygame.event.post(pygame.event.Event(pygame.KEYUP, key=ord(keys[len(taken) - 2])))
        if waiting:
            pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=ord(waiting.pop(0))))
        else:
            pygame.event.post(pygame.event.Event(pygame.QUIT))

    play(env, callback=press, fps=1000)
    assert taken == [names[0], *actions]


def test_crafter_has_the_keys_of_its_own_window() -> None:
    from pathlib import Path

    import crafter

    gui = (Path(crafter.__file__).parent / "run_gui.py").read_text()
    own = {"SPACE": " ", "TAB": "Tab"}
    found = {}
    for line in gui.splitlines():
        if "pygame.K_" in line and "'" in line and ":" in line:
            key, _, action = line.partition(":")
            key = key.strip().removeprefix("pygame.K_")
            found[own.get(key, key)] = action.strip().strip(",").strip("'")
    assert len(found) >= 16
    keys = keys_of("crafter", ACTIONS)
    assert {key: ACTIONS[keys[key]] for key in found} == found


@pytest.mark.parametrize("env", sorted(KNOWN))
def test_no_key_means_two_things(env: str) -> None:
    keys = [key for some in KNOWN[env].values() for key in some]
    assert len(keys) == len(set(keys))
    assert not set(keys) & {"x", "v", ".", ",", "Enter", "Escape"}, "the page's own"


def test_actions_of_an_environment_of_one_s_own_are_numbered() -> None:
    assert keys_of("module:Env", ["action 0", "action 1"]) == {"1": 0, "2": 1}
