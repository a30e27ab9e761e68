"""The networks: encoder, the heads of each learner, and the nets that only the auxiliary phase uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int, Shaped, UInt8
from torch import Tensor, nn
from torch.nn import functional as F

from achieve.config import ModelConfig
from achieve.errors import ConfigError
from achieve.nn.direct import Linear
from achieve.nn.encoder import ImageEncoder, ResidualEncoder, SizePreservingEncoder, make_encoder
from achieve.nn.init import orthogonal, scale_rows
from achieve.nn.kernels import available
from achieve.nn.layers import MLP
from achieve.nn.normalizer import ValueNormalizer
from achieve.nn.padding import Real
from achieve.nn.recurrent import RecurrentCore

if TYPE_CHECKING:
    from achieve.nn.kernels.flat import FlatParameters


@runtime_checkable
class FastEncoder(Protocol):
    """Another way to compute an image encoder: its convolutional part, and what makes latents of that."""

    flat: FlatParameters

    @property
    def note(self) -> str: ...

    def cache_weights(self) -> None: ...

    def features(self, images: Tensor, *, cached: bool, real: Real | None = None) -> Tensor: ...

    def head(self, features: Tensor) -> Tensor: ...

    def finish_backward(self) -> None: ...


class FiLM(nn.Module):
    """``(1 + eta(a)) * phi + delta(a)``: an action's scale and shift of the latent.

    There are only as many results as actions, so the MLP runs once per action and its rows are picked.
    """

    one_hot: Tensor

    def __init__(self, num_actions: int, size: int, *, double: bool) -> None:
        super().__init__()
        self.register_buffer("one_hot", torch.eye(num_actions), persistent=False)
        outputs = [size, size] if double else [2 * size]
        self.nets = nn.ModuleList([MLP(num_actions, [size], out) for out in outputs])

    def forward(self, phi: Float[Tensor, "B D"], actions: Int[Tensor, " B"]) -> Float[Tensor, "B D"]:
        """Return the latents as the actions change them."""
        eta, delta = self.table().index_select(0, actions).chunk(2, dim=1)
        return (1 + eta) * phi + delta

    def table(self) -> Float[Tensor, "A D2"]:
        """Return ``eta`` and ``delta`` of each action, one after the other."""
        tables = [net(self.one_hot) for net in self.nets]
        return tables[0] if len(tables) == 1 else torch.cat(tables, dim=1)


class AchievementNetwork(nn.Module):
    """``phi`` and ``psi`` of the paper: what distillation needs, whoever learns.

    Observations have this ``observation_shape`` and ``dtype``. A learner's network adds its heads. ``memory`` arguments
    are [B, D] and ignored by a network without memory.
    """

    def __init__(
        self,
        config: ModelConfig,
        observation_shape: tuple[int, ...],
        num_actions: int,
        *,
        auxiliary: bool,
        dtype: torch.dtype = torch.uint8,
    ) -> None:
        super().__init__()
        self.config = config
        self.num_actions = num_actions
        self.observation_shape, self.observation_dtype = observation_shape, dtype
        self.encoder = make_encoder(observation_shape, config, dtype)
        size = config.hidden_size
        width = 2 * size if config.memory else size
        self.add_heads(width)
        self.film = FiLM(num_actions, size, double=config.film == "double") if auxiliary else None
        self.predictor = MLP(width, [size], size) if auxiliary else None

        self._fast: FastEncoder | None = None
        self._autocast: torch.dtype | None = None

    def add_heads(self, width: int) -> None:
        """The learner's own layers, on this many inputs; drawn after the encoder and before the auxiliary nets."""
        raise TypeError("a subclass must add its own heads")

    @property
    def latent_size(self) -> int:
        return self.config.hidden_size

    def use_precision(self, precision: str, *, fused: bool) -> str:
        """Choose the arithmetic of the convolutions; call it once the network is on its device.

        ``auto`` is fp16 with the hand-written kernels where there are any for this network and device and ``fused``
        asks for them, else TF32 on a GPU, as the published runs had, and float32 on a CPU. Returns a description of
        what is in force.
        """
        self._fast, self._autocast = None, None
        half = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision)
        torch.backends.cudnn.allow_tf32 = precision in ("auto", "tf32")
        device = next(self.parameters()).device
        wanted = fused and (half is not None or precision == "auto")
        if available.encoder_kernels(self.encoder, device, enabled=wanted):
            self._fast = fast = _fast_encoder(self.encoder, half or torch.float16, list(self.parameters()))
            return f"{'fp16' if precision == 'auto' else precision}, fused{fast.note}"
        missing = available.compiles_for(device, enabled=wanted)
        note = ", plain (there are no fused kernels for this encoder)" if missing else ""
        if precision == "auto":
            return f"tf32{note}" if device.type == "cuda" else "fp32"
        if precision == "fp16":
            raise ConfigError(
                "fp16 needs the fused kernels: a GPU, Triton, the residual encoder with norms on images of at most 16 "
                "channels or the spcnn encoder without on images of at most 12, and no --no-compile; "
                "use --precision auto"
            )
        if precision == "bf16":
            self._autocast = torch.bfloat16
        return precision + note

    def cache_weights(self) -> None:
        """Prepare for calls of :meth:`encode` with ``cached``, until the weights change."""
        if self._fast is not None:
            self._fast.cache_weights()

    def encode(
        self, images: Shaped[Tensor, "B ..."], *, cached: bool = False, real: Real | None = None
    ) -> Float[Tensor, "B D"]:
        """Return ``phi``, in float32.

        ``cached`` may use weights converted at the last :meth:`cache_weights`. Latents of images that are not ``real``
        are finite and mean nothing; no gradient may flow into them.
        """
        if self._fast is not None:
            return self._fast.head(self._fast.features(images, cached=cached, real=real))
        with torch.autocast(images.device.type, dtype=self._autocast, enabled=self._autocast is not None):
            if not isinstance(self.encoder, ImageEncoder):
                return cast(Tensor, self.encoder(images)).float()
            features = self.encoder.features(images)
        return self.encoder.head(features)

    @property
    def flat(self) -> FlatParameters | None:
        """All parameters in one buffer, with the hand-written kernels."""
        return None if self._fast is None else self._fast.flat

    @property
    def fused(self) -> bool:
        """Whether the hand-written kernels compute the encoder's convolutional part."""
        return self._fast is not None

    def fast_features(self, images: UInt8[Tensor, "B H W C"]) -> Float[Tensor, "B C2 H2 W2"]:
        """Return what the fused convolutions make of images, with the weights of the last :meth:`cache_weights`."""
        assert self._fast is not None
        return self._fast.features(images, cached=True)

    def finish_backward(self) -> None:
        """To be called between a backward pass through the encoder and the use of its gradients."""
        if self._fast is not None:
            self._fast.finish_backward()

    def predict(
        self, phi: Float[Tensor, "B D"], actions: Int[Tensor, " B"], memory: Float[Tensor, "B M"] | None
    ) -> Float[Tensor, "B D"]:
        """Return ``psi``, the unit vectors of state-action pairs."""
        return F.normalize(self.predict_direction(phi, actions, memory), dim=1)

    def predict_direction(
        self, phi: Float[Tensor, "B D"], actions: Int[Tensor, " B"], memory: Float[Tensor, "B M"] | None
    ) -> Float[Tensor, "B D"]:
        """Return ``psi`` before it is made a unit vector."""
        if self.film is None or self.predictor is None:
            raise RuntimeError("this network was built without the auxiliary nets")
        return cast(Tensor, self.predictor(self._join(self.film(phi, actions), memory)))

    def _join(self, x: Tensor, memory: Tensor | None) -> Tensor:
        remembered = self._remembered(memory)
        return x if remembered is None else torch.cat([x, remembered], dim=1)

    def _remembered(self, memory: Tensor | None) -> Tensor | None:
        """Return the memory if this network has one, else None."""
        if not self.config.memory:
            return None
        if memory is None:
            raise ValueError("this network needs the memory of the last achievement")
        return memory


class ActorCritic(AchievementNetwork):
    """PPO's network: a policy and a value, with a recurrent core between them and the latent if the config has one."""

    def add_heads(self, width: int) -> None:
        config = self.config
        self.core: RecurrentCore | None = None
        for_policy = for_value = width
        if config.core != "none":
            self.core = RecurrentCore(config.core, config.hidden_size, config.core_size)
            for_policy += config.core_size - (config.hidden_size if config.core_place == "alone" else 0)
            for_value = for_policy if config.core_heads == "both" else width
        self.policy = Linear(for_policy, self.num_actions)
        self.critic = Linear(for_value, config.value_hidden) if config.value_hidden else None
        self.value = Linear(config.value_hidden or for_value, 1)
        orthogonal(self.policy, 0.01)
        orthogonal(self.value, 1.0 if config.value_hidden else 0.1)
        self.normalizer = ValueNormalizer(enabled=config.normalize_value)

    @property
    def state_size(self) -> int:
        """Numbers of the core's state; 0 without a core."""
        return 0 if self.core is None else self.core.state_size

    @property
    def has_plain_heads(self) -> bool:
        """Whether each head is one linear layer on latent and memory, as the hand-written kernels have it."""
        return self.core is None and self.critic is None

    def use_precision(self, precision: str, *, fused: bool) -> str:
        if self.core is not None:
            self.core.fused = available.small_kernels(next(self.parameters()).device, enabled=fused)
        return super().use_precision(precision, fused=fused)

    def heads(
        self,
        phi: Float[Tensor, "B D"],
        memory: Float[Tensor, "B M"] | None,
        output: Float[Tensor, "B H"] | None = None,
    ) -> tuple[Float[Tensor, "B A"], Float[Tensor, " B"]]:
        """Return the policy's logits, and values in normalised units; ``output`` is the core's, if there is one."""
        if self._fast is not None and self.has_plain_heads and (memory is not None or not self.config.memory):
            from achieve.nn.kernels.heads import heads

            return heads(phi, memory if self.config.memory else None, self.policy, self.value)
        x = seen = self._join(phi, memory)
        if self.core is not None:
            if output is None:
                raise ValueError("this network needs the output of its recurrent core")
            seen = self._join(output if self.config.core_place == "alone" else torch.cat([phi, output], dim=1), memory)
            if self.config.core_heads == "both":
                x = seen
        if self.critic is not None:
            x = self.critic(x)
        return self.policy(seen), self.value(x).squeeze(1)

    def step(
        self, phi: Float[Tensor, "B D"], memory: Float[Tensor, "B M"] | None, state: Float[Tensor, "B S"]
    ) -> tuple[Float[Tensor, "B A"], Float[Tensor, " B"], Float[Tensor, "B S"]]:
        """Return what :meth:`heads` does for single steps that begin with these states, and the states after them.

        Without a core, states are [B, 0].
        """
        if self.core is None:
            return *self.heads(phi, memory), state
        output, after = self.core.step(phi, state)
        return *self.heads(phi, memory, output), after

    def unroll(
        self,
        phi: Float[Tensor, "B D"],
        memory: Float[Tensor, "B M"] | None,
        stored: Float[Tensor, "B S"],
        restart: Bool[Tensor, "T M2"],
    ) -> tuple[Float[Tensor, "B A"], Float[Tensor, " B"]]:
        """Return what :meth:`heads` does for sequences of T steps, which come time by time: B is T times their number.

        ``stored`` and ``restart`` are those of :meth:`achieve.nn.recurrent.RecurrentCore.unroll`.
        """
        assert self.core is not None
        shape = restart.shape
        outputs, _ = self.core.unroll(phi.view(*shape, -1), stored.view(*shape, -1), restart)
        return self.heads(phi, memory, outputs.flatten(0, 1))


class QuantileNetwork(AchievementNetwork):
    """QR-DQN's network: quantiles of the return of each action."""

    def __init__(
        self,
        config: ModelConfig,
        observation_shape: tuple[int, ...],
        num_actions: int,
        *,
        auxiliary: bool,
        num_quantiles: int,
        dtype: torch.dtype = torch.uint8,
    ) -> None:
        self.num_quantiles = num_quantiles
        super().__init__(config, observation_shape, num_actions, auxiliary=auxiliary, dtype=dtype)

    def add_heads(self, width: int) -> None:
        self.advantage = Linear(width, self.num_actions * self.num_quantiles)
        scale_rows(self.advantage, 0.1)

    def quantiles(
        self, phi: Float[Tensor, "B D"], memory: Float[Tensor, "B M"] | None
    ) -> Float[Tensor, "B A Q"]:
        """Return ``theta``, in units of return; the i-th is that of level ``(i + 1/2) / Q``."""
        outputs = cast(Tensor, self.advantage(phi, self._remembered(memory)))
        return outputs.view(-1, self.num_actions, self.num_quantiles)


def _fast_encoder(encoder: nn.Module, dtype: torch.dtype, parameters: list[nn.Parameter]) -> FastEncoder:
    """The hand-written kernels for an encoder that has some, and all parameters in one buffer."""
    if isinstance(encoder, SizePreservingEncoder):
        from achieve.nn.kernels.fused_spcnn import FusedSizePreserving

        return FusedSizePreserving(encoder, dtype, parameters)
    from achieve.nn.kernels.fused import FusedEncoder

    return FusedEncoder(cast(ResidualEncoder, encoder), dtype, parameters)


def count_parameters(module: nn.Module) -> int:
    """Parameters, with the normaliser's scalars, as the published counts have them."""
    return sum(p.numel() for p in module.parameters()) + sum(
        b.numel() for m in module.modules() if isinstance(m, ValueNormalizer) for b in m.buffers()
    )
