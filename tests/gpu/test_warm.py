"""A run finds its kernels compiled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.gpu.test_training import CONFIG

pytestmark = pytest.mark.gpu

SCRIPT = """
import json, pathlib, sys
from achieve.config import from_dict
from achieve.train import train
from achieve.trainers.warm import WarmUp, known_spaces, marker

cache, folder, config = pathlib.Path(sys.argv[1]), sys.argv[2], from_dict(json.loads(sys.argv[3]))

def kernels():
    return {path.parent.name: path.stem for path in cache.glob("*/*.cubin")}

spaces = known_spaces(config)
WarmUp(config, spaces).wait()
assert marker(config, spaces).read_text() == "done\\n"
before = kernels()
train(config, folder, quiet=True)
print(json.dumps([sorted(before.values()), sorted(name for key, name in kernels().items() if key not in before)]))
"""


def test_a_run_compiles_next_to_nothing_after_its_rehearsal(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    environ = {**os.environ, "TRITON_CACHE_DIR": str(cache)}
    arguments = [str(cache), str(tmp_path / "run"), json.dumps(asdict(CONFIG))]
    done = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ahead, late = json.loads(done.stdout.splitlines()[-1])
    assert len(ahead) > 50
    # Sizes that few episodes have may still have kernels of their own.
    assert len(late) <= 5, late
