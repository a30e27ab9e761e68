"""The probe's classifier, whose epochs a GPU runs as CUDA graphs."""

import pytest
import torch

from achieve.analysis.probe import ProbeSettings, train_classifier
from tests.gpu.common import DEVICE

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("batch_size", [64, 0])
def test_a_classifier_trained_on_the_gpu_is_the_one_trained_on_the_cpu(batch_size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    latents = torch.randn(300, 32, generator=generator)  # the last minibatch of 64 is smaller
    labels = torch.randint(5, (300,), generator=generator)
    settings = ProbeSettings(epochs=6, batch_size=batch_size)
    expected = train_classifier(latents, labels, 5, settings)
    start = train_classifier(latents, labels, 5, ProbeSettings(epochs=1, batch_size=batch_size))
    ours = train_classifier(latents.to(DEVICE), labels.to(DEVICE), 5, settings)
    for one, other, first in zip(ours.parameters(), expected.parameters(), start.parameters(), strict=True):
        assert (one.cpu() - other).abs().max() < 1e-5
        assert (first - other).abs().max() > 1e-3  # later epochs, the captured ones, count
