"""Environments that show numbers instead of images: trained, stopped, resumed, evaluated, exported and filmed alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from achieve import load_agent, train
from achieve.agent import export_agent
from achieve.config import TrainConfig
from achieve.errors import AchieveError, ConfigError
from achieve.nn.encoder import Encoder
from achieve.scoring.episodes import load_episodes
from tests.system.conftest import Command
from tests.system.test_qrdqn import values_config
from tests.system.tiny import tiny_config
from tests.trust.stopping import assert_resumes

HERE = __name__
CORRIDOR = "examples.vector_env:Corridor"


class Own(Encoder):
    """Sees the shape, and float32."""

    def __init__(self, shape: tuple[int, ...], config: Any) -> None:
        super().__init__(shape, config)
        assert shape == (4,)
        self.layer = nn.Linear(4, config.hidden_size)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        assert observations.dtype == torch.float32
        return torch.tanh(self.layer(observations))


def corridor(steps: int = 1024, **changes: Any) -> TrainConfig:
    env = {"name": CORRIDOR, "num_envs": 8, **changes.pop("env", {})}
    model = {"encoder": "mlp", "dense_size": 32, **changes.pop("model", {})}
    rest = {"env": env, "model": model, "total_steps": steps, "score_steps": steps}
    if changes.get("trainer") == "qrdqn":
        return values_config(**rest, **changes)
    distill = {"rollouts_per_phase": 2, **changes.pop("distill", {})}
    return tiny_config(**rest, distill=distill, **changes)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned. Not to be written to."""
    folder = tmp_path_factory.mktemp("vectors") / "run"
    ppo = {"num_epochs": 3, "num_minibatches": 4, "learning_rate": 1e-3}
    config = corridor(6144, ppo=ppo, model={"hidden_size": 64}, distill={"rollouts_per_phase": 4})
    train(config, folder, quiet=True)
    return folder


def test_training_learns(run: Path) -> None:
    unlocked = load_episodes(run).achievements.sum(1)
    first, last = unlocked[:16].mean(), unlocked[-32:].mean()
    assert first < 5 and last > 5.5, (first, last)


def test_the_agent_acts_evaluates_and_is_exported(run: Path, achieve: Command, tmp_path: Path) -> None:
    agent = load_agent(run, trust=True)
    assert agent.observation_shape == (4,) and agent.network.observation_dtype == torch.float32
    at_key = np.array([-0.5, -0.5, 0, 0])
    assert agent.act(at_key, greedy=True) == 2, "it takes the key"
    agent.reset()
    assert agent.act(np.stack([at_key, at_key]).astype(np.float32), greedy=True).tolist() == [2, 2]
    with pytest.raises(ValueError, match=r"shape \(3,\) and type float64; this agent sees float32 of shape \(4,\)"):
        agent.act(np.zeros(3))
    export_agent(run, tmp_path / "a.safetensors")
    exported = load_agent(tmp_path / "a.safetensors", env=CORRIDOR)
    assert exported.act(at_key, greedy=True) == 2
    code, out, err = achieve("eval", run, "--episodes", 8, "--trust")
    assert (code, err) == (0, "") and "Door 3" in out


def test_analyses_look_at_latents_and_so_at_vectors(run: Path, achieve: Command, tmp_path: Path) -> None:
    code, _, err = achieve("matching", run, "--expert", run, "--episodes", 8, "--trust", "--out", tmp_path / "m.png")
    assert (code, err) == (0, ""), err


def test_videos_show_what_the_environment_draws(run: Path, achieve: Command, tmp_path: Path) -> None:
    code, out, err = achieve("video", run, "--out", tmp_path / "v.gif", "--max-steps", 4, "--trust")
    assert (code, err) == (0, "") and "v.gif: 5 frames" in out
    from PIL import Image

    with Image.open(tmp_path / "v.gif") as film:
        assert np.unique(np.asarray(film.convert("RGB"))[:576, :576].reshape(-1, 3), axis=0).shape[0] > 2


def undrawn() -> Any:
    from examples.vector_env import Corridor

    env = Corridor()
    env.render_mode = None
    return env


def test_without_pictures_there_is_no_video_but_a_page(achieve: Command, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(corridor(env={"name": f"{HERE}:undrawn"}), folder, quiet=True)
    code, _, err = achieve("video", folder, "--out", tmp_path / "v.gif", "--trust")
    assert code == 2 and err.count("\n") == 1
    assert "there is nothing to film: the agent sees no images, and" in err and "render_mode='rgb_array'" in err
    from achieve.viz.run_page import write_run_page

    page = write_run_page(folder, trust=True).read_text()
    assert "No video: there is nothing to film" in page and not (folder / "video.mp4").exists()


LEARNERS: dict[str, dict[str, Any]] = {
    "ppo": {"distill": {"enabled": False}, "model": {"memory": False}},
    "ad": {},
    "qrdqn": {"trainer": "qrdqn", "qrdqn": {"target_update": 256, "learning_starts": 128, "replay_size": 640}},
}


@pytest.mark.parametrize("learner", LEARNERS)
def test_a_run_resumes_bit_for_bit(learner: str, tmp_path: Path) -> None:
    assert_resumes(corridor(**LEARNERS[learner], checkpoint_seconds=0.0), tmp_path)


def test_an_encoder_of_ones_own_sees_the_shape(tmp_path: Path) -> None:
    train(corridor(512, model={"encoder": f"{HERE}:Own"}), tmp_path / "run", quiet=True)
    assert load_agent(tmp_path / "run", trust=True).act([0.0, 0.5, 1.0, 0.0]) in range(3)


@pytest.mark.parametrize(
    ("name", "encoder", "sentence"),
    [
        (CORRIDOR, "strided", r"float32 of shape \(4,\), and the strided .* uint8 images .*: use --model.encoder mlp"),
        ("tests.envs.gym.envs:Doubles", "residual", r"\(2, 3, 2, 2\).* use .*options frame_stack=2 in"),
        ("tests.envs.gym.envs:Integers", "residual", r"float32 of shape \(3, 5\).*options rescale=true"),
        ("tests.envs.gym.envs:Grey", "mlp", r"shape \(84, 84, 1\) are 7,056 numbers, .* at most 4,096; --mod"),
        ("tests.envs.gym.envs:Numbered", "mlp", "gymnasium.wrappers.FlattenObservation"),
    ],
)
def test_what_an_encoder_cannot_see_is_said(name: str, encoder: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=sentence) as refusal:
        train(corridor(env={"name": name}, model={"encoder": encoder}), tmp_path / "run", quiet=True)
    assert "\n" not in str(refusal.value) and not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["Doubles", "Integers", "Scalar", "Small"])
def test_numbers_of_any_kind_and_shape_train(name: str, tmp_path: Path) -> None:
    env = {"name": f"tests.envs.gym.envs:{name}", "unlock_threshold": 0.5}
    assert train(corridor(512, env=env), tmp_path / "run", quiet=True)["steps"] == 512


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"dtype": "float64"}, "agent.dtype is 'float64'; accepted: 'uint8', 'float32'"),
        ({"dtype": ["float32"]}, r"agent.dtype is \['float32'\]; accepted"),
        ({"image_shape": []}, "agent.image_shape has 0 entries; it must lie between 1 and 8"),
        ({"image_shape": [-4]}, "agent.image_shape is -4; it must be above 0"),
        ({"image_shape": [10**9, 10**9]}, "too few for the network"),
        ({"image_shape": [5]}, "encoder.entry.weight' is missing or has another size"),
    ],
)
def test_weights_that_lie_about_their_observations(
    change: dict[str, Any], sentence: str, run: Path, tmp_path: Path
) -> None:
    import json

    from achieve.agent import describe_agent, read_weights
    from achieve.run.weights import save_weights

    tensors, about = read_weights(run)
    told = {**json.loads(describe_agent(*about)["agent"]), **change}
    save_weights(tmp_path / "a.safetensors", tensors, {"agent": json.dumps(told)})
    with pytest.raises(AchieveError, match=sentence):
        load_agent(tmp_path / "a.safetensors", env=CORRIDOR)
