"""Encoders: the paper's residual network, a light strided one for machines without a GPU, others', one for vectors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import cast

import torch
from jaxtyping import Float, Shaped, UInt8
from torch import Tensor, nn

from achieve.config import ModelConfig
from achieve.errors import ConfigError
from achieve.nn.direct import LargeLinear
from achieve.nn.init import orthogonal, scale_rows
from achieve.nn.layers import NormConv, NormDense
from achieve.plugins import load_class

# Gain of a convolution inside a residual block: 1/sqrt(3) for one of three stacks, of which each of its two blocks
# takes 1/sqrt(2), and each of a block's two convolutions the square root of that.
BLOCK_GAIN = math.sqrt(1 / (math.sqrt(3) * math.sqrt(2)))


class ResidualBlock(nn.Module):
    """``x + f(f(x))``; nothing follows the addition."""

    def __init__(self, channels: int, *, norm: bool) -> None:
        super().__init__()
        self.first = NormConv(channels, channels, norm=norm, gain=BLOCK_GAIN)
        self.second = NormConv(channels, channels, norm=norm, gain=BLOCK_GAIN)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        return x + cast(Tensor, self.second(self.first(x)))


class Stack(nn.Module):
    """3x3 convolution + ReLU, 3x3 max-pool of stride 2, GroupNorm, two residual blocks: halves the image."""

    def __init__(self, inputs: int, channels: int, *, first: bool, norm: bool) -> None:
        super().__init__()
        self.entry = NormConv(inputs, channels, norm=norm and not first, gain=1.0)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.norm = nn.GroupNorm(1, channels) if norm else None
        self.blocks = nn.ModuleList([ResidualBlock(channels, norm=norm) for _ in range(2)])

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C2 H2 W2"]:
        x = self.pool(self.entry(x))
        if self.norm is not None:
            x = self.norm(x)
        for block in self.blocks:
            x = block(x)
        return x


class Encoder(nn.Module, ABC):
    """Observations [B, ...] -> latents ``phi`` [B, hidden_size]; subclass it for ``--model.encoder module:Class``.

    It is made as ``Class(shape, config)`` with the shape of one observation and the config's `model` table, and drawn
    from the run's seed. Images are bytes [B, H, W, C]; numbers that are not bytes arrive as float32.
    """

    def __init__(self, shape: tuple[int, ...], config: ModelConfig) -> None:
        super().__init__()

    @abstractmethod
    def forward(self, observations: Shaped[Tensor, "B ..."]) -> Float[Tensor, "B D"]:
        """Return ``phi``, of the config's ``hidden_size``."""

    def observe(self, observations: Shaped[Tensor, "B ..."]) -> None:
        """Take in what a rollout has shown, once PPO has learned from it: for statistics or codebooks, in buffers."""


class MLPEncoder(Encoder):
    """For vectors: two dense layers of ``dense_size``, then the latent. The inputs keep their scale, bytes as 0..1."""

    def __init__(self, shape: tuple[int, ...], config: ModelConfig) -> None:
        super().__init__(shape, config)
        size = config.dense_size
        self.entry = nn.Linear(math.prod(shape), size)
        scale_rows(self.entry, math.sqrt(2))
        self.dense = NormDense(size, size, norm=config.norm, gain=1.4)
        self.latent = NormDense(size, config.hidden_size, norm=config.norm, gain=1.0)

    def forward(self, observations: Shaped[Tensor, "B ..."]) -> Float[Tensor, "B D"]:
        x = observations.flatten(1).float()
        x = x / 255 if observations.dtype == torch.uint8 else x
        return cast(Tensor, self.latent(self.dense(torch.relu(self.entry(x)))))


class ImageEncoder(Encoder):
    """Bytes [B, H, W, C] -> latent ``phi`` [B, hidden_size]: convolutions, then two dense layers in float32."""

    def __init__(self, shape: tuple[int, ...], config: ModelConfig) -> None:
        super().__init__(shape, config)
        self.add_dense(self.add_convolutions(shape, config), config)

    @abstractmethod
    def add_convolutions(self, shape: tuple[int, ...], config: ModelConfig) -> int:
        """Make the convolutional part. Returns the number of its features."""

    def add_dense(self, features: int, config: ModelConfig) -> None:
        """Make the dense part, on this many features."""
        self.dense = NormDense(features, config.dense_size, norm=config.norm, gain=1.4)
        self.latent = NormDense(config.dense_size, config.hidden_size, norm=config.norm, gain=1.0)

    def forward(self, images: UInt8[Tensor, "B H W C"]) -> Float[Tensor, "B D"]:
        return self.head(self.features(images))

    @abstractmethod
    def features(self, images: UInt8[Tensor, "B H W C"]) -> Float[Tensor, "B C2 H2 W2"]:
        """Return the convolutional part's output."""

    def head(self, features: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D"]:
        """Return the dense part's output, in float32 whatever the convolutions ran in."""
        return cast(Tensor, self.latent(self.dense(features.float().flatten(1))))


class ResidualEncoder(ImageEncoder):
    """The paper's: three stacks of a convolution, a pool and two residual blocks."""

    def add_convolutions(self, shape: tuple[int, ...], config: ModelConfig) -> int:
        height, width, inputs = shape
        self.stacks = nn.ModuleList()
        for index, outputs in enumerate(config.channels):
            self.stacks.append(Stack(inputs, outputs, first=index == 0, norm=config.norm))
            inputs = outputs
            height, width = (height + 1) // 2, (width + 1) // 2
        return height * width * inputs

    def features(self, images: UInt8[Tensor, "B H W C"]) -> Float[Tensor, "B C2 H2 W2"]:
        x = images.permute(0, 3, 1, 2).float().div_(255)
        for stack in self.stacks:
            x = stack(x)
        return x


class StridedEncoder(ImageEncoder):
    """Three strided convolutions: about a hundredth of the residual encoder's work."""

    def add_convolutions(self, shape: tuple[int, ...], config: ModelConfig) -> int:
        height, width, inputs = shape
        a, b, c = config.channels
        layers = [
            nn.Conv2d(inputs, a, 8, stride=4, padding=2),
            nn.Conv2d(a, b, 4, stride=2, padding=1),
            nn.Conv2d(b, c, 3, stride=1, padding=1),
        ]
        for layer in layers:
            scale_rows(layer, math.sqrt(2))
        self.convs = nn.ModuleList(layers)
        return (height // 8) * (width // 8) * c

    def features(self, images: UInt8[Tensor, "B H W C"]) -> Float[Tensor, "B C2 H2 W2"]:
        x = images.permute(0, 3, 1, 2).float().div_(255)
        for conv in self.convs:
            x = torch.relu(conv(x))
        return x


class SizePreservingEncoder(ImageEncoder):
    """That of LSTM-SPCNN (Stanić et al. 2022): 5x5 convolutions that keep the image's size, and one dense layer.

    On Crafter's images, that layer has 134 million weights.
    """

    def add_convolutions(self, shape: tuple[int, ...], config: ModelConfig) -> int:
        height, width, inputs = shape
        self.convs = nn.ModuleList()
        for outputs in config.channels:
            conv = nn.Conv2d(inputs, outputs, 5, padding=2)
            orthogonal(conv, math.sqrt(2))
            self.convs.append(conv)
            inputs = outputs
        return height * width * inputs

    def add_dense(self, features: int, config: ModelConfig) -> None:
        self.norm = nn.LayerNorm(features) if config.norm else None
        self.linear = LargeLinear(features, config.hidden_size, bias=not config.norm)
        orthogonal(self.linear, math.sqrt(2))

    def features(self, images: UInt8[Tensor, "B H W C"]) -> Float[Tensor, "B C2 H W"]:
        x = images.permute(0, 3, 1, 2).float().div_(255)
        for conv in self.convs:
            x = torch.relu(conv(x))
        return x

    def head(self, features: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D"]:
        x = features.float().flatten(1)
        if self.norm is not None:
            x = self.norm(x)
        return torch.relu(self.linear(x))


MOST_INPUTS = 4096
"""Numbers that the mlp encoder takes; what has more is a picture, or wants an encoder of its own."""


def make_encoder(shape: tuple[int, ...], config: ModelConfig, dtype: torch.dtype = torch.uint8) -> nn.Module:
    """Return the encoder that the config names, one of the user's own among them, for observations of that shape."""
    images: dict[str, type[ImageEncoder]] = {
        "residual": ResidualEncoder, "strided": StridedEncoder, "spcnn": SizePreservingEncoder,
    }  # fmt: skip
    if config.encoder in images:
        if len(shape) != 3 or dtype != torch.uint8 or min(shape[:2]) < 8:
            raise ConfigError(_no_images(shape, dtype, config.encoder))
        return images[config.encoder](shape, config)
    if config.encoder == "tokens":
        from achieve.nn.tokens import TokenEncoder

        if len(shape) != 3 or dtype != torch.uint8:
            raise ConfigError(_no_images(shape, dtype, config.encoder))
        return TokenEncoder(shape, config)
    if config.encoder == "mlp":
        if math.prod(shape) > MOST_INPUTS:
            raise ConfigError(
                f"observations of shape {shape} are {math.prod(shape):,} numbers, and the mlp encoder takes at most "
                f"{MOST_INPUTS:,}; --model.encoder residual and strided are for images, module:Class for the rest"
            )
        return MLPEncoder(shape, config)
    own: nn.Module = load_class(config.encoder, "model.encoder", Encoder)(shape, config)
    with torch.no_grad():
        made = tuple(own(torch.zeros(2, *shape, dtype=dtype)).shape)
    if made != (2, config.hidden_size):
        raise ConfigError(
            f"{config.encoder} makes {list(made)} of two observations; it must make [2, {config.hidden_size}], "
            "where model.hidden-size is the size of the latent"
        )
    return own


def _no_images(shape: tuple[int, ...], dtype: torch.dtype, encoder: str) -> str:
    """Say why an image encoder cannot be used, and what can."""
    if len(shape) == 3 and dtype == torch.uint8:
        option = "resize=64, which enlarges them"
    elif len(shape) in (2, 3):
        option = "rescale=true, which makes bytes of them"
    elif len(shape) == 4:
        option = f"frame_stack={shape[0]} in place of frames that the environment stacks"
    else:
        option = "pixels=true, which shows the agent what render() draws"
    mlp = "--model.encoder mlp, which takes them as they are, or " if math.prod(shape) <= MOST_INPUTS else ""
    return (
        f"observations are {str(dtype).removeprefix('torch.')} of shape {shape}, and the {encoder} encoder needs uint8 "
        f"images of height x width x channels, at least 8x8: use {mlp}--env.options {option}"
    )
