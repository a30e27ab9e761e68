"""Any step can be returned to, and whatever is done from there gives the same bits."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from achieve.agent import load_agent
from achieve.app.lanes import Lane
from achieve.app.minds import Mind
from achieve.app.worlds import NotRepeatableError, make_world
from achieve.config import EnvConfig
from achieve.errors import ConfigError
from achieve.viz.episode import episode_moments
from tests.app.agents import write_agent
from tests.conftest import Optional

OWN = "tests.app.test_lanes:Corridor"


class Corridor(gymnasium.Env):
    """Walk to the right end; the floor flickers, in a way that follows from the seed."""

    observation_space = gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 3
        return self._look(), {}

    def step(self, action):
        self.place = int(np.clip(self.place + (1 if action else -1), 0, 7))
        return self._look(), float(self.place == 7), self.place == 7, False, {}

    def _look(self):
        image = np.repeat(self.np_random.integers(0, 50, (8, 8, 1), np.uint8), 3, 2)
        image[:, self.place] = 255
        return image


class Fickle(Corridor):
    """The same, but it never plays out the same way twice."""

    def _look(self):
        image = np.repeat(np.random.default_rng().integers(0, 50, (8, 8, 1), np.uint8), 3, 2)
        image[:, self.place] = 255
        return image


def trace(lane: Lane) -> list[tuple[int | None, bytes, float]]:
    return [(point.action, point.check, point.total) for point in lane.points]


@pytest.mark.parametrize("env", ["crafter", "minigrid", "heist", OWN])
def test_back_and_on_again_gives_the_same_bits(env: str, optional: Optional) -> None:
    if env == "heist":
        optional.env(env)
    if env == "minigrid":
        optional.module(env)
    rng = np.random.default_rng(5)
    with closing(Lane(make_world(EnvConfig(name=env, num_envs=1), 12))) as lane:
        actions = [int(rng.integers(len(lane.world.actions))) for _ in range(30)]
        if env == OWN:
            actions = [n % 2 for n in range(30)]
        for action in actions:
            assert lane.step(action)
        first, pictures = trace(lane), {}
        for place in (30, 12, 0, 29, 7):
            lane.go_to(place)
            pictures[place] = lane.picture()
        assert lane.at == 7 and trace(lane) == first, "looking back changes nothing"
        for action in actions[7:]:
            lane.step(action)
        assert trace(lane) == first
        for place, picture in pictures.items():
            lane.go_to(place)
            assert lane.picture() == picture
        lane.go_to(3)
        lane.step((actions[3] + 1) % 2)
        assert len(lane.points) == 5, "what came after is gone"


def test_pictures_after_going_back_are_those_of_the_first_time() -> None:
    with closing(Lane(make_world(EnvConfig(num_envs=1), 3))) as lane:
        pictures = [lane.picture()]
        for action in (1, 5, 3, 6, 4, 2):
            lane.step(action)
            pictures.append(lane.picture())
        for place in reversed(range(7)):
            lane.go_to(place)
            assert lane.picture() == pictures[place]


@pytest.fixture(scope="module")
def agent_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_agent(tmp_path_factory.mktemp("agent") / "small", seed=3)


def agent_lane(source: Path, world: int = 21) -> Lane:
    mind = Mind(load_agent(source, auxiliary=True), world)
    return Lane(make_world(mind.agent.config.env, world), mind, "agent")


def test_agent_plays_as_it_does_in_a_video(agent_file: Path) -> None:
    agent = load_agent(agent_file)
    moments = list(episode_moments(agent, 21, max_steps=40, draw=False))
    with closing(agent_lane(agent_file)) as lane:
        while lane.at < 40 and lane.step():
            pass
        names = ["start" if point.action is None else lane.world.actions[point.action] for point in lane.points]
        assert names == [moment.action for moment in moments]
        assert lane.here.total == moments[-1].episode_return


def test_agent_goes_on_from_an_earlier_step_as_it_did(agent_file: Path) -> None:
    with closing(agent_lane(agent_file)) as lane:
        for _ in range(40):
            lane.step()
        first = trace(lane)
        thoughts = [point.thought for point in lane.points]
        lane.go_to(13)
        for _ in range(27):
            lane.step()
        assert trace(lane) == first and lane.rewound
        for one, other in zip(thoughts, (point.thought for point in lane.points), strict=True):
            assert one is not None and other is not None
            assert (one.action, one.probabilities, one.value) == (other.action, other.probabilities, other.value)
            assert one.state.random == other.state.random


def test_a_person_takes_over_and_hands_back(agent_file: Path) -> None:
    with closing(agent_lane(agent_file)) as lane:
        lane.step()
        lane.hand_to("human")
        assert lane.next_action is None and not lane.step()
        lane.step(0)
        assert [point.by for point in lane.points] == [None, "agent", "human"]
        lane.hand_to("agent")
        lane.step()
        assert lane.here.by == "agent" and not lane.by_hand()


def test_a_recording_is_followed_until_something_else_is_done() -> None:
    script = (1, 3, 2, 0, 5)
    with closing(Lane(make_world(EnvConfig(num_envs=1), 4), None, "recording", script)) as lane:
        while lane.step():
            pass
        assert tuple(point.action for point in lane.points[1:]) == script
        lane.go_to(2)
        lane.step(4)
        with pytest.raises(ConfigError, match="no longer fits"):
            lane.hand_to("recording")
        lane.go_to(2)
        lane.hand_to("recording")
        with pytest.raises(ConfigError, match="there is no agent"):
            lane.hand_to("agent")


def test_nothing_happens_after_the_end() -> None:
    with closing(Lane(make_world(EnvConfig(num_envs=1, options=("length=3",)), 4))) as lane:
        assert [lane.step(0) for _ in range(5)] == [True, True, True, False, False]
        assert lane.over and lane.by_hand()
        with pytest.raises(ConfigError, match="action is 17"):
            lane.go_to(1)
            lane.step(17)


def test_where_nothing_repeats_there_is_no_going_back() -> None:
    with closing(Lane(make_world(EnvConfig(name="tests.app.test_lanes:Fickle", num_envs=1), 4))) as lane:
        for action in (0, 1, 0):
            lane.step(action)
        with pytest.raises(NotRepeatableError, match="did something else"):
            lane.go_to(1)
        with pytest.raises(ConfigError, match="did something else"):
            lane.go_to(2)


def test_video_shows_the_whole_episode_and_leaves_the_game_alone() -> None:
    with closing(Lane(make_world(EnvConfig(num_envs=1), 6))) as lane:
        for action in (5, 10, 2):  # a sapling, planted
            lane.step(action)
        lane.go_to(1)
        moments = list(lane.moments())
        assert [moment.action for moment in moments] == ["start", "do", "place_plant", "move_right"]
        assert moments[-1].unlocked == (("collect_sapling", 1), ("place_plant", 2))
        assert lane.at == 1 and lane.unlocked() == {"collect_sapling": 1}
