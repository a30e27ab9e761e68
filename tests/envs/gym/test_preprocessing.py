"""Images of observations that are none, by options."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from achieve.envs import make_vec
from achieve.envs.arrays import StateError
from achieve.envs.crafter import CrafterEnv
from achieve.envs.gym.vec import GymVecEnv

HERE = __name__


class Frames(gymnasium.Env):
    """Shows the number of the step in every pixel, drawn into one array; subclasses show it otherwise."""

    observation_space = Box(0, 255, (8, 12, 3), np.uint8)
    action_space = Discrete(2)
    render_mode = "rgb_array"

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        self.picture = np.zeros((8, 12, 3), np.uint8)
        return self.show(), {}

    def step(self, action):
        self.time += 1
        return self.show(), float(self.time % 2), False, self.time == 9, {}

    def draw(self):
        self.picture[:] = self.time
        self.picture[:4, :, 1] = 200
        return self.picture

    def show(self):
        return self.draw()

    def render(self):
        return self.draw().copy()


class Bundle(Frames):
    observation_space = Dict({"image": Frames.observation_space, "compass": Discrete(4)})

    def show(self):
        return {"image": self.draw(), "compass": 0}


class Fractions(Frames):
    observation_space = Box(0, 1, (8, 12, 3), np.float32)

    def show(self):
        return (self.draw() / 255).astype(np.float32)


class ChannelsFirst(Frames):
    observation_space = Box(0, 255, (3, 8, 12), np.uint8)

    def show(self):
        return np.moveaxis(self.draw(), -1, 0)


class Numbers(Frames):
    observation_space = Box(-1, 1, (2,))

    def show(self):
        return np.zeros(2, np.float32)


class Unlimited(Frames):
    observation_space = Box(-np.inf, np.inf, (8, 12, 3))


def unrendered():
    env = Numbers()
    env.render_mode = None
    return env


def crafter() -> CrafterEnv:
    return CrafterEnv(area=(12, 12), length=20)


def make(environment: str, threads: int = 1, **kwargs) -> GymVecEnv:
    return GymVecEnv(2, 0, threads, id=f"{HERE}:{environment}", **kwargs)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("environment", "options"),
    [
        ("Bundle", {"image_key": "image"}),
        ("Fractions", {"rescale": True}),
        ("ChannelsFirst", {}),
        ("Numbers", {"pixels": True}),
    ],
)
def test_the_same_picture_by_every_way(environment, options, threads):
    vec, plain = make(environment, threads, **options), make("Frames")
    assert (vec.reset()[0] == plain.reset()[0]).all()
    for _ in range(12):
        assert (vec.step([0, 1])[0] == plain.step([0, 1])[0]).all()
    vec.close()
    plain.close()


def test_smaller_larger_and_grey():
    small, large, grey = make("Frames", resize=[8, 9]), make("Frames", resize=24), make("Frames", grayscale=True)
    first, second, third = (vec.reset()[0] for vec in (small, large, grey))
    assert first.shape == (2, 8, 9, 3) and second.shape == (2, 24, 24, 3) and third.shape == (2, 8, 12, 1)
    assert (second[:, :12, :, 1] == 200).all() and (second[:, 12:] == 0).all(), "pixels are repeated"
    assert (third[:, :4] == int(200 * 0.7154)).all() and (third[:, 4:] == 0).all()
    halved = make("Frames", resize=[8, 12]).reset()[0]
    assert (halved == make("Frames").reset()[0]).all()


def test_frames_are_stacked_as_channels_with_the_newest_last():
    vec = make("Frames", grayscale=True, frame_stack=3)
    obs, _ = vec.reset()
    assert obs.shape == (2, 8, 12, 3) and (obs[:, 4:] == 0).all(), "the first frame fills the stack"
    for _ in range(4):
        obs = vec.step([0, 1])[0]
    assert obs[0, 7, 0].tolist() == [1, 2, 3] or obs[0, 7, 0].tolist() == [2, 3, 4]
    colours = make("Frames", frame_stack=2)  # drawn into one array, of which frames are copies
    colours.reset()
    assert colours.step([0, 1])[0][0, 7, 0].tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("environment", "options", "said"),
    [
        ("Bundle", {"image_key": "picture"}, "names nothing in its observation space, which is a dictionary"),
        ("Frames", {"image_key": "image"}, "image_key=image names nothing"),
        ("Bundle", {"resize": 64}, "options image_key=image"),
        ("Numbers", {"frame_stack": 4}, "options pixels=true"),
        ("Unlimited", {"rescale": True}, "needs a Box with bounds"),
        ("unrendered", {"pixels": True}, "its render_mode is None; make it with render_mode='rgb_array'"),
        ("Frames", {"grayscale": "yes"}, "grayscale must be true or false, got 'yes'"),
        ("Frames", {"resize": 7}, "resize must be a whole number from 8 to 4096"),
        ("Frames", {"resize": [64, 64, 3]}, "resize must be"),
        ("Frames", {"frame_stack": 0}, "frame_stack must be a whole number from 1 to 64, got 0"),
        ("Frames", {"max_achievements": 10**9}, "from 1 to 1000"),
        ("crafter", {"unlock_threshold": 0.0}, "only a reward above 0.15 .* is 0; use --env.unlock-threshold 0.15"),
    ],
)
def test_what_cannot_be_shown_is_said(environment, options, said):
    with pytest.raises(ValueError, match=said):
        make(environment, **options)


def test_our_own_environment_brings_its_threshold():
    """Regained health gives 0.1, which is no achievement."""
    for arguments in ({}, {"unlock_threshold": 0.15}):
        vec = make("crafter", **arguments)
        assert vec._group.task.unlock_threshold == 0.15
        vec.close()


def test_a_state_of_other_images_is_refused():
    with pytest.raises(StateError, match=r"image_shape \[8, 12, 3\] \(here \[16, 16, 3\]\)"):
        make("Frames", resize=16).load_state(make("Frames").save_state())


def test_minigrids_own_environments(optional):
    optional.module("minigrid")
    name = "minigrid:MiniGrid-Empty-5x5-v0"
    vec = make_vec(name, 2, 0, 1, image_key="image", resize=32, frame_stack=2, max_achievements=1, unlock_threshold=0.0)
    obs, _ = vec.reset()
    assert obs.shape == (2, 32, 32, 6) and vec.achievement_names == ("achievement_1",)
    for action in (2, 2, 1, 2, 2):  # two forward, turn right, two forward
        _, rewards, terminated, _, _ = vec.step([action] * 2)
    assert terminated.all() and (rewards > 0).all() and vec.pop_episodes().achievements.tolist() == [[1], [1]]
    with pytest.raises(ValueError, match="in front: minigrid:MiniGrid-NoSuch-v0"):
        make_vec("MiniGrid-NoSuch-v0")
    drawn = make_vec(name, 1, 0, 1, pixels=True, resize=40)
    assert drawn.reset()[0].shape == (1, 40, 40, 3)
