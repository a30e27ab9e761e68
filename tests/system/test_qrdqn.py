"""QR-DQN end to end on a tiny config: trained, killed, continued, scored, evaluated, shown, exported, measured."""

from __future__ import annotations

import copy
import json
import random
import re
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from achieve import load_agent
from achieve.agent import export_agent
from achieve.config import TrainConfig, from_dict, to_dict
from achieve.data.replay import ReplayShape
from achieve.errors import ConfigError
from achieve.migration import migrate
from achieve.presets import PRESETS, get_preset
from achieve.run.checkpoint import Checkpoint, load_checkpoint
from achieve.run.segments import Rows
from achieve.run.weights import load_weights
from achieve.trainers.qrdqn import QRDQNTrainer, make_replay
from tests.conftest import Optional
from tests.system.conftest import Command
from tests.system.own_env import LIMIT
from tests.system.processes import ROOT, Child, Nursery
from tests.system.runs import FILES, assert_same_run, checkpoint_file, read, rows

STEPS, BETWEEN, ROOM = 2048, 256, 1200
SETTINGS: dict[str, Any] = {
    "preset": "tiny-values",
    "trainer": "qrdqn",
    "total_steps": STEPS,
    "score_steps": STEPS,
    "device": "cpu",
    "torch_threads": 1,
    "checkpoint_seconds": 1e9,  # before each distillation and at the end, whatever the clock says
    "env": {"num_envs": 4, "threads": 1},
    "model": {
        "encoder": "strided", "channels": [4, 8, 8], "dense_size": 16, "hidden_size": 32, "normalize_value": False,
    },
    "qrdqn": {
        "target_update": BETWEEN, "replay_size": ROOM, "learning_starts": 500, "num_quantiles": 5, "batch_size": 8,
        "epsilon_steps": 1000,
    },
    "distill": {"num_epochs": 1, "batch_size": 128},
}  # fmt: skip


def values_config(**changes: Any) -> TrainConfig:
    merged = {
        name: {**SETTINGS.get(name, {}), **value} if isinstance(value, dict) else value
        for name, value in changes.items()
    }
    return from_dict({**SETTINGS, **merged})


Start = Callable[..., Child]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("settings") / "values.json"
    path.write_text(json.dumps(to_dict(values_config())))
    return path


@pytest.fixture(scope="module")
def start(nursery: Nursery, settings: Path) -> Start:
    def run(folder: Path, *flags: object, slow_writes: float = 0.0) -> Child:
        command = ("train", "--config", settings, "--folder", folder, "--no-report", "--quiet", *flags)
        return nursery.start(*command, slow_writes=slow_writes)

    return run


@pytest.fixture(scope="module")
def finished(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("values") / "run"
    start(folder).run()
    return folder


@pytest.fixture(scope="module")
def stopped(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Killed soon after its third checkpoint, when the ring has been around. Not to be written to."""
    folder = tmp_path_factory.mktemp("values-stopped") / "run"
    child = start(folder, slow_writes=0.004)

    def around() -> bool:
        saved = load_checkpoint(folder / "checkpoint")
        return saved is not None and saved.state["replay"]["row"] * 4 > ROOM

    assert child.wait_for(around)
    child.send(signal.SIGKILL)
    child.wait()
    assert not (folder / "summary.json").exists()
    return folder


def test_a_run_leaves_what_a_run_leaves(finished: Path) -> None:
    assert {path.name for path in finished.iterdir() if not path.name.startswith(".")} == FILES
    assert not (finished / "checkpoint" / "rows").exists(), "gigabytes that nobody needs any more"
    metrics = rows(finished / "metrics.jsonl")
    count = STEPS // BETWEEN
    first = -(-500 // BETWEEN)
    expected = ["qrdqn"] * (first - 1) + ["qrdqn", "distill"] * (count - first + 1)
    assert [row["kind"] for row in metrics] == expected
    learned = [row for row in metrics if row["kind"] == "qrdqn"]
    assert [row["step"] for row in learned] == list(range(BETWEEN, STEPS + 1, BETWEEN))
    assert learned[0]["updates"] == 0 and learned[-1]["updates"] == BETWEEN / 4
    assert sum(row["updates"] for row in learned) == (STEPS - 500) / 4
    assert learned[-1]["epsilon"] == pytest.approx(0.01) and learned[-1]["stored"] == ROOM
    phases = [row for row in metrics if row["kind"] == "distill"]
    assert sum(row["prediction_updates"] for row in phases) > 0
    assert sum(row["matching_updates"] for row in phases) > 0
    summary = read(finished / "summary.json")
    assert summary["steps"] == STEPS
    assert set(summary["seconds"]) == {"start", "interact", "distill", "checkpoint", "total"}
    saved = read(finished / "config.json")["config"]
    assert saved == to_dict(values_config()) and "ppo" not in saved


@pytest.mark.long
def test_killed_at_random_moments_it_continues_bit_for_bit(start: Start, finished: Path, tmp_path: Path) -> None:
    rng = random.Random(0)
    seconds = read(finished / "summary.json")["seconds"]["total"]
    folder, killed = tmp_path / "run", 0
    while killed < 12:
        child = start(folder, slow_writes=0.002)
        time.sleep(rng.uniform(0.1, 0.8) * seconds)
        if child.ended():
            child.run()
            break
        child.send(signal.SIGKILL)
        child.wait()
        killed += 1
    assert killed, "or nothing was shown"
    start(folder).run()
    assert_same_run(folder, finished)


def test_killed_after_the_ring_has_been_around(start: Start, finished: Path, stopped: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    saved = load_checkpoint(folder / "checkpoint")
    assert saved is not None
    files = saved.state["files"]
    assert [ROOM // 4, files[-1][1]] in files and files[0][0] == 0, "also rows that the ring has lost since"
    start(folder).run()
    assert_same_run(folder, finished)


@pytest.mark.long
def test_where_frames_lie_and_how_often_they_are_saved_may_change(
    start: Start, finished: Path, stopped: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    start(folder, "--replay-device", "host", "--checkpoint-seconds", 0.5).run()
    assert (folder / "episodes.jsonl").read_bytes() == (finished / "episodes.jsonl").read_bytes()
    weights, expected = (load_weights(path / "weights.safetensors")[0] for path in (folder, finished))
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in weights)


def test_a_lost_file_of_the_replay_is_named(achieve: Command, settings: Path, stopped: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    saved = load_checkpoint(folder / "checkpoint")
    assert saved is not None
    lost = folder / "checkpoint" / "rows" / Rows(*saved.state["files"][0]).name
    lost.unlink()
    code, _, err = achieve("train", "--config", settings, "--folder", folder, "--no-report", "--quiet")
    assert code == 2 and lost.name in err and "is missing" in err and err.count("\n") == 1


def test_without_its_replay_a_run_fills_a_new_one(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    child = start(folder, "--no-checkpoint-replay", slow_writes=0.004)
    assert child.wait_for(checkpoint_file(folder).exists)
    child.send(signal.SIGKILL)
    child.wait()
    assert not (folder / "checkpoint" / "rows").exists()
    saved = load_checkpoint(folder / "checkpoint")
    assert saved is not None
    at = saved.state["rollouts"]
    start(folder, "--no-checkpoint-replay").run()
    learned = [row for row in rows(folder / "metrics.jsonl") if row["kind"] == "qrdqn"]
    assert [row["step"] for row in learned] == list(range(BETWEEN, STEPS + 1, BETWEEN))
    after = learned[at]
    assert after["stored"] == BETWEEN and after["updates"] == 0, "first the replay is filled again"
    assert learned[at + 2]["updates"] == BETWEEN / 4
    assert read(folder / "summary.json")["steps"] == STEPS


def test_score_evaluation_video_and_export(finished: Path, achieve: Command, tmp_path: Path) -> None:
    assert achieve("score", finished)[0] == 0
    code, out, err = achieve("eval", finished, "--episodes", 2, "--device", "cpu")
    assert (code, err) == (0, "") and "Final policy, unseen worlds" in out
    code, out, err = achieve("video", finished, "--out", tmp_path / "v.gif", "--max-steps", 5)
    assert (code, err) == (0, "") and "v.gif: 6 frames" in out
    export_agent(finished, tmp_path / "agent.safetensors")
    agent = load_agent(tmp_path / "agent.safetensors")
    assert agent.config == values_config()


def test_agents_of_weights_and_checkpoints_act_alike(finished: Path, stopped: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (6, 64, 64, 3), dtype=np.uint8)
    agent = load_agent(finished)
    greedy = agent.act(frames, greedy=True)
    assert (greedy == agent.logits.argmax(1).numpy()).all()
    probabilities = agent.logits.exp()
    assert probabilities.sum(1).tolist() == pytest.approx([1.0] * 6)
    assert probabilities.amin(1).tolist() == pytest.approx([0.01 / 17] * 6), "epsilon in the end"
    early = load_agent(stopped)
    assert early.act(frames).shape == (6,) and early.network.num_actions == 17


def test_an_agent_sees_and_remembers_what_the_trainer_did(finished: Path) -> None:
    """Memories and values through unlocks and ends of episodes."""
    trainer = QRDQNTrainer(values_config())
    agent = load_agent(finished)
    trainer.network.load_state_dict(agent.network.state_dict(), strict=False)
    trainer.explorer._threshold = 0.05
    object.__setattr__(agent.config.env, "unlock_threshold", 0.05)
    trainer.start()
    reward = done = None
    seen = 0
    for _ in range(260):
        observation = trainer.explorer.observation.numpy().copy()
        trainer.explorer.look()
        trainer.explorer.choose(1.0, trainer.exploration)
        agent.act(observation, reward, done)
        assert agent._memory is not None
        torch.testing.assert_close(agent._memory, trainer.explorer.memory, atol=1e-4, rtol=1e-4)
        assert (agent.logits.argmax(1) == trainer.explorer._chosen).all(), "what it would do but for chance"
        seen += int((agent._memory.abs().sum(1) > 0).sum())
        trainer.explorer.step()
        last = (trainer.replay.row - 1) % trainer.replay.shape.rows
        reward, done = trainer.replay.rewards[last], trainer.replay.dones[last]
    assert seen > 20 and trainer.replay.dones.any()
    trainer.close()


def test_distillation_makes_the_memories_of_the_replay_anew() -> None:
    """Against a walk through every episode with the network as it is then."""
    trainer, stale = (QRDQNTrainer(values_config(qrdqn={"refresh_memory": refresh})) for refresh in (True, False))
    trainer.start()
    trainer.interact(300)
    assert len(trainer.replay.unlocks()[0])
    trainer.distil()
    replay, num_envs = trainer.replay, trainer.config.env.num_envs
    threshold, changed = np.float32(trainer.config.env.threshold), 0
    with torch.no_grad():
        for column in range(num_envs):
            memory = None  # not known before an episode or an unlock has begun within the ring
            for row in range(replay.lowest, replay.row):
                place, index = row % replay.shape.rows, np.array([row * num_envs + column])
                memory = torch.zeros(1, 32) if replay.ages[place, column] == 0 else memory
                if memory is not None:
                    torch.testing.assert_close(replay.memory(index), memory, rtol=1e-4, atol=1e-5)
                if replay.rewards[place, column] > threshold and row + 1 < replay.row:
                    before, after = (trainer.network.encode(replay.images(index + d)) for d in (0, num_envs))
                    memory = torch.nn.functional.normalize(after - before)
                    changed += 1
            if memory is not None:
                torch.testing.assert_close(trainer.explorer.memory[column][None], memory, rtol=1e-4, atol=1e-5)
    assert changed > 10
    stale.start()
    stale.interact(300)
    before = stale.replay.live_memories()
    stale.distil()
    torch.testing.assert_close(stale.replay.live_memories(), before, rtol=0, atol=0)
    for one in (trainer, stale):
        one.close()


@pytest.mark.parametrize("memory", [True, False])
def test_what_a_phase_changes_is_measured_with_the_memories_made_anew(memory: bool) -> None:
    trainer = QRDQNTrainer(values_config(model={"memory": memory}, qrdqn={"replay_size": 4000, "recent_steps": 4000}))
    trainer.start()
    assert "phase_drift" not in trainer.distil().statistics  # no episode has ended
    trainer.interact(400)
    assert trainer.recent is not None
    trainer.recent.gather(1000)
    index = trainer.recent.some(10**6)
    network, replay = copy.deepcopy(trainer.network), trainer.replay
    spread = index[np.unique(np.linspace(0, len(index) - 1, 512).astype(int))]
    old = replay.memory(spread) if memory else None
    found = trainer.distil().statistics
    with torch.no_grad():
        new = replay.memory(spread) if memory else None
        before = network.quantiles(network.encode(replay.images(spread)), old).mean(2)
        after = trainer.network.quantiles(trainer.network.encode(replay.images(spread)), new).mean(2)
    assert found["phase_drift"] == pytest.approx(float((after - before).abs().mean()), rel=1e-5) != 0
    changed = (before.argmax(1) != after.argmax(1)).float().mean()
    assert found["phase_changed_actions"] == pytest.approx(float(changed))
    trainer.close()


def test_where_an_environment_cannot_be_saved_its_episodes_end() -> None:
    own = {"name": "tests.system.own_env:Moody", "unlock_threshold": 0.0}
    config = values_config(env=own)
    first = QRDQNTrainer(config)
    first.start()
    first.interact(60)
    first.envs.pop_episodes()
    tensors, state = first.save()
    assert tensors["explorer/memory"].any() and first.explorer.ages.any(), "or the test shows nothing"
    second = QRDQNTrainer(config)
    second.load(Checkpoint({k: v.clone() for k, v in tensors.items()}, state))
    assert second.restarted and not second.explorer.memory.any() and not second.explorer.ages.any()
    assert second.replay.dones[59].all() and second.replay.row == 60
    second.interact(LIMIT + 1)
    assert second.envs.pop_episodes().tick.min() > 60
    first.close()
    second.close()


@pytest.mark.parametrize("environment", ["minigrid", "heist"])
def test_other_environments(
    environment: str, optional: Optional, achieve: Command, settings: Path, tmp_path: Path
) -> None:
    optional.env(environment)
    folder = tmp_path / "run"
    command = ("train", "--config", settings, "--env", environment, "--folder", folder, "--no-report", "--quiet")
    code, _, err = achieve(*command, "--total-steps", 512, "--qrdqn.learning-starts", 256)
    assert (code, err) == (0, "")
    assert read(folder / "summary.json")["steps"] == 512
    last = [row for row in rows(folder / "metrics.jsonl") if row["kind"] == "qrdqn"][-1]
    assert last["updates"] == BETWEEN / 4 and np.isfinite(last["loss"])
    assert load_agent(folder).config.env.name == environment


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--ppo.gamma", "0.9"], "ppo.gamma has no effect on QR-DQN; its settings are qrdqn.*"),
        (["--model.normalize-value"], "QR-DQN learns returns as they are; use --model.no-normalize-value"),
        (["--qrdqn.kappa", "0"], "qrdqn.kappa is 0.0; it must be above 0"),
        (["--qrdqn.epsilon-end", "1.5"], "qrdqn.epsilon_end is 1.5; it must lie between 0 and 1"),
        (["--distill.value-reg", "frozen"], "distill.value_reg has no effect on QR-DQN"),
        (["--distill.rollouts-per-phase", "4"], "distill.rollouts_per_phase has no effect on QR-DQN"),
        (["--qrdqn.recent-steps", "0"], "qrdqn.recent_steps is 0; it must be above 0"),
        (["--qrdqn.replay-size", "11"], "a replay of 11 steps has 2 for each of 4 environments, and needs 3"),
        (["--qrdqn.learning-starts", "9999"], "qrdqn.learning_starts is 9999, more than a replay of 1200 steps holds"),
        (["--replay-device", "gpu"], "replay_device is 'gpu', but this run is computed on the CPU"),
    ],
)
def test_refusals(achieve: Command, settings: Path, tmp_path: Path, flags: list[str], sentence: str) -> None:
    code, _, err = achieve("train", "--config", settings, "--folder", tmp_path / "run", *flags)
    assert code == 2 and sentence in err and err.count("\n") == 1, err
    assert not (tmp_path / "run").exists()


def test_settings_of_qrdqn_are_refused_by_ppo(achieve: Command, tmp_path: Path) -> None:
    code, _, err = achieve("train", "--preset", "ad", "--folder", tmp_path / "run", "--qrdqn.kappa", "1")
    assert code == 2 and "qrdqn.kappa has no effect on PPO; use --preset qrdqn" in err


def test_configs_of_ppo_are_as_they_were() -> None:
    """Nothing of QR-DQN is in them, and those in results/ are read back unchanged."""
    assert not {"trainer", "qrdqn", "checkpoint_replay", "replay_device"} & to_dict(TrainConfig()).keys()
    saved = sorted((ROOT / "results").glob("*/config.json"))
    assert saved
    for path in saved:
        config = migrate(read(path)["config"])
        again = to_dict(from_dict(config))
        for name, value in config.items():
            assert again[name] | value == again[name] if isinstance(value, dict) else again[name] == value, name


def test_presets_differ_from_one_another_in_distillation_alone() -> None:
    for prefix in ("", "minigrid-", "heist-"):
        plain, distilled = get_preset(f"{prefix}qrdqn"), get_preset(f"{prefix}qrdqn-ad")
        assert plain.qrdqn == distilled.qrdqn and plain.env == distilled.env
        assert plain.total_steps == distilled.total_steps == plain.score_steps
        assert distilled.model.memory and not plain.model.memory
        mazes = {"episodes_per_update": 32, "batch_size": 1024} if prefix == "heist-" else {}
        assert distilled.distill == replace(get_preset("ad").distill, learning_rate=1e-4, **mazes)
        assert not plain.distill.enabled
        assert plain.model.channels == get_preset("ad").model.channels
    assert get_preset("qrdqn").num_rollouts * get_preset("qrdqn").rollout_steps == 1_000_000


def test_bench(achieve: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "tiny-values", values_config())
    code, out, err = achieve("bench", "--preset", "tiny-values", "--device", "cpu", "--rollouts", 1)
    assert (code, err) == (0, "")
    found = re.findall(r"^\| ([\w -]+) \| ([^|]+) \| ([^|]*) \|$", out, re.MULTILINE)
    assert [name for name, _, _ in found if name not in ("part", "---")] == [
        "environment alone", "acting and learning", "distillation phase", "start-up", "a whole run", "peak arithmetic",
    ]  # fmt: skip
    assert f"{STEPS:,} steps of `tiny-values`" in out


def test_a_replay_too_large_is_said_so() -> None:
    config = values_config(qrdqn={"replay_size": 10_000_000_000})
    shape = ReplayShape(config.replay_rows, 4, (64, 64, 3))
    sentence = r"a replay of 10,000,000,000 steps would need 122,880.0 GB of memory \(cpu\), more than the .* there are"
    with pytest.raises(ConfigError, match=sentence):
        make_replay(config, shape, torch.device("cpu"))
