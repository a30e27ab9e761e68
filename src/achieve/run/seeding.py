"""Independent random streams from one seed: worlds, weights, actions and shuffles share no random numbers."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from achieve.errors import ConfigError
from achieve.settings import LARGEST, UnfitError

# Their order matters: a new stream is appended, and leaves the others as they are.
_STREAMS = ("worlds", "weights", "actions", "shuffles", "evaluation", "objectives", "learner")


def stream(seed: int, name: str) -> np.random.SeedSequence:
    """Return the seed sequence of a random stream, which may also have a name of the user's own."""
    own = [] if name in _STREAMS else list(hashlib.sha256(name.encode()).digest())
    number = len(_STREAMS) if own else _STREAMS.index(name)
    # NumPy cuts a large seed into words, the second of which would be taken for the number of a small seed's stream.
    if checked_seed(seed) >= 2**32:
        return np.random.SeedSequence(seed, spawn_key=(number, *own))
    return np.random.SeedSequence([seed, number, *own])


def checked_seed(seed: int) -> int:
    """Return a seed; raise ConfigError for what is none."""
    if not 0 <= seed <= LARGEST:
        raise ConfigError(f"seed is {seed}; it must be {'0 or more' if seed < 0 else 'at most 2^63 - 1'}")
    return seed


def stream_seed(seed: int, name: str) -> int:
    """Return a 63-bit seed of a random stream, for generators that take a number."""
    return int(stream(seed, name).generate_state(1, np.uint64)[0] >> 1)


def env_seeds(seed: int, num_envs: int) -> list[int]:
    """Return a seed for each training environment."""
    return [int(s) for s in stream(seed, "worlds").generate_state(num_envs, np.uint32) >> 1]


def check_numpy_state(state: Any, where: str) -> None:
    """Raise UnfitError unless this is the saved state of a NumPy generator."""
    try:
        np.random.PCG64().state = state
    except (TypeError, ValueError, KeyError, OverflowError, AttributeError) as error:
        raise UnfitError(f"{where} is not a generator's state") from error


@dataclass
class Generators:
    """The random generators of a learner, with a state that can be saved."""

    shuffles: np.random.Generator
    actions: torch.Generator

    @classmethod
    def make(cls, seed: int, device: torch.device) -> "Generators":
        """Return the generators at the beginning of a run."""
        actions = torch.Generator(device)
        actions.manual_seed(stream_seed(seed, "actions"))
        return cls(np.random.default_rng(stream(seed, "shuffles")), actions)

    def save(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Return the state of the NumPy generator as JSON, and that of PyTorch's as a tensor."""
        state = json.loads(json.dumps(self.shuffles.bit_generator.state))
        return state, {"actions": self.actions.get_state()}

    def check(self, state: Any, tensors: dict[str, torch.Tensor]) -> None:
        """Raise UnfitError for a state that :meth:`load` could not restore."""
        check_numpy_state(state, "random")
        saved = tensors.get("actions")
        if saved is None or saved.dtype != torch.uint8 or saved.dim() != 1:
            raise UnfitError("random/actions is missing or not a generator's state")
        if saved.shape == self.actions.get_state().shape:
            try:
                torch.Generator(self.actions.device).set_state(saved)
            except RuntimeError as error:
                raise UnfitError("random/actions is not a generator's state") from error

    def load(self, state: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        """Restore what :meth:`save` returned."""
        self.shuffles.bit_generator.state = state
        saved = tensors["actions"]
        if saved.shape == self.actions.get_state().shape:
            self.actions.set_state(saved)
        else:
            # Saved on the other kind of device, whose generators have another state: seed a new one with it.
            digest = hashlib.blake2b(saved.numpy().tobytes(), digest_size=8).digest()
            self.actions.manual_seed(int.from_bytes(digest, "little") >> 1)
