"""Find a Gymnasium environment by name and describe it, or say why it cannot be used."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np

from ..arrays import short
from ..names import UnfitError, WorkerError, failed, import_named
from ..registry import registering
from .preprocessing import Preprocessing, observation_box

LARGEST_REWARD = float(np.finfo(np.float32).max)
"""What learners can store."""


@dataclass(frozen=True)
class Description:
    """What a vector environment must know about an environment before it runs many of them."""

    observations: gymnasium.spaces.Box
    """Bytes, or numbers as float32."""
    num_actions: int
    first_action: int
    achievement_names: tuple[str, ...]
    named: bool
    """Whether the environment names its achievements; if not, they are counted by order."""
    unlock_threshold: float | None = None
    """The reward above which, by its own account, an achievement was unlocked."""
    requirements: tuple[tuple[str, str], ...] | None = None
    """By its own account, which achievement must come right before which; None where it does not say."""
    repeats: bool = True
    """Whether two resets with one seed showed the same."""

    def observation(self, obs: Any) -> np.ndarray:
        """Return an observation as the vector environment shows it, checked; of images without channels, one."""
        array, (shape, dtype) = np.atleast_1d(obs), (self.observations.shape, self.observations.dtype)
        if dtype == np.uint8 and array.ndim == 2:
            array = array[:, :, None]
        if array.shape != shape or (array.dtype != dtype if dtype == np.uint8 else array.dtype.kind not in "fiub"):
            raise UnfitError(
                f"its observation is {array.dtype} of shape {array.shape}, "
                f"but its observation space promises {dtype} of shape {shape}"
            )
        if dtype != np.uint8 and not np.isfinite(array := array.astype(np.float32)).all():
            raise UnfitError(f"its observation has numbers that are not finite: {short(obs)}")
        return array

    def count(self, info: Mapping[str, Any], counts: np.ndarray) -> None:
        """Write how often each named achievement was unlocked since the episode's start, as ``info`` reports it."""
        told, known = info.get("achievements"), ", ".join(self.achievement_names)
        if not isinstance(told, Mapping):
            raise UnfitError(f"its info has no dictionary 'achievements' that counts {known}")
        before = counts.copy()
        counts[:] = 0
        for name, count in told.items():
            if name not in self.achievement_names:
                raise UnfitError(f"its info counts an achievement {name!r} that was not announced; known are: {known}")
            if not isinstance(count, int | np.integer | np.bool_):
                raise UnfitError(f"its info counts the achievement {name!r} as {count!r}; a whole number is needed")
            counts[self.achievement_names.index(name)] = int(count)
        if (counts < before).any():
            which = int(np.argmax(counts < before))
            raise UnfitError(
                f"its info counts the achievement {self.achievement_names[which]!r} as {counts[which]} after "
                f"{before[which]}; it must count since the start of the episode, not of the step alone"
            )


def find_maker(name: str, steps: Preprocessing, render: bool = False) -> Callable[[], Any]:
    """Return a function that makes the environment ``name``: ``module:function``, or an id that Gymnasium knows.

    With ``render`` an id is made to be rendered; a function of the user's decides that itself.
    """
    _, colon, rest = name.partition(":")
    found = import_named(name) if colon else None
    if found is None:
        if colon and rest.replace(".", "_").isidentifier():
            raise UnfitError(f"the module {name.partition(':')[0]} has no {rest!r}")
        return lambda: steps.wrap(_make_registered(name, render or steps.pixels))
    if not callable(found):
        raise UnfitError(f"{rest!r} is a {type(found).__name__}; a function that returns an environment is needed")
    return lambda: steps.wrap(found())


def _make_registered(name: str, render: bool) -> Any:
    arguments: dict[str, Any] = {"render_mode": "rgb_array"} if render else {}
    try:
        # `describe` checks what the checker would, for any environment.
        return gymnasium.make(name, disable_env_checker=True, **arguments)
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.NamespaceNotFound) as error:
        way = "" if ":" in name else f"; {registering(name)}"
        raise UnfitError(f"Gymnasium cannot make it: {str(error).rstrip('.')}{way}") from error
    except gymnasium.error.Error as error:
        raise UnfitError(f"Gymnasium cannot make it: {error}") from error


def describe(env: Any, max_achievements: int) -> Description:
    """Return what this environment is like, after a reset; a ValueError that says why if it cannot be used."""
    observations = observation_box(getattr(env, "observation_space", None))
    actions = getattr(env, "action_space", None)
    if not isinstance(actions, gymnasium.spaces.Discrete):
        raise UnfitError(
            f"its action space is {actions!r}; only gymnasium.spaces.Discrete works, no continuous or combined actions"
        )
    obs, info = check_reset(env.reset(seed=0))
    names = _announced(env, info)
    description = Description(
        observations=observations,
        num_actions=int(actions.n),
        first_action=int(actions.start),
        achievement_names=names or tuple(f"achievement_{k + 1}" for k in range(max_achievements)),
        named=bool(names),
        unlock_threshold=_attribute(env, "unlock_threshold"),
        requirements=_requirements(env, names),
    )
    shown = np.array(description.observation(obs))  # a copy: many environments return the same array every time
    return replace(description, repeats=_repeats(env, shown, description))


def _repeats(env: Any, shown: np.ndarray, description: Description) -> bool:
    """Return whether a reset with the same seed shows the same. An error there will come up, and be told, in play."""
    try:
        again, _ = check_reset(env.reset(seed=0))
        return np.array_equal(shown, description.observation(again))
    except Exception:
        return True


def picture_of(env: Any) -> np.ndarray:
    """Return what `render` draws, if it is a picture."""
    drawn = env.render() if env.render_mode == "rgb_array" else None
    if not isinstance(drawn, np.ndarray) or drawn.dtype != np.uint8 or drawn.ndim != 3 or drawn.shape[2] != 3:
        raise UnfitError(
            f"its render_mode is {env.render_mode!r}, and its render() gives {_short(drawn)}; "
            "pictures need render_mode='rgb_array' and uint8 of height x width x 3"
        )
    return drawn


def check_reset(result: Any) -> tuple[Any, Mapping[str, Any]]:
    """Return what `reset` returned, if it is as Gymnasium prescribes."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise UnfitError(f"its reset returned {_short(result)}, not an observation and an info as in Gymnasium")
    return result[0], _check_info(result[1])


def check_step(result: Any) -> tuple[Any, float, bool, bool, Mapping[str, Any]]:
    """Return what `step` returned, if it is as Gymnasium prescribes and has a reward."""
    if not isinstance(result, tuple) or len(result) != 5:
        raise UnfitError(
            f"its step returned {_short(result)}, not the five values of Gymnasium: "
            "observation, reward, terminated, truncated, info"
        )
    obs, reward, terminated, truncated, info = result
    try:
        value = float(reward)
    except (TypeError, ValueError):
        value = float("nan")
    if not abs(value) <= LARGEST_REWARD:
        raise UnfitError(
            f"its reward is {reward!r}; without rewards that are numbers, of a size that float32 has, there is nothing "
            "to learn from"
        )
    return obs, value, bool(terminated), bool(truncated), _check_info(info)


def _check_info(info: Any) -> Mapping[str, Any]:
    if not isinstance(info, Mapping):
        raise UnfitError(f"its info is {info!r}, not a dictionary")
    return info


def _short(result: Any) -> str:
    return f"{len(result)} values" if isinstance(result, tuple) else f"a {type(result).__name__}"


def _attribute(env: Any, name: str) -> Any:
    """Return an attribute of the environment or of what it wraps; None if there is none."""
    try:
        return env.get_wrapper_attr(name)
    except AttributeError:
        return getattr(env, name, None)


def _announced(env: Any, info: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the achievements, from the environment's attribute or its first info; () without either."""
    told = _attribute(env, "achievement_names")
    if told is None:
        told = info.get("achievements")
    if told is None:
        return ()
    names = (told,) if isinstance(told, str) else tuple(told)
    if isinstance(told, str) or not names or not all(isinstance(name, str) for name in names):
        raise UnfitError(f"its achievements are {told!r}; names are needed, such as ('collect_key', 'open_door')")
    if len(set(names)) != len(names):
        raise UnfitError(f"its achievements {told!r} are not all different")
    return names


def _requirements(env: Any, names: Sequence[str]) -> tuple[tuple[str, str], ...] | None:
    """Return the environment's own graph of achievements, for analyses."""
    told = _attribute(env, "achievement_requirements")
    if told is None:
        return None
    try:
        pairs = tuple((first, second) for first, second in told)
        unknown = {name for pair in pairs for name in pair} - set(names)
    except (TypeError, ValueError):
        raise UnfitError(
            f"its achievement_requirements are {short(told)}; pairs of names are needed, such as (('take_key', "
            "'open_door'),)"
        ) from None
    if unknown:
        raise UnfitError(f"its achievement_requirements name {', '.join(sorted(map(str, unknown)))}, no achievement")
    return pairs


@contextlib.contextmanager
def blamed(what: str) -> Iterator[None]:
    """Turn an error in the user's environment into one that says where it happened."""
    try:
        yield
    except UnfitError as error:
        raise WorkerError(f"{what} cannot be used: {error}") from error
    except WorkerError:
        raise
    except (Exception, SystemExit) as error:  # an environment that calls sys.exit must not end the run without a word
        raise failed(f"{what} failed", error) from error


def examine(name: str, steps: Preprocessing, max_achievements: int, render: bool) -> Description:
    """Make one environment of that name, describe it and close it; a ValueError if it cannot be used."""
    env = None
    try:
        env = find_maker(name, steps, render)()
        description = describe(env, max_achievements)
        if render:
            picture_of(env)
        return description
    except (UnfitError, gymnasium.error.DependencyNotInstalled) as error:
        raise UnfitError(f"the environment {name} cannot be used: {error}") from error
    except WorkerError:
        raise
    except (Exception, SystemExit) as error:
        raise failed(f"the environment {name} failed at a trial", error) from error
    finally:
        # A failure to close must not hide the failure that led here.
        with contextlib.suppress(Exception):
            if env is not None:
                env.close()
