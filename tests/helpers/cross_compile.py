"""Compiles every kernel that runs would launch on some GPU, for a machine without one.

`python -m tests.helpers.cross_compile 9.0 '' ad ppo` rehearses these presets as on a GPU of that compute capability,
compiles what they ask for down to machine code, or only kernels whose names match a regular expression, and prints a
line of JSON for each. It needs a process of its own, because what is patched here decides about kernels everywhere.

The tensors stay on the CPU. What asks whether a device is a GPU, and which, is told that it is; streams and graphs are
left out, since they launch the same kernels.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from achieve.algo import collect, distill, pipelined
from achieve.algo import learner as ppo_learner
from achieve.algo import qrdqn as qrdqn_learner
from achieve.config import TrainConfig
from achieve.nn import cuda_graphs
from achieve.nn.kernels import available, dense, fused, norm_conv, tower
from achieve.presets import get_preset
from achieve.trainers import ppo as ppo_trainer
from achieve.trainers import rehearsal, warm
from tests.helpers.gpus import SHARED_KIB, THREADS, Capability

MINIBATCH = 512
"""Images from which on a minibatch's kernels are those of all larger ones."""


class AbsentGPU(rehearsal.Elsewhere):
    """A GPU that kernels are asked for and never launched on."""

    def get_current_stream(self, device: int) -> int:
        """Some number."""
        return 0


class Requests:
    """Takes the place of the processes that a rehearsal compiles in: remembers what it is asked to compile."""

    def __init__(self) -> None:
        self.kernels: list[tuple[str, str, str]] = []

    def submit(self, function: Any, module: str, name: str, kind: str, target: Any) -> None:
        """Remember a kernel."""
        self.kernels.append((module, name, kind))


class NoEvent:
    """Of a stream that is not there."""

    def __init__(self, **_: Any) -> None:
        pass


class NoArithmetic(TorchDispatchMode):
    """Within it the library's convolutions and products are zeros, which take no time; nobody reads what they are."""

    LEFT_OUT = frozenset({"aten::convolution", "aten::convolution_backward", "aten::mm", "aten::addmm", "aten::bmm"})

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.name not in self.LEFT_OUT or "out" in kwargs:
            return func(*args, **kwargs)
        args, kwargs = tree_map_only(Tensor, lambda x: x.to("meta"), (args, kwargs))
        return tree_map_only(Tensor, lambda x: torch.zeros_like(x, device="cpu"), func(*args, **kwargs))


def pretend(capability: Capability) -> None:
    """Let the package choose its kernels as on a GPU of this compute capability."""
    gpu = torch.device("cuda", 0)
    properties = SimpleNamespace(shared_memory_per_block_optin=SHARED_KIB[capability] * 1024)
    cuda: Any = torch.cuda
    cuda.get_device_capability = lambda device=None: capability
    cuda.get_device_properties = lambda device=None: properties
    cuda.Event = NoEvent
    cuda.current_stream = lambda: SimpleNamespace(wait_event=lambda event: None)

    def as_there(function: Callable[[torch.device], Any]) -> Any:
        plain = getattr(function, "__wrapped__", function)
        return cache(lambda device: plain(gpu))

    modules: Any = (available, dense, fused, norm_conv, tower)
    for module in modules:
        for name in ("has_tma", "has_gluon", "_stages"):
            if hasattr(module, name):
                setattr(module, name, as_there(getattr(norm_conv, name)))
    for module in (dense, tower):
        module.supports = as_there(module.supports)
    modules[0]._run_on = lambda index: True  # none is there to try a kernel out on
    compiles_for = available.compiles_for
    modules[0].compiles_for = lambda device, *, enabled: compiles_for(gpu, enabled=enabled)
    called_runner: Any = cuda_graphs.GraphRunner
    init = called_runner.__init__
    called_runner.__init__ = lambda self, state, **how: init(self, state, **{**how, "enabled": False})
    called_beside: Any = cuda_graphs.Beside
    begin = called_beside.__init__
    called_beside.__init__ = lambda self, **how: begin(self, **{**how, "enabled": False})
    # What skipped launches leave is whatever was in memory: PyTorch's own optimiser may find it not to be finite.
    for learner in (distill, ppo_learner, qrdqn_learner):
        if hasattr(learner, "check_finite"):
            learner.check_finite = lambda *_: None
    # Environments step in parts.
    trainer: Any = ppo_trainer
    trainer.make_collector = lambda network, envs, *given, **how: (
        pipelined.PipelinedCollector if len(envs.parts) > 1 else collect.Collector
    )(network, envs, *given, **how)
    # Batches are padded to the sizes that graphs have.
    padding: Any = distill.Distiller
    padding._cuda_graphs = property(lambda self: True, lambda self, value: None)


def smaller(config: TrainConfig) -> TrainConfig:
    """The same run with two minibatches to a rollout, and not more images than make a difference."""
    if config.trainer != "ppo":
        return config
    ppo = config.ppo
    size = min(MINIBATCH, config.rollout_steps // ppo.num_minibatches)
    return replace(config, ppo=replace(ppo, rollout_length=2 * size // config.env.num_envs, num_minibatches=2))


def find_kernels(config: TrainConfig, target: GPUTarget) -> list[tuple[str, str, str]]:
    """What a run would launch: module, name, and the kind of its arguments in Triton's words."""
    spaces = warm.known_spaces(config)
    assert spaces is not None
    config = replace(smaller(config), device="cpu", torch_threads=torch.get_num_threads())
    envs = rehearsal.MadeUpEnvs(config.env.num_envs, *spaces, rehearsal.parts_of(replace(config.env, threads=8)))
    driver.set_active(AbsentGPU(target))
    requests = Requests()
    with rehearsal.compiling_in(requests), NoArithmetic():  # type: ignore[arg-type]
        rehearsal.rehearse(config, envs)
    return requests.kernels


def short(module: str, name: str) -> str:
    """What to call a kernel."""
    return f"{module.rpartition('.')[2]}.{name}"


def compiled(module: str, name: str, kind: str, target: GPUTarget) -> dict[str, Any]:
    """Compile a kernel to machine code; say what it takes, or what is wrong."""
    about: dict[str, Any] = {"kernel": short(module, name), "kind": kind}
    try:
        kernel = getattr(import_module(module), name).preload(kind)
    except Exception as error:
        return {**about, "error": f"{type(error).__name__}: {error}"}
    own = {"shared": kernel.metadata.shared, "warps": kernel.metadata.num_warps}
    return {**about, **own, **resources(kernel.asm["cubin"])}


def resources(cubin: bytes) -> dict[str, int]:
    """Registers and bytes of local memory of each thread, by NVIDIA's own tool."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert found is not None, said
    return {"registers": int(found[1]), "stack": int(found[2])}


def main(capability: str, only: str, *presets: str) -> None:
    """Print what each kernel of these presets takes, or why it does not compile."""
    major, minor = map(int, capability.split("."))
    target = GPUTarget("cuda", 10 * major + minor, THREADS)
    pretend((major, minor))
    kinds: dict[tuple[str, str, str], str] = {}
    for preset in presets:
        for kernel in find_kernels(get_preset(preset), target):
            kinds.setdefault(kernel, preset)
    for (module, name, kind), preset in kinds.items():
        if re.search(only, short(module, name)):
            print(json.dumps({"preset": preset, **compiled(module, name, kind, target)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
