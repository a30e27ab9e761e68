"""All parameters of a network in one buffer, and Adam on it in three kernels.

An update of a few hundred images is short enough for the many small kernels around the optimiser to show. Here every
parameter is a view of one float32 buffer, gradients are gathered in another, and the norm, the clipping and Adam's step
each go over all parameters at once. Parameters keep their names, shapes and identity, so checkpoints and everything
that reads or writes a parameter in place know nothing of it. ``p.grad`` means what it always does: None is no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from achieve.nn.cuda_graphs import Beside
from achieve.nn.kernels import adam
from achieve.nn.kernels.adam import BLOCK

Sink = Callable[[nn.Parameter], Tensor]


@dataclass(frozen=True)
class HalfWeights:
    """Where Adam leaves the weights of the convolutions in half precision.

    Attributes:
        weights: of the first blocks of a :class:`FlatParameters`, laid out as they are.
        entry: of the first convolution [O, 3, 3, I], more input channels than it has, the weights times ``factor``.
        entry_blocks: the first block of its weight, and the one after the last.
        entry_inputs: the input channels it has.
        scale: by which to multiply the gradients of the first ``scaled_blocks`` blocks.
    """

    weights: Tensor
    entry: Tensor
    entry_blocks: tuple[int, int]
    entry_inputs: int
    factor: float
    scale: Tensor
    scaled_blocks: int


def beside(parameter: Tensor, *read: Tensor) -> AbstractContextManager[FlatParameters | None]:
    """:meth:`FlatParameters.beside`, with the parameters that this one lies with; None, and here, if with none."""
    flat: FlatParameters | None = getattr(parameter, "flat", None)
    return nullcontext() if flat is None else flat.beside(*read)


class FlatParameters:
    """Moves parameters into one buffer, in the order given, each from a multiple of `BLOCK` on.

    Weights of convolutions lie channels last. The buffers stay where they are for good, as captured graphs hold their
    addresses; what assigns ``p.data`` or moves a module to another device has to come before.

    Gradients get to theirs in one of three ways. A kernel adds to :meth:`sink`. A product is written to :meth:`place`.
    All others, left by PyTorch in ``p.grad`` or by functions of ours in ``pending``, are copied by :meth:`settle`, in a
    single kernel for each format. What computes them may do so :meth:`beside` the rest of the backward pass.

    Args:
        parameters: all float32.
        summed: neighbours among them whose gradients kernels add up: :meth:`zero_grad` sets those to zero.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], summed: Iterable[nn.Parameter] = ()) -> None:
        self.parameters = list(parameters)
        self._first: dict[nn.Parameter, int] = {}
        size = 0
        for p in self.parameters:
            if p.dtype != torch.float32:
                raise ValueError(f"parameters in one buffer must be float32, not {p.dtype}")
            self._first[p] = size
            size += -(-p.numel() // BLOCK) * BLOCK
        self.values = torch.zeros(size, device=self.parameters[0].device)
        for p in self.parameters:
            view = self.view(self.values, p)
            view.copy_(p.data)
            p.data = view
            p.flat = self  # type: ignore[attr-defined]  # copies of a parameter do not have it
            if p.requires_grad:
                p.register_hook(partial(self._before_adding, p))
        self.half: HalfWeights | None = None
        self.pending: list[tuple[nn.Parameter, Tensor]] = []
        """Gradients of any format that are still to be added to those of their parameters."""
        self._summed = frozenset(summed)
        places = [self.blocks(p) for p in self._summed]
        self._summed_part = slice(
            min((first for first, _ in places), default=0) * BLOCK, max((last for _, last in places), default=0) * BLOCK
        )
        self._zero: set[nn.Parameter] = set()
        self._scaled = False
        self._beside = Beside(enabled=self.values.is_cuda)
        self._held: list[Tensor] = []

    def view(self, buffer: Tensor, p: nn.Parameter) -> Tensor:
        """Return the part of a buffer laid out like ``values`` that belongs to a parameter, in its shape."""
        part = buffer[self._first[p] : self._first[p] + p.numel()]
        if p.dim() != 4:
            return part.view(p.shape)
        outputs, inputs, height, width = p.shape
        return part.view(outputs, height, width, inputs).permute(0, 3, 1, 2)

    def blocks(self, p: nn.Parameter) -> tuple[int, int]:
        """Return the first block of a parameter, and the one after its last."""
        first = self._first[p] // BLOCK
        return first, first - (-p.numel() // BLOCK)

    @cached_property
    def gradients(self) -> Tensor:
        """The buffer of gradients, laid out like ``values``; it holds anything where ``p.grad`` is None."""
        return torch.zeros_like(self.values)

    @cached_property
    def _gradient_of(self) -> dict[nn.Parameter, Tensor]:
        return {p: self.view(self.gradients, p) for p in self.parameters}

    def zero_grad(self) -> None:
        """Forget all gradients."""
        self._rejoin()
        self.gradients[self._summed_part].zero_()
        self._zero = set(self._summed)
        self.pending.clear()
        self._scaled = False
        for p in self.parameters:
            p.grad = None

    def place(self, p: nn.Parameter) -> tuple[Tensor, bool]:
        """Return where a parameter's gradient belongs, and whether there is one already, to be added to."""
        mine = self._gradient_of[p]
        before = p.grad
        if before is not mine:
            if before is not None:
                self._held.append(before)  # this may run beside
                mine.copy_(before)
            p.grad = mine
            self._zero.discard(p)
        return mine, before is not None

    def sink(self, p: nn.Parameter) -> Tensor:
        """Return where to add a parameter's gradient: zero where there is none yet."""
        is_zero = p in self._zero
        mine, is_used = self.place(p)
        if not is_used and not is_zero:
            mine.zero_()
        return mine

    @contextmanager
    def beside(self, *read: Tensor) -> Iterator[FlatParameters]:
        """Run a block on another stream, for gradients that nobody asks for before :meth:`settle`.

        The tensors it reads are kept until then, so that their memory is not used for anything else meanwhile.
        """
        self._held.extend(read)
        with self._beside.work():
            yield self

    @contextmanager
    def scaling(self) -> Iterator[Tensor]:
        """Run a block that writes the scale of the gradients to come; those there are, with another, are brought to it.

        There are some where images were encoded in several calls.
        """
        assert self.half is not None
        scale, before = self.half.scale, None
        if self._scaled:
            self.settle()
            before = scale.clone()
        yield scale
        if before is not None:
            self._scaled_gradients().mul_(before / scale)
        self._scaled = True

    def unscale(self) -> None:
        """Bring all gradients to their place, and take the scale out."""
        assert self.half is not None
        self.settle()
        self._scaled_gradients().mul_(self.half.scale)
        self.half.scale.fill_(1.0)

    def _scaled_gradients(self) -> Tensor:
        return self.gradients[: self.half.scaled_blocks * BLOCK] if self.half else self.gradients[:0]

    def leave(self, parameters: Iterable[nn.Parameter], gradients: Iterable[Tensor]) -> None:
        """Take gradients, computed :meth:`beside` or not, to be brought to their place by :meth:`settle`."""
        self.pending.extend(zip(parameters, gradients, strict=True))

    def join(self) -> None:
        """Wait for all that runs :meth:`beside`."""
        self._beside.join()

    def _before_adding(self, p: nn.Parameter, grad: Tensor | None) -> None:
        """Called before PyTorch adds to a gradient: where that is in its place, it may be under way beside."""
        if grad is not None and self._held and p.grad is not None and p.grad is self._gradient_of[p]:
            self.join()

    def _rejoin(self) -> None:
        if self._held:
            self.join()
            self._held.clear()

    def settle(self) -> None:
        """Bring to their place all gradients that are not there yet."""
        self._rejoin()
        found: dict[nn.Parameter, Tensor] = {}
        for p in self.parameters:
            if p.grad is not None and p.grad is not self._gradient_of[p]:
                found[p] = p.grad
        again = []
        for p, gradient in self.pending:
            if p in found or p.grad is not None:
                again.append((p, gradient))
            else:
                found[p] = gradient
        self.pending.clear()
        for dtype in {gradient.dtype for gradient in found.values()}:
            alike = {p: gradient for p, gradient in found.items() if gradient.dtype == dtype}
            torch._foreach_copy_([self._gradient_of[p] for p in alike], list(alike.values()))
        for p in found:
            p.grad = self._gradient_of[p]
        for p, gradient in again:
            self.place(p)[0].add_(gradient)

    def reached(self) -> frozenset[nn.Parameter]:
        """Return the parameters that have a gradient."""
        return frozenset(p for p in self.parameters if p.grad is not None)


@dataclass(frozen=True)
class _Reached:
    """Which parameters have a gradient (1) or none (0): by parameter, of all groups, and for each group by block."""

    parameters: Tensor
    blocks: list[Tensor]


class FlatAdam:
    """Adam with clipping on groups of flat parameters; semantics as in :class:`achieve.nn.optim.ClippedAdam`.

    Args:
        groups: the network's parameters, then any others.
        learning_rate: in force until ``learning_rate``, a scalar on the device, is overwritten.
        skipped: counts the steps left out for gradients that are not finite.
    """

    def __init__(
        self,
        groups: Sequence[FlatParameters],
        learning_rate: float,
        max_grad_norm: float,
        eps: float,
        skipped: Tensor,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        self._groups = list(groups)
        self._max_grad_norm, self._eps, self._betas = max_grad_norm, eps, betas
        self._skipped = skipped
        device = skipped.device
        self.learning_rate = torch.tensor(learning_rate, dtype=torch.float32, device=device)
        count = sum(len(group.parameters) for group in self._groups)
        self.steps = torch.zeros(count, device=device)
        self._moments = [torch.zeros(2, len(group.values), device=device) for group in self._groups]
        self._corrections = torch.ones(2, count, device=device)
        self._decision = torch.zeros(3, device=device)  # norm, factor of the gradients, whether to leave the step out
        self._one = torch.ones((), device=device)
        counts = [adam.num_sums(len(group.values)) for group in self._groups]
        self._sums = torch.zeros(sum(counts), device=device)
        self._sums_of = self._sums.split(counts)
        self._owners = []
        number = 0
        for group in self._groups:
            owners = torch.zeros(len(group.values) // BLOCK, dtype=torch.int32)
            for p in group.parameters:
                owners[slice(*group.blocks(p))] = number
                number += 1
            self._owners.append(owners.to(device))
        self._known: dict[tuple[frozenset[nn.Parameter], ...], _Reached] = {}

    def state(self) -> dict[nn.Parameter, dict[str, Tensor]]:
        """Return each parameter's step and moments, as views: writing into them restores them."""
        found: dict[nn.Parameter, dict[str, Tensor]] = {}
        for group, moments in zip(self._groups, self._moments, strict=True):
            for p in group.parameters:
                found[p] = {
                    "step": self.steps[len(found)],
                    "exp_avg": group.view(moments[0], p),
                    "exp_avg_sq": group.view(moments[1], p),
                }
        return found

    def tensors(self) -> list[Tensor]:
        """Return every buffer a step changes, the parameters' own among them."""
        values = [group.values for group in self._groups]
        half = [part for group in self._groups if group.half for part in (group.half.weights, group.half.entry)]
        return [*values, *half, *self._moments, self.steps, self._skipped]

    def zero_grad(self) -> None:
        for group in self._groups:
            group.zero_grad()

    def step(self, skip: Tensor | None) -> Tensor:
        """Clip and step; return the norm of the gradients, in a place that the next step overwrites."""
        for group in self._groups:
            group.settle()
        reached = self._find_reached()
        scales = [(g.half.scale, g.half.scaled_blocks) if g.half else (self._one, 0) for g in self._groups]
        for at, group in enumerate(self._groups):
            adam.square_sums(group.gradients, reached.blocks[at], *scales[at], out=self._sums_of[at])
        adam.decide(
            self._sums, reached.parameters, skip, self.steps, self._corrections, self._decision, self._skipped,
            self.learning_rate, max_norm=self._max_grad_norm, betas=self._betas,
        )  # fmt: skip
        for at, group in enumerate(self._groups):
            adam.adam(
                group.values, group.gradients, self._moments[at], self._owners[at], reached.blocks[at],
                self._corrections, self._decision, *scales[at], group.half, betas=self._betas, eps=self._eps,
            )  # fmt: skip
        return self._decision[0]

    def _find_reached(self) -> _Reached:
        """Which parameters have gradients: kept for each set of them, as nothing can be uploaded within a capture."""
        key = tuple(group.reached() for group in self._groups)
        if key not in self._known:
            everyone = frozenset[nn.Parameter]().union(*key)
            flags = [p in everyone for group in self._groups for p in group.parameters]
            parameters = torch.tensor(flags, dtype=torch.int32, device=self.steps.device)
            self._known[key] = _Reached(parameters, [parameters[owners.long()] for owners in self._owners])
        return self._known[key]
