"""Flat parameters, the optimiser's kernels and those for few images, run by Triton's interpreter: no GPU needed.

`test_kernels.py` runs this file in a process of its own, because Triton decides at import whether it interprets.
`tests/gpu/test_optim.py` runs the same checks where there is a GPU.
"""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from achieve.config import ModelConfig
from achieve.nn.direct import Linear
from achieve.nn.kernels import dense, fused, norm_tiles, output
from achieve.nn.kernels.flat import FlatAdam, FlatParameters
from achieve.nn.kernels.fused import FusedEncoder
from achieve.nn.kernels.norms import norm_forward
from achieve.nn.model import ActorCritic
from achieve.nn.optim import ClippedAdam, all_state

MODEL = ModelConfig(channels=(16, 16, 16), dense_size=24, hidden_size=40)
SIZE = 8
EPS = 1e-5
DEVICE = torch.device("cpu" if os.environ.get("TRITON_INTERPRET") else "cuda")


@pytest.fixture(autouse=True)
def full_float32() -> Iterator[None]:
    """The library's convolutions in float32, where they would be in TF32."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def make_network(dtype: torch.dtype | None = None) -> ActorCritic:
    """The plain network, or the same with fused kernels in that format."""
    torch.manual_seed(0)
    network = ActorCritic(MODEL, (SIZE, SIZE, 3), 5, auxiliary=True)
    with torch.no_grad():
        for p in network.parameters():
            p.add_(0.05 * torch.randn_like(p))
    network.to(DEVICE)
    if dtype is not None:
        # The library's convolutions: own ones in float32 would be in TF32 on a GPU.
        own = False if dtype == torch.float32 else None
        network._fast = FusedEncoder(network.encoder, dtype, network.parameters(), own=own)
    return network


@functools.cache  # nothing can be uploaded while a graph is captured
def images(seed: int, count: int = 2) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, SIZE, SIZE, 3), dtype=torch.uint8, generator=g).to(DEVICE)


def loss(network: ActorCritic, seed: int) -> Tensor:
    """Reaches the policy and the value, and none of the auxiliary nets; small and large by turns."""
    phi = network.encode(images(seed))
    logits, values = network.heads(phi, torch.ones_like(phi))
    return (logits.square().sum() + (values - 1).square().sum()) * (1.0 if seed % 2 else 1e-4)


def make_optimizer(network: ActorCritic, head: nn.Module | None = None) -> ClippedAdam:
    return ClippedAdam(network, learning_rate=1e-3, max_grad_norm=0.5, head=head)


def update(network: ActorCritic, optimizer: ClippedAdam, seed: int, skip: Tensor | None = None) -> float:
    total = loss(network, seed)
    optimizer.zero_grad()
    total.backward()
    return float(optimizer.step(skip))


def assert_same(mine: dict[str, Tensor], theirs: dict[str, Tensor], **how: float) -> None:
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        assert value.shape == theirs[name].shape
        torch.testing.assert_close(value, theirs[name], msg=lambda text, name=name: f"{name}: {text}", **how)


def state_of(network: ActorCritic, optimizer: ClippedAdam) -> dict[str, Tensor]:
    state = {**network.state_dict(), **optimizer.state_tensors()}
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def weights(network: ActorCritic) -> Tensor:
    return torch.cat([p.detach().flatten() for p in network.parameters()])


def shadows_are_true(network: ActorCritic) -> bool:
    """Whether the half-precision weights are those of the float32 weights, without converting them now."""
    fast = network._fast
    assert isinstance(fast, FusedEncoder)
    for layer in network.encoder.stacks.modules():
        if not isinstance(layer, nn.Conv2d):
            continue
        if layer is fast._entry:
            found = fast._entry_half[:, :3]
            expected = layer.weight * (256 / 255)
        else:
            found, expected = fast.weight(layer), layer.weight
            assert found.is_contiguous(memory_format=torch.channels_last)
        if not torch.equal(found, expected.to(found.dtype)):
            return False
    return not fast._entry_half[:, 3:].any()


def test_updates_are_those_of_the_plain_network() -> None:
    """Weights, moments and counts of steps, by the names they have in a checkpoint; clipped and not."""
    plain, fast = make_network(), make_network(torch.float32)
    ours, theirs = make_optimizer(fast), make_optimizer(plain)
    start = weights(plain)
    norms = []
    for seed in range(3):
        expected = update(plain, theirs, seed)
        norms.append(update(fast, ours, seed))
        assert norms[-1] == pytest.approx(expected, rel=1e-3)
    assert min(norms) < 0.5 < max(norms)
    mine, wanted = state_of(fast, ours), state_of(plain, theirs)
    counts = {name: value for name, value in wanted.items() if name.endswith(".step")}
    assert {float(value) for value in counts.values()} == {0.0, 3.0}, "auxiliary nets are not reached"
    assert_same({name: mine[name] for name in counts}, counts, rtol=0, atol=0)
    assert (weights(fast) - weights(plain)).norm() < 0.02 * (weights(plain) - start).norm()
    moments = [name for name in wanted if name.endswith((".exp_avg", ".exp_avg_sq"))]
    for name in moments:
        assert (mine[name] - wanted[name]).norm() <= 1e-2 * wanted[name].norm() + 1e-12, name
    assert shadows_are_true(fast)


@pytest.mark.parametrize(("scale", "eps"), [(1e-6, 1e-8), (1.0, 1e-3), (1e6, 1e-8)])
def test_adam_is_that_of_torch(scale: float, eps: float) -> None:
    """The same gradients for both, of any size; a parameter without one is left alone, and counts no step."""
    shapes = [(3,), (16, 4, 3, 3), (70, 33), (1,), (2050,), (5, 5)]
    theirs = [nn.Parameter(normal(*shape)) for shape in shapes]
    mine = copy.deepcopy(theirs)
    skipped = torch.zeros((), device=DEVICE)
    ours = FlatAdam([FlatParameters(mine[:4]), FlatParameters(mine[4:])], 1e-2, 0.5, eps, skipped)
    adam = torch.optim.Adam(theirs, lr=1e-2, eps=eps)
    state = ours.state()
    for step in range(7):
        ours.zero_grad()
        adam.zero_grad()
        for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            if i == 2 and step % 3 == 0:
                continue
            gradient = scale * normal(*shapes[i], seed=10 * step + i)
            a.grad, b.grad = gradient.clone(), gradient.clone()
        expected = nn.utils.clip_grad_norm_(theirs, 0.5)
        norm = ours.step(None)
        torch.testing.assert_close(norm, expected, rtol=1e-5, atol=0)
        adam.step()
        for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
            if step or i != 2:
                for key in ("step", "exp_avg", "exp_avg_sq"):
                    wanted = adam.state[b][key]
                    close = {"rtol": 1e-6, "atol": 1e-6 * float(wanted.abs().max())}
                    torch.testing.assert_close(state[a][key], wanted.to(DEVICE), **close)
    assert float(skipped) == 0


@pytest.mark.parametrize(
    ("broken", "where"), [(float("nan"), "encoder"), pytest.param(float("inf"), "head", marks=pytest.mark.long)]
)
def test_what_is_not_finite_is_skipped_and_counted(broken: float, where: str) -> None:
    network = make_network(torch.float16)
    optimizer = make_optimizer(network)
    update(network, optimizer, 1)
    before = state_of(network, optimizer)
    total = loss(network, 1) * (broken if where == "encoder" else 1.0)
    optimizer.zero_grad()
    total.backward()
    if where == "head":
        assert network.value.bias.grad is not None
        network.value.bias.grad.fill_(broken)
    optimizer.step()
    after = state_of(network, optimizer)
    assert float(after.pop("skipped")) == 1 == float(before.pop("skipped")) + 1
    assert_same(after, before, rtol=0, atol=0)
    assert shadows_are_true(network)
    assert optimizer.take_skipped() == 1 and optimizer.take_skipped() == 0
    update(network, optimizer, 2)
    assert not torch.equal(network.value.weight, before["value.weight"])


@pytest.mark.long
def test_a_skipped_step_leaves_no_trace() -> None:
    network = make_network(torch.float16)
    optimizer = make_optimizer(network)
    before = state_of(network, optimizer)
    norm = update(network, optimizer, 1, skip=torch.ones((), device=DEVICE))
    assert norm > 0
    assert_same(state_of(network, optimizer), before, rtol=0, atol=0)
    update(network, optimizer, 1, skip=torch.zeros((), device=DEVICE))
    assert not torch.equal(network.value.weight, before["value.weight"])


def test_a_state_is_taken_up_in_either_form() -> None:
    """Checkpoints know nothing of how parameters lie: from the plain form to the flat one and back."""
    plain, fast = make_network(), make_network(torch.float32)
    theirs, ours = make_optimizer(plain), make_optimizer(fast)
    update(plain, theirs, 1)
    for one, other in (((plain, theirs), (fast, ours)), ((fast, ours), (plain, theirs))):
        saved = state_of(*one)
        with torch.no_grad():
            for name, tensor in {**other[0].state_dict(), **other[1].state_tensors()}.items():
                tensor.copy_(saved[name].contiguous())
        assert_same(state_of(*other), saved, rtol=0, atol=0)
        update(*other, 3)
    assert float(theirs.state_tensors()["value.weight.step"]) == 3


def test_weights_changed_from_outside_are_converted_before_use() -> None:
    network, other = make_network(torch.float16), make_network()
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(1.5)
        network.load_state_dict(other.state_dict())
        assert not shadows_are_true(network)
        network.encode(images(0))
        assert shadows_are_true(network)


@pytest.mark.long
def test_putting_the_state_back_puts_the_converted_weights_back() -> None:
    """As before a capture; and no weight counts as changed by it, which would convert them in every replay."""
    network = make_network(torch.float16)
    optimizer = make_optimizer(network)
    update(network, optimizer, 1)
    before = state_of(network, optimizer)
    state = all_state(network, [optimizer])
    saved = [tensor.clone() for tensor in state]
    update(network, optimizer, 3)
    versions = [p._version for p in network.parameters()]
    for tensor, value in zip(state, saved, strict=True):
        tensor.copy_(value)
    assert_same(state_of(network, optimizer), before, rtol=0, atol=0)
    assert shadows_are_true(network)
    assert versions == [p._version for p in network.parameters()]


@pytest.mark.long
def test_nothing_moves() -> None:
    network = make_network(torch.float16)
    optimizer = make_optimizer(network)

    def addresses() -> list[int]:
        tensors = [*network.parameters(), *optimizer.state_tensors().values(), *all_state(network, [optimizer])]
        return [t.data_ptr() for t in tensors]

    update(network, optimizer, 1)
    before = addresses()
    gradients = [p.grad.data_ptr() for p in network.parameters() if p.grad is not None]
    assert 0 < len(gradients) < len(list(network.parameters())), "those that have none have none"
    network.load_state_dict(make_network().state_dict())
    network.zero_grad(set_to_none=True)
    update(network, optimizer, 2)
    assert addresses() == before
    assert [p.grad.data_ptr() for p in network.parameters() if p.grad is not None] == gradients


def test_forgotten_gradients_start_from_zero() -> None:
    network = make_network(torch.float32)
    found = []
    for _ in range(2):
        network.zero_grad(set_to_none=True)
        loss(network, 1).backward()
        network.finish_backward()
        found.append({name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None})
    assert_same(*found, rtol=1e-4, atol=1e-6)


def test_a_layer_used_twice_has_both_gradients() -> None:
    plain, fast = make_network(), make_network(torch.float32)
    found = []
    for network in (plain, fast):
        phi, memory = normal(4, 40), normal(4, 40, seed=1)
        actions = torch.tensor([0, 1, 1, 4], device=DEVICE)
        if network.flat is not None:
            network.flat.zero_grad()
        total = network.predict(phi, actions, memory).square().mul(memory).sum()
        (total + (network.predict(memory, actions, phi) * phi).sum()).backward()
        if network.flat is not None:
            network.flat.settle()
        found.append({n: p.grad for n, p in network.named_parameters() if n.startswith(("film", "predictor"))})
    assert all(g is not None for g in found[0].values())
    assert_same(*found, rtol=1e-4, atol=1e-5)  # type: ignore[arg-type]


# Rows, inner dimension, columns: tiles filled and not, the inner dimension split, rows as few as actions.
PRODUCTS = [(70, 300, 40), (64, 64, 64), (17, 17, 130), (5, 520, 3), (1, 1, 1)]


@pytest.mark.parametrize("shape", PRODUCTS)
@pytest.mark.parametrize("transposed", [(False, True), (False, False), (True, False)])
def test_products_are_as_exact_as_float32(shape: tuple[int, int, int], transposed: tuple[bool, bool]) -> None:
    """Of a layer and both its gradients, which transpose a factor each."""
    rows, inner, columns = shape
    a = normal(inner, rows).t() if transposed[0] else normal(rows, inner)
    b = normal(columns, inner, seed=1).t() if transposed[1] else normal(inner, columns, seed=1)
    bias, out = normal(columns, seed=2), torch.full((rows, columns), float("nan"), device=DEVICE)
    exact = a.double() @ b.double()
    close = {"rtol": 0.0, "atol": 3e-6 * inner**0.5}
    torch.testing.assert_close(dense.product(a, b).double(), exact, **close)
    assert dense.product(a, b, bias, out) is out
    torch.testing.assert_close(out.double(), exact + bias, **close)


class Twice(nn.Module):
    """Three layers: one used twice, one with inputs beside that are data, one too narrow for kernels of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.wide, self.beside, self.narrow = Linear(130, 136, bias=False), Linear(136 + 3, 128), Linear(128, 3)

    def forward(self, x: Tensor, more: Tensor) -> Tensor:
        both = self.wide(x) + self.wide(x.square())
        return self.narrow(torch.tanh(self.beside(torch.tanh(both), more)))


@pytest.mark.parametrize("rows", [512, 515])
def test_gradients_of_many_rows_are_as_exact_as_float32(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On tensor cores, where there are any, and added up in layers used twice; held to float64."""
    monkeypatch.setattr(dense, "supports", lambda device: True)
    products: list[tuple[int, ...]] = []
    product = dense.product

    def counted(a: Tensor, b: Tensor, *rest: Tensor | None, **named: Tensor) -> Tensor:
        products.append((*a.shape, b.shape[1]))
        return product(a, b, *rest, **named)

    monkeypatch.setattr(dense, "product", counted)
    fast = Twice().to(DEVICE)
    plain = copy.deepcopy(fast).double()
    flat = FlatParameters(fast.parameters())
    given = normal(rows, 130), normal(rows, 3, seed=1), normal(rows, 3, seed=2)
    found = []
    for module, dtype in ((plain, torch.float64), (fast, torch.float32)):
        x, more, by = (t.to(dtype) for t in given)
        x.requires_grad_()
        if module is fast:
            flat.zero_grad()
        (module(x, more) * by).sum().backward()
        if module is fast:
            flat.settle()
        assert x.grad is not None
        found.append({"x": x.grad.double(), **{n: p.grad.double() for n, p in module.named_parameters()}})  # type: ignore[union-attr]
    for name, wanted in found[0].items():
        assert (found[1][name] - wanted).norm() < 2e-6 * wanted.norm(), name
    forward = [(rows, 130, 136)] * 2 + [(rows, 139, 128), (rows, 128, 3)]
    backward = [(128, rows, 139), (rows, 128, 136)] + [(136, rows, 130), (rows, 136, 130)] * 2
    assert products == forward + backward


def test_gradients_of_few_rows_are_the_librarys(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Linear(128, 128).to(DEVICE)
    FlatParameters(layer.parameters())
    out = layer(normal(511, 128).requires_grad_())
    monkeypatch.setattr(dense, "supports", lambda device: True)
    monkeypatch.setattr(dense, "product", lambda *_, **__: pytest.fail("a kernel was launched"))
    out.sum().backward()


@pytest.mark.long
def test_heads_of_an_objective_are_optimised_too() -> None:
    plain, fast = make_network(), make_network(torch.float32)
    ends = []
    for network in (plain, fast):
        torch.manual_seed(3)
        head = nn.Linear(40, 3).to(DEVICE)
        optimizer = make_optimizer(network, head)
        for seed in (1, 2):
            total = loss(network, seed) + head(network.encode(images(seed)).detach()).square().sum()
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
        ends.append(optimizer.state_tensors())
        assert float(ends[-1]["head.weight.step"]) == 2
    for name in ("head.weight.exp_avg", "head.bias.exp_avg_sq"):
        torch.testing.assert_close(ends[1][name], ends[0][name], rtol=1e-3, atol=1e-7)


@pytest.mark.long
def test_a_copy_is_independent_and_whole() -> None:
    network = make_network(torch.float16)
    optimizer = make_optimizer(network)
    update(network, optimizer, 1)
    other = copy.deepcopy(network)
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    assert_same(before, dict(network.state_dict()), rtol=0, atol=0)
    assert other.flat is not None and other.flat is not network.flat
    assert {id(p) for p in other.flat.parameters} == {id(p) for p in other.parameters()}
    update(network, optimizer, 2)
    assert_same(dict(other.state_dict()), before, rtol=0, atol=0)
    update(other, make_optimizer(other), 1)
    assert shadows_are_true(other) and shadows_are_true(network)
    assert not torch.equal(other.value.weight, before["value.weight"])


def test_a_gradient_that_is_computed_beside_is_waited_for_before_pytorch_adds_to_it() -> None:
    """A loss may use a weight in a layer and by itself, such as to decay it."""
    torch.manual_seed(0)
    layer = Linear(5, 3).to(DEVICE)
    x = normal(4, 5)
    flat = FlatParameters(layer.parameters())
    order: list[str] = []
    join, place = flat.join, flat.place
    flat.join = lambda: (order.append("join"), join())[1]  # type: ignore[method-assign]
    flat.place = lambda p: (order.append("place"), place(p))[1]  # type: ignore[method-assign]
    layer.weight.register_hook(lambda grad: order.append("add") if grad is not None else None)
    for decay_last in (True, False):
        flat.zero_grad()
        order.clear()
        terms = [layer(x).square().sum(), layer.weight.square().sum()]
        for term in terms if decay_last else terms[::-1]:
            term.backward()
        if decay_last:
            assert order == ["place", "join", "add"]
        else:
            assert order == ["add", "place"]
            assert any(held.shape == layer.weight.shape for held in flat._held), "it is being read beside"
        flat.settle()
        weight = layer.weight.detach().clone().requires_grad_()
        (F.linear(x, weight, layer.bias.detach()).square().sum() + weight.square().sum()).backward()
        torch.testing.assert_close(layer.weight.grad, weight.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("flat", [True, False])
def test_inputs_that_need_no_gradient(flat: bool) -> None:
    """Two parts side by side are one input; the gradients of the first part and of the weights are the same."""
    torch.manual_seed(0)
    layer = Linear(7, 3).to(DEVICE)
    x, more = normal(4, 5), normal(4, 2, seed=1)
    buffer = FlatParameters(layer.parameters()) if flat else None
    found = []
    for joined in (True, False):
        layer.zero_grad()
        if buffer is not None:
            buffer.zero_grad()
        part = x.clone().requires_grad_()
        outputs = layer(torch.cat([part, more], 1)) if joined else layer(part, more)
        outputs.square().sum().backward()
        if buffer is not None:
            buffer.settle()
        found.append([outputs.detach(), part.grad, *(p.grad.clone() for p in layer.parameters() if p.grad is not None)])
    assert len(found[0]) == len(found[1]) == 4
    for wanted, got in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted)


def test_only_float32_is_laid_out() -> None:
    with pytest.raises(ValueError, match="float32"):
        FlatParameters([nn.Parameter(torch.zeros(3, dtype=torch.float64))])


def channels_last(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return normal(*shape, seed=seed).to(dtype).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("shape", [(2, 16, 24, 23), (1, 512, 5, 5)])
@pytest.mark.parametrize(("add", "relu"), [(True, True), (False, True), (False, False)])
def test_tiled_norms(shape: tuple[int, ...], add: bool, relu: bool) -> None:
    z, skip = channels_last(*shape), channels_last(*shape, seed=1) + 0.5
    gain, bias = normal(2, shape[1], seed=2)
    assert norm_tiles.suits(z) and not norm_tiles.suits(z[:, :, :2, :2]) and not norm_tiles.suits(z.repeat(33, 1, 1, 1))
    how = (z, skip if add else None, gain, bias, EPS)
    found = norm_tiles.norm_forward(*how, relu=relu)
    x = (torch.relu(z) if relu else z) + (skip if add else 0)
    torch.testing.assert_close(found[0], x if add else z, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found[1], F.group_norm(x, 1, gain, bias, EPS), rtol=1e-4, atol=1e-4)
    for mine, theirs in zip(found, norm_forward(*how, relu=relu), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(2, 16, 8, 8), (3, 128, 3, 5), (1, 32, 20, 15)])
@pytest.mark.parametrize("scale", [1e-20, 0.25, 1e5, 0.0])
def test_the_last_sum_and_its_gradient(shape: tuple[int, ...], scale: float) -> None:
    z, skip = (channels_last(*shape, seed=s, dtype=torch.float16) for s in (0, 1))
    found = output.features(z, skip)
    assert found.is_contiguous() and found.dtype == torch.float32
    assert torch.equal(found, (skip + torch.relu(z)).float())
    assert torch.equal(output.features(z, None), z.float())
    grad = scale * normal(*shape, seed=2).clamp(-1, 1)
    inverse = torch.zeros((), device=DEVICE)
    grad_z, grad_skip = output.features_backward(grad, z, inverse, fused.HEADROOM, add=True)
    assert grad_z.dtype == torch.float16 and grad_z.is_contiguous(memory_format=torch.channels_last)
    exponent = grad.abs().amax().cpu().clamp(min=1e-30).log2().ceil() + fused.HEADROOM
    assert float(inverse) == float(exponent.exp2())
    expected = (grad * (-exponent).exp2()).half()
    assert torch.equal(grad_skip, expected)
    assert torch.equal(grad_z, torch.where(z > 0, expected, torch.zeros_like(expected)))
    grad_z, none = output.features_backward(grad, z, inverse, fused.HEADROOM, add=False)
    assert none is None and torch.equal(grad_z, expected)


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf")])
def test_a_gradient_that_is_not_finite_stays_so(broken: float) -> None:
    z = channels_last(1, 16, 2, 2, dtype=torch.float16)
    grad = torch.ones(z.shape, device=DEVICE)
    grad[0, 3, 1, 1] = broken
    inverse = torch.zeros((), device=DEVICE)
    _, grad_skip = output.features_backward(grad, z, inverse, fused.HEADROOM, add=True)
    assert not (grad_skip.float() * inverse).isfinite().all()
