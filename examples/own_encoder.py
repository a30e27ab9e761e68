"""An encoder of your own: patches of the image, mixed by a small transformer.

    achieve train --preset quick --model.encoder examples.own_encoder:PatchEncoder
"""

import torch
from torch import Tensor, nn

from achieve.config import ModelConfig
from achieve.nn.encoder import Encoder

PATCH = 8


class PatchEncoder(Encoder):
    def __init__(self, shape: tuple[int, ...], config: ModelConfig) -> None:
        super().__init__(shape, config)
        height, width, channels = shape
        size = config.dense_size
        self.patches = nn.Conv2d(channels, size, PATCH, stride=PATCH)
        self.place = nn.Parameter(torch.randn((height // PATCH) * (width // PATCH), size) / size**0.5)
        self.mix = nn.TransformerEncoderLayer(size, nhead=2, dim_feedforward=2 * size, dropout=0.0, batch_first=True)
        self.latent = nn.Linear(size, config.hidden_size)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images.permute(0, 3, 1, 2).float() / 255).flatten(2).transpose(1, 2)
        return torch.relu(self.latent(self.mix(x + self.place).mean(1)))
