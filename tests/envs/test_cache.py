"""Compiled code between runs: kept, found again, and never out of date."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import achieve
from achieve.envs.crafter import CrafterEnv, cache, compiler, mod, sources

PACKAGE = Path(achieve.__file__).parent

# Compiles the smaller of the two entry points: a few seconds, and the same store behind it.
TERRAIN = """
from achieve.envs.crafter.batch import make_terrain
from achieve.envs.crafter.compiler import original
blocks = make_terrain(original(), (9, 9)).parts[0]
print(float(blocks["weights"].sum()))
"""
PLAY = """
from achieve.envs.crafter import CrafterEnv
env = CrafterEnv(seed=0)
env.reset()
print(env.step(0)[4]["inventory"]["food"])
"""


@pytest.fixture
def copied(tmp_path) -> Path:
    """A copy of the package that may be edited."""
    shutil.copytree(PACKAGE, tmp_path / "src" / "achieve", ignore=shutil.ignore_patterns("*.pyc"))
    return tmp_path


def run(folder: Path, script: str, **environment: str) -> tuple[str, str]:
    variables = {
        **os.environ,
        "PYTHONPATH": str(folder / "src"),
        "ACHIEVE_CACHE_DIR": str(folder / "cache"),
        "PYTHONDONTWRITEBYTECODE": "1",
        **environment,
    }
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=variables,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def edit(folder: Path, module: str, old: str, new: str) -> None:
    path = folder / "src/achieve/envs/crafter" / module
    text = path.read_text()
    assert text.count(old) == 1
    stat = path.stat()
    path.write_text(text.replace(old, new))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # contents count, not dates


@pytest.fixture(scope="module")
def first_start(tmp_path_factory) -> tuple[Path, str, str]:
    """A copy of the package with what its first start compiled, printed and said."""
    folder = tmp_path_factory.mktemp("started")
    shutil.copytree(PACKAGE, folder / "src" / "achieve", ignore=shutil.ignore_patterns("*.pyc"))
    return folder, *run(folder, TERRAIN)


@pytest.fixture
def started(first_start, tmp_path) -> tuple[Path, str]:
    """Such a copy, to be edited, and what the first start printed."""
    shutil.copytree(first_start[0], tmp_path, dirs_exist_ok=True)
    return tmp_path, first_start[1]


def test_second_start_finds_what_the_first_compiled(first_start):
    folder, first, said = first_start
    assert said.count("compiling Crafter") == 1
    second, said = run(folder, TERRAIN)
    assert second == first and said == ""


def test_two_processes_compile_once(copied):
    script = f"""
import time
from achieve.envs.crafter.ahead import compiling_ahead
from achieve.envs.crafter.sources import cache_folder, is_compiled
assert not is_compiled()
with compiling_ahead():
    while not list(cache_folder().glob("build_terrain-*.lock")):
        time.sleep(0.05)
    {TERRAIN.strip().replace(chr(10), chr(10) + "    ")}
    stats = original().build_terrain.stats
    print(len(stats.cache_hits), len(stats.cache_misses))
"""
    output, said = run(copied, script)
    assert output.splitlines()[1] == "1 0"
    assert said.count("compiling Crafter") <= 1  # why it waits, if it has to


def test_it_is_known_whether_the_game_is_compiled():
    CrafterEnv(seed=0).reset()
    assert sources.is_compiled()


def test_an_edit_in_another_file_takes_effect_at_the_next_start(started):
    copied, before = started
    # `simplex` is called by the entry point's file, not that file itself.
    edit(copied, "simplex.py", "weights[n, 0] = fade * fade", "weights[n, 0] = 2 * fade * fade")
    after, said = run(copied, TERRAIN)
    assert "compiling" in said
    assert float(after) != float(before)
    edit(copied, "simplex.py", "weights[n, 0] = 2 * fade * fade", "weights[n, 0] = fade * fade")
    again, said = run(copied, TERRAIN)
    assert again == before and said == ""


@pytest.mark.long
def test_an_edited_rule_takes_effect_in_the_game(copied):
    assert run(copied, PLAY)[0] == "9"
    edit(copied, "player.py", "if world.hunger > 25:", "if world.hunger > 0:")
    assert run(copied, PLAY)[0] == "8"


def test_old_files_are_forgotten(started):
    copied, _ = started
    (old,) = (copied / "cache").rglob("*.nbc")
    os.utime(old, (0, 0))
    edit(copied, "simplex.py", "NORM = 103", "NORM = 104")
    run(copied, TERRAIN)
    (new,) = (copied / "cache").rglob("*.nbc")
    assert new != old


def test_damaged_files_are_replaced(started):
    copied, before = started
    files = [path for path in (copied / "cache").rglob("*") if path.is_file()]
    assert files
    for path in files:
        path.write_bytes(path.read_bytes()[:40])
    again, said = run(copied, TERRAIN)
    assert again == before and "compiling" in said
    assert run(copied, TERRAIN) == (before, "")


def test_without_its_folder_it_uses_a_temporary_one(copied):
    blocked = copied / "blocked"
    blocked.write_text("a file, not a folder")
    temporary = copied / "temporary"
    temporary.mkdir()
    where = {"ACHIEVE_CACHE_DIR": str(blocked / "x"), "TMPDIR": str(temporary)}
    first, said = run(copied, TERRAIN, **where)
    assert "compiling" in said
    assert run(copied, TERRAIN, **where) == (first, "")
    assert list(temporary.rglob("*.nbc"))


def test_without_any_folder_it_still_runs(copied):
    script = "from achieve.envs.crafter import cache; cache.cache_folder = lambda: None\n" + TERRAIN
    output, said = run(copied, script)
    assert float(output) > 0 and said.count("compiling") == 1
    assert not (copied / "cache").exists()


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="there are no owners of files")
def test_folders_that_others_can_write_to_are_not_trusted(monkeypatch, tmp_path):
    shared = tmp_path / "shared"
    (shared / "crafter").mkdir(parents=True)
    (shared / "crafter").chmod(0o777)
    monkeypatch.setenv("ACHIEVE_CACHE_DIR", str(shared))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert cache.cache_folder().parent.parent == tmp_path
    (shared / "crafter").chmod(0o700)
    assert cache.cache_folder() == shared / "crafter"


def test_every_source_of_compiled_code_is_part_of_the_key():
    known = {*sources.MODULES, *sources.SUPPORT, "typing", "sources"}
    for name in sources.MODULES:
        tree = ast.parse((PACKAGE / "envs/crafter" / f"{name}.py").read_text())
        used = {
            node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.level == 1
        }
        assert used <= known, name


def test_changed_rules_have_keys_of_their_own():
    def one(world):
        return 1

    def two(world):
        return 2

    names = [
        compiler.original(),
        mod("one", zombie_damage=one),
        mod("two", zombie_damage=two),
        mod("three", RIPE_AFTER=30),
    ]
    assert len({rules.fingerprint for rules in names}) == 4
    assert mod("one", zombie_damage=one).fingerprint == names[1].fingerprint


def test_wrong_changes_are_named():
    with pytest.raises(ValueError, match="'zombi'"):
        mod("wrong", zombi=lambda world, index: None)
    with pytest.raises(TypeError, match=r"\(world, index\)"):
        mod("wrong", zombie=lambda world: None)
    with pytest.raises(TypeError, match="function"):
        mod("wrong", zombie=3)
    with pytest.raises(ValueError, match="name of its own"):
        mod("crafter", RIPE_AFTER=3)
