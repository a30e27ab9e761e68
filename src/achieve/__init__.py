"""Achievement distillation on an exact, fast Crafter.

    from achieve import load_agent, make_vec, record, train

`make_vec` makes vector environments, `train` runs PPO or PPO with achievement distillation,
`load_agent` gives a trained agent that acts, `record` writes down the run of an agent of another library.
`import achieve` also registers `achieve/Crafter-v1` and `achieve/CrafterNoReward-v1` with Gymnasium.

The names above are imported on first use, so that `import achieve` needs neither torch nor Numba. It sets
`OMP_WAIT_POLICY=passive` unless that is set, see :mod:`achieve.openmp`.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from achieve.envs import register
from achieve.openmp import ask_to_sleep

if TYPE_CHECKING:
    from achieve.agent import load_agent
    from achieve.envs import make_vec
    from achieve.run.recorder import record
    from achieve.train import train

__all__ = ["__version__", "load_agent", "make_vec", "record", "train"]
__version__ = "0.1.0"

_LAZY = {
    "load_agent": "achieve.agent",
    "make_vec": "achieve.envs",
    "record": "achieve.run.recorder",
    "train": "achieve.train",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'achieve' has no attribute {name!r}")
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_LAZY))


class _Package(ModuleType):
    """Keeps `achieve.train` the function, which importing the submodule of that name would otherwise replace."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _LAZY and isinstance(value, ModuleType):
            return
        super().__setattr__(name, value)

    def __reduce__(self) -> Any:
        # cloudpickle, by which worker processes get functions of a script, knows only modules of the plain class.
        return import_module, (__name__,)


sys.modules[__name__].__class__ = _Package


ask_to_sleep()
register()
