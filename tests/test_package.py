"""The package as a user gets it: as a wheel far from the repository, and uninstalled from `src`."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def run_python(*args: str, path: Path, cwd: Path) -> str:
    """Runs Python with `achieve` taken from `path`, and returns what it printed."""
    # PYTHONPATH comes before site-packages, so it hides an installed `achieve`.
    done = subprocess.run(
        [sys.executable, *args],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    # A copy: building in place leaves build/ behind, whose stale files the next wheel would hold.
    source = out / "source"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, source],
        check=True,
        capture_output=True,
        timeout=300,
    )
    (built,) = out.glob("achieve-*.whl")
    return built


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    import achieve

    assert wheel.name == f"achieve-{achieve.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (archive.read(n).decode() for n in names if n.endswith("/METADATA"))
        (scripts,) = (archive.read(n).decode() for n in names if n.endswith("/entry_points.txt"))
    outside = [n for n in names if not n.startswith("achieve/") and ".dist-info/" not in n]
    assert outside == []
    assert "achieve/py.typed" in names
    assert any(n.endswith("licenses/LICENSE") for n in names)
    assert "Requires-Dist: crafter==1.8.3" in metadata
    assert "Requires-Python: >=3.11" in metadata
    assert "achieve = achieve.cli:main" in scripts
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "src/achieve/viz/templates").iterdir()]
    sources += (ROOT / "src/achieve/app/static").iterdir()
    assert {path.relative_to(ROOT / "src").as_posix() for path in sources} <= set(names)


def test_wheel_works_outside_the_repository(unpacked: Path, tmp_path: Path) -> None:
    code = (
        "import achieve, gymnasium; print(achieve.__file__); "
        "env = gymnasium.make('achieve/Crafter-v1', seed=1); print(env.reset()[0].shape); "
        "envs = achieve.make_vec('crafter', num_envs=2, seed=0); print(envs.reset()[0].shape)"
    )
    where, single, vector = run_python("-c", code, path=unpacked, cwd=tmp_path).splitlines()[-3:]
    assert Path(where).is_relative_to(unpacked)
    assert single == "(64, 64, 3)"
    assert vector == "(2, 64, 64, 3)"


def test_command_of_the_wheel_says_version_and_help(unpacked: Path, tmp_path: Path) -> None:
    import achieve

    version = run_python("-m", "achieve", "--version", path=unpacked, cwd=tmp_path)
    assert achieve.__version__ in version
    text = run_python("-m", "achieve", "--help", path=unpacked, cwd=tmp_path)
    for command in ("train", "score", "eval", "video", "bench"):
        assert re.search(rf"\b{command}\b", text), f"{command} missing from --help"


def test_runs_uninstalled_from_src(tmp_path: Path) -> None:
    import achieve

    version = run_python("-m", "achieve", "--version", path=ROOT / "src", cwd=tmp_path)
    assert achieve.__version__ in version


def test_import_is_light_and_registers_the_environments(tmp_path: Path) -> None:
    code = (
        "import sys, achieve, gymnasium; "
        "assert not {'torch', 'numba', 'matplotlib', 'PIL'} & set(sys.modules), 'heavy import'; "
        "assert {'achieve/Crafter-v1', 'achieve/CrafterNoReward-v1'} <= set(gymnasium.registry); "
        "print(sorted(set(achieve.__all__) - set(dir(achieve))))"
    )
    assert run_python("-c", code, path=ROOT / "src", cwd=tmp_path).strip() == "[]"


def test_a_run_does_without_the_compiler_of_pytorch(tmp_path: Path) -> None:
    code = (
        "import sys; from achieve.cli import main; "
        "main('train --preset quick --total-steps 2048 --no-report --quiet --folder run'.split()); "
        "print('torch._dynamo' in sys.modules)"
    )
    assert run_python("-c", code, path=ROOT / "src", cwd=tmp_path).split()[-1] == "False", "seconds of imports"


IN_ANY_ORDER = """
import os, torch, numba, scipy.stats  # what takes the time, once for all processes
for first in ("import achieve.train", "from achieve.train import train", "import achieve.cli", ""):
    if os.fork() == 0:
        exec(first)
        import achieve
        from achieve import load_agent, make_vec, train
        print(all(map(callable, (train, load_agent, make_vec))), achieve.train is train, flush=True)
        os._exit(0)
    os.wait()
"""


def test_public_names_are_functions_in_any_import_order(tmp_path: Path) -> None:
    out = run_python("-c", IN_ANY_ORDER, path=ROOT / "src", cwd=tmp_path)
    assert out.split() == ["True"] * 8


def test_unknown_attribute_is_an_attribute_error() -> None:
    import achieve

    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = achieve.nonsense


def test_citation_names_this_version() -> None:
    import achieve

    assert f"version: {achieve.__version__}" in (ROOT / "CITATION.cff").read_text().splitlines()


def test_constraints_pin_every_direct_dependency() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["dev"]
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line[0] != "#"]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
    pinned = {pin.split("==")[0].lower().replace("_", "-") for pin in pins}
    names = {re.split(r"[<>=;\[]", w)[0].lower().replace("_", "-") for w in wanted}
    assert names <= pinned


def test_a_function_of_a_script_that_uses_the_package_reaches_a_worker_process() -> None:
    """As Stable-Baselines3's SubprocVecEnv and Gymnasium's AsyncVectorEnv send the functions that make environments."""
    code = (
        "import achieve, cloudpickle, pickle\n"
        "def make(): return achieve.make_vec\n"
        "assert pickle.loads(cloudpickle.dumps(make))() is achieve.make_vec\n"
        "assert pickle.loads(pickle.dumps(achieve)) is achieve\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
