"""One game at a time, as a video needs it: what the agent sees, what a viewer sees, what was achieved."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from achieve.config import EnvConfig
from achieve.envs import check_options, make_vec
from achieve.envs.gym.preprocessing import is_picture
from achieve.envs.names import UnfitError
from achieve.errors import NoPicturesError
from achieve.run.env_errors import making_env
from achieve.viz.video import GAME, Picture

Seen = NDArray[Any]
"""An observation: an image, or a vector of numbers."""

# Procgen's fifteen combinations of buttons; the last six do nothing in Heist.
HEIST_ACTIONS = (
    "left down", "left", "left up", "down", "noop", "up", "right down", "right", "right up",
    "d", "a", "w", "s", "q", "e",
)  # fmt: skip


class SinglePlayer:
    """A Gymnasium environment that draws itself, for one episode.

    Attributes:
        env: the environment.
        actions, achievements: their names.
        counts: how often each achievement was done in this episode.
        inventory: what the player has, where the environment says so.
    """

    def __init__(self, env: Any, seed: int | None, actions: Sequence[str], render: Callable[[], Any]) -> None:
        self.env, self._seed, self._render = env, seed, render
        self.actions = actions
        self.achievements: Sequence[str] = env.unwrapped.achievement_names
        self.counts: Mapping[str, int] = {}
        self.inventory: Mapping[str, int] = {}

    def reset(self) -> Seen:
        """Return the first observation."""
        observation: Seen
        observation, info = self.env.reset(seed=self._seed)
        self.inventory = info.get("inventory", {})
        return observation

    def step(self, action: int) -> tuple[Seen, float, bool]:
        """Return observation, reward, and whether the episode has ended."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.counts, self.inventory = info["achievements"], info.get("inventory", {})
        return observation, float(reward), terminated or truncated

    def frame(self) -> Picture:
        """Return the game for a viewer, [H, W, 3]."""
        return np.asarray(self._render(), np.uint8)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


class VectorPlayer:
    """The same for any other environment, through its vector environment.

    The viewer sees what the agent sees or, in Heist and where that is no image, what the environment renders. In the
    step that ends an episode the environment already begins the next one: the last picture is then the last there was.
    """

    def __init__(self, env: EnvConfig, seed: int) -> None:
        made: dict[str, Any] = {"num_envs": 1, "seed": [seed], "threads": 1, "infos": "all", **env.arguments}
        drawn = made | {"render_mode": "rgb_array"}
        self.envs = make_vec(env.name, **(drawn if env.name == "heist" else made))
        if not is_picture(self.envs.single_observation_space):
            self.envs.close()
            try:
                self.envs = make_vec(env.name, **drawn)
            except UnfitError as error:
                raise NoPicturesError(f"there is nothing to film: the agent sees no images, and {error}") from error
        self.counts: Mapping[str, int] = {}
        self._frame = np.zeros((1, 1, 3), np.uint8)
        count = int(getattr(self.envs.single_action_space, "n", 0))
        numbered = [f"action {i}" for i in range(count)]
        self.actions: Sequence[str] = HEIST_ACTIONS if env.name == "heist" else numbered
        self.achievements: Sequence[str] = self.envs.achievement_names
        self._newest = self.envs.observation_space.shape[-1] // env.own_settings.get("frame_stack", 1)  # type: ignore[index]

    def reset(self) -> Seen:
        observations, infos = self.envs.reset()
        self._look(observations[0], infos, render=True)
        return np.array(observations[0])

    def step(self, action: int) -> tuple[Seen, float, bool]:
        observations, rewards, terminated, truncated, infos = self.envs.step(np.array([action]))
        done = bool(terminated[0] or truncated[0])
        observation = infos["final_obs"][0] if done else observations[0]
        self._look(observation, infos["final_info"] if done else infos, render=not done)
        return np.array(observation), float(rewards[0]), done

    def frame(self) -> Picture:
        return self._frame

    def close(self) -> None:
        self.envs.close()

    def _look(self, observation: Seen, infos: Mapping[str, Any], render: bool) -> None:
        if self.envs.render_mode is None:
            self._frame = coloured(observation[..., -self._newest :])
        elif render:
            pictures: Any = self.envs.render()
            self._frame = coloured(pictures[0])
        self.counts = {name: int(infos["achievements"][name][0]) for name in self.achievements}


def make_player(env: EnvConfig, seed: int, size: int = GAME) -> SinglePlayer | VectorPlayer:
    """Return a player of the first world of that environment seed; Crafter's frames have this ``size`` in pixels."""
    with making_env(env.name):
        if env.name in ("crafter", "minigrid"):  # made as single environments, past `make_vec`
            check_options(env.name, env.arguments)
        if env.name == "crafter":
            from achieve.envs.crafter import CrafterEnv

            crafter = CrafterEnv(seed=seed, **env.arguments)
            # Its seed was given above: another would begin another stream of worlds.
            return SinglePlayer(crafter, None, crafter.action_names, lambda: crafter.render((size, size)))
        if env.name == "minigrid":
            from achieve.envs.minigrid import pixel_env

            # The whole level, with what the agent sees lit up.
            minigrid: Any = pixel_env(render_mode="rgb_array", **env.arguments)
            names = [action.name for action in minigrid.unwrapped.actions]
            return SinglePlayer(minigrid, seed, names, minigrid.render)
        return VectorPlayer(env, seed)


def coloured(image: Picture) -> Picture:
    """Return an image [H, W, C] of any channels as RGB: of stacked frames the last, grey where it has one channel."""
    return np.array(image[..., -3:]) if image.shape[2] % 3 == 0 else np.repeat(image[..., -1:], 3, axis=2)
