"""The benchmark of several processes: each is timed with each change, and changes are undone."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from achieve.algo import objectives
from benchmarks import together
from benchmarks.power import Meter
from benchmarks.together import VARIANTS, episodes, main
from tests.conftest import Optional


def test_episodes_fill_the_environments() -> None:
    made = episodes(20, 4)
    steps = np.concatenate([episode.steps for episode in made])
    assert len(np.unique(steps)) == len(steps)
    assert all((np.diff(episode.steps) == 4).all() for episode in made), "one environment each"
    assert all(9 <= len(episode.unlocks) < 16 and episode.unlocks.max() < len(episode) - 1 for episode in made)


def test_changes_are_undone(optional: Optional) -> None:
    optional.check(find_spec("triton"), "the package triton")
    from achieve.nn.kernels import norm_conv, tower

    def state() -> list[object]:
        return [dict(vars(owner)) for owner in (norm_conv, tower._Gradients, objectives)]

    before = state()
    for name, change in VARIANTS.items():
        change()
        assert (state() == before) is (name == "in use"), name
        together._undo()
        assert state() == before


@pytest.mark.long
def test_the_report(tmp_path: Path) -> None:
    path = tmp_path / "together.json"
    short = ["--processes", "2", "--episodes", "4", "--seconds", "0.05", "--device", "cpu", "--json", str(path)]
    main(["--preset", "quick", *short, "--only", "in use", "padding"])
    _, times = json.loads(path.read_text())["tables"]
    assert [row[:2] for row in times["rows"]] == [
        [name, objective] for name in ("in use", "padding") for objective in ("matching", "prediction")
    ]
    assert all(0 < least <= mean <= most for _, _, mean, least, most, *_ in times["rows"])


class Library:
    """NVIDIA's, with one GPU that has used so many millijoules."""

    def __init__(self, used: int | None) -> None:
        self.used = used

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:
        handle._obj.value = 7
        return 0 if uuid == b"GPU-1234" else 6

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, energy: Any) -> int:
        assert handle.value == 7
        if self.used is None:
            return 3
        energy._obj.value = self.used
        return 0


def test_energy() -> None:
    assert Meter("GPU-1234", lambda name: Library(2**40 + 500)).joules() == (2**40 + 500) / 1000
    for nobody in (Meter("GPU-5", lambda name: Library(1)), Meter("GPU-1234", lambda name: Library(None)), Meter(None)):
        assert np.isnan(nobody.joules())


def test_no_energy_without_the_library() -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    assert np.isnan(Meter("GPU-1234", missing).joules())


@pytest.mark.long
def test_a_process_that_fails_ends_it(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="ended with code 1"):
        main(["--preset", "quick", "--processes", "1", "--episodes", "0", "--device", "cpu"])


@pytest.mark.parametrize("given", [[], ["out.json", "1"], ["towers", "here"], ["out.json"]])
def test_tiles_are_timed_on_a_gpu_alone(
    given: list[str], capsys: pytest.CaptureFixture[str], optional: Optional
) -> None:
    optional.check(find_spec("triton"), "the package triton")
    from benchmarks import convolutions

    with pytest.raises(SystemExit):
        convolutions.main(given)
    assert "usage" in capsys.readouterr().err
