"""Every hyperparameter of a run, in one frozen tree; `achieve.presets` has those that carry the paper's names.

The docstring of a field is its help text on the command line, and its type says which values are accepted. The
resolved config is written into the run folder and is enough to rerun it: :func:`to_dict` and :func:`from_dict` are
inverses. Symbols are the paper's: Algorithm 1, the objectives J, the contrastive losses L and the regularisers R.
"""

from achieve.config.checks import validate
from achieve.config.compare import FREE_FIELDS, RUNTIME_FIELDS, differences, refusal
from achieve.config.saved import from_any_version, from_dict, to_dict
from achieve.config.tree import (
    EXTERNAL,
    DistillConfig,
    EnvConfig,
    ModelConfig,
    PPOConfig,
    QRDQNConfig,
    TrainConfig,
    with_env,
)

__all__ = [
    "EXTERNAL",
    "FREE_FIELDS",
    "RUNTIME_FIELDS",
    "DistillConfig",
    "EnvConfig",
    "ModelConfig",
    "PPOConfig",
    "QRDQNConfig",
    "TrainConfig",
    "differences",
    "from_any_version",
    "from_dict",
    "refusal",
    "to_dict",
    "validate",
    "with_env",
]
