"""Losses whose gradients are known."""

from __future__ import annotations

import torch

from achieve.nn.kernels.gradients import with_gradients


def test_each_input_receives_its_gradient_times_what_comes_back() -> None:
    x, y = torch.randn(3, 2, requires_grad=True), torch.randn(4, requires_grad=True)
    by_x, by_y = torch.randn(3, 2), torch.randn(4)
    loss = with_gradients(torch.tensor(2.5), (2 * x, by_x), (y, by_y))
    assert loss.item() == 2.5
    (3 * loss).backward()
    assert x.grad is not None and y.grad is not None
    torch.testing.assert_close(x.grad, 2 * 3 * by_x)
    torch.testing.assert_close(y.grad, 3 * by_y)


def test_an_input_without_gradients_asks_for_none() -> None:
    fixed, x = torch.ones(2), torch.ones(3, requires_grad=True)
    with_gradients(torch.tensor(1.0), (fixed, torch.ones(2)), (x, torch.ones(3))).backward()
    assert fixed.grad is None and x.grad is not None
    assert not with_gradients(torch.tensor(1.0), (fixed, torch.ones(2))).requires_grad
