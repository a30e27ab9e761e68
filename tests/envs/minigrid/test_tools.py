"""What surrounds the environment: the benchmark, the pictures, and what is said where MiniGrid is missing."""

from __future__ import annotations

import json
import math
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from achieve.envs.minigrid import DoorKeyTreeEnv, Tree, pixel_env
from achieve.envs.minigrid.engine import compiled
from examples.minigrid_pictures import graph_positions, level_picture, main

ROOT = pathlib.Path(__file__).resolve().parents[3]


def run_python(*arguments: str, cwd: pathlib.Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run([sys.executable, *arguments], env=env, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_benchmark_reports_every_table(tmp_path: pathlib.Path) -> None:
    report, data = tmp_path / "minigrid.md", tmp_path / "minigrid.json"
    result = run_python(
        str(ROOT / "benchmarks" / "minigrid.py"),
        *("--rounds", "1", "--seconds", "0.05", "--markdown", str(report), "--json", str(data)),
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    tables = {table["title"]: table["rows"] for table in json.loads(data.read_text())["tables"]}
    assert list(tables) == [
        "Machine and versions",
        "One thread, random actions, resets and images included",
        "Where the time goes",
        "A random agent",
        "A random agent with a key in hand",
    ]
    names, rates, *_ = zip(*tables["One thread, random actions, resets and images included"], strict=True)
    assert names[0] == "MiniGrid, one environment" and len(names) == 6 and all(rate > 0 for rate in rates)
    assert [row[0] for row in tables["Where the time goes"]] == ["reset", "action", "image"]
    assert all(math.isfinite(value) for row in tables["Where the time goes"] for value in row[1:])
    assert [row[0] for row in tables["A random agent"]] == list(Tree.make().achievement_names)
    with_key = {keys: shares for keys, *shares in tables["A random agent with a key in hand"]}
    for room_size in (4, 5):
        kept, droppable = (with_key[f"{rule}, room_size {room_size}"] for rule in ("kept", "droppable"))
        assert min(kept) > 5 > max(droppable), "what makes learning possible at each stage"
    for title in tables:
        assert f"### {title}" in report.read_text() and f"### {title}" in result.stdout


def test_without_minigrid_the_command_to_install_it_is_named(tmp_path: pathlib.Path) -> None:
    script = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "minigrid":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
import achieve.envs.minigrid.vec
"""
    result = run_python("-c", script, cwd=tmp_path)
    assert result.returncode != 0
    last = result.stderr.strip().splitlines()[-1]
    assert "needs the package minigrid: pip install 'minigrid>=3.2'" in last


@pytest.mark.long
def test_compiling_is_announced_and_its_result_kept(tmp_path: pathlib.Path) -> None:
    script = """
import os
os.environ["NUMBA_CACHE_DIR"] = "cache"
import achieve.envs.minigrid.engine as engine
from achieve.envs.minigrid import DoorKeyTreeVecEnv
def compiled_calls():
    parts = (engine.reset_all, engine.draw_all, engine.step_all)
    return sum(sum(part.stats.cache_misses.values()) for part in parts)
vec = DoorKeyTreeVecEnv(2)
made = compiled_calls()
vec.reset(), vec.step([0, 0]), vec.observe()
DoorKeyTreeVecEnv(3, depth=2, infos="none").reset()
print(made, compiled_calls())
"""
    first, second = (run_python("-c", script, cwd=tmp_path) for _ in range(2))
    assert (first.stdout, second.stdout) == ("3 3\n", "0 0\n"), first.stderr + second.stderr
    assert first.stderr.count("compiling MiniGrid") == 1 and second.stderr == ""


def test_without_a_folder_to_keep_it_in_code_is_compiled_all_the_same() -> None:
    space: dict = {}
    exec("def double(x): return 2 * x", space)  # a function without a file: Numba cannot keep its code
    assert compiled(space["double"])(21) == 42


def test_importing_prints_nothing(tmp_path: pathlib.Path) -> None:
    result = run_python("-W", "error", "-c", "import achieve.envs.minigrid", cwd=tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_level_pictures_show_the_level_and_the_observation() -> None:
    env = DoorKeyTreeEnv()
    env.reset(seed=4)
    picture = level_picture(env)
    side = 13 * 32
    assert (picture[:, :side] == env.get_frame()).all()
    expected = Image.fromarray(pixel_env().reset(seed=4)[0]).resize((side, side), Image.Resampling.NEAREST)
    assert (picture[:, -side:] == np.asarray(expected)).all()


def test_the_graph_is_drawn_without_overlap_and_from_left_to_right() -> None:
    for tree in (Tree.make(), Tree.make(3, 4), Tree((None, 0, 0, 2, 1, 2))):
        at = dict(zip(tree.achievement_names, map(tuple, graph_positions(tree)), strict=True))
        assert len(set(at.values())) == len(at)
        assert all(at[after][0] == at[before][0] + 1 for before, after in tree.requirements)


def test_the_pictures_command(tmp_path: pathlib.Path) -> None:
    main([str(tmp_path / "tree"), "--depth", "3", "--branching", "2"])
    for part in ("level", "graph"):
        with Image.open(tmp_path / f"tree-{part}.png") as image:
            assert np.asarray(image).std() > 10
