"""What annotations promise is checked while the tests run: a wrong shape is an error, not a broadcast."""

import pytest
import torch
from jaxtyping import TypeCheckError

from achieve.algo.gae import gae
from achieve.algo.ppo import value_loss
from achieve.nn.normalizer import ValueNormalizer


def test_a_column_is_not_a_vector() -> None:
    assert value_loss(torch.ones(4), torch.zeros(4), half=False) == 1
    with pytest.raises(TypeCheckError):
        value_loss(torch.ones(4), torch.zeros(4, 1), half=False)


def test_values_have_a_row_more_than_rewards() -> None:
    rewards, dones = torch.zeros(3, 2), torch.zeros(3, 2, dtype=torch.bool)
    gae(rewards, torch.zeros(4, 2), dones, 0.9, 0.9)
    with pytest.raises(TypeCheckError):
        gae(rewards, torch.zeros(3, 2), dones, 0.9, 0.9)


def test_methods_are_checked_too() -> None:
    with pytest.raises(TypeCheckError):
        ValueNormalizer().update(torch.zeros(4), torch.ones(3))
