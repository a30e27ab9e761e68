"""Times the encoder's convolutions on a GPU, kernel by kernel, with other tiles than those in use.

`python -m benchmarks.convolutions OUT` compiles all candidates side by side, times each for 512 and 224 images as a
replayed graph, compares what it computes with the tile in use, prints the best, and writes all times to OUT and the
best tiles to OUT.choice. `python -m benchmarks.convolutions towers LABEL SECONDS [OUT.choice [START]]` then times the
residual stacks, both ways, with the tiles in use or with those; with START, the clock's time to begin at, it can be
started several times at once.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from achieve.nn.kernels import norm_conv
from achieve.nn.kernels.norm_conv import Before, Folded, Tile, WeightTile
from achieve.nn.kernels.tower import Tower
from achieve.nn.layers import NormConv

Shape = tuple[int, int, int]
Job = tuple[str, Shape, Any]
# Inputs, outputs, side: the first stack's blocks, the second's first layer, its blocks, the third's blocks.
A, B, C, D = (64, 64, 32), (64, 128, 32), (128, 128, 16), (128, 128, 8)
SIZES = (512, 224)
FAR = 3e-2
"""Sums cancel: they may differ by more than rounding. A wrong index gives 1."""
WORKERS = 15


def tiles(*rows: tuple[int, ...]) -> list[Tile]:
    """Tiles in Gluon by rows, columns, depth, warps and stages, and the most registers of a thread, if said."""
    return [Tile(*row, gluon=True) for row in rows]


def weight_tiles(*rows: tuple[int, int, int, int, int]) -> list[WeightTile]:
    """Tiles in Gluon by outputs, depth, warps, stages and programs."""
    return [WeightTile(o, 64, 3, d, w, s, p, gluon=True) for o, d, w, s, p in rows]


OF_64 = tiles(
    (256, 64, 32, 4, 2), (256, 64, 32, 4, 3), (128, 64, 32, 4, 2), (128, 64, 32, 4, 3), (128, 64, 64, 4, 2),
    (128, 64, 64, 4, 3),
)  # fmt: skip
OF_128 = tiles(
    (256, 64, 32, 4, 2), (256, 64, 32, 4, 3), (128, 64, 32, 4, 2), (128, 64, 32, 4, 3), (128, 128, 32, 4, 2),
    (128, 128, 32, 4, 2, 168), (128, 128, 32, 4, 3), (128, 128, 32, 8, 2), (128, 128, 32, 8, 3), (256, 128, 32, 8, 2),
)  # fmt: skip
SMALL = tiles(
    (64, 128, 32, 4, 2), (64, 128, 32, 4, 3), (64, 128, 32, 8, 2), (64, 64, 32, 4, 2), (64, 64, 32, 4, 3),
    (64, 64, 32, 4, 4),
)  # fmt: skip
CANDIDATES: dict[tuple[str, Shape], list[Any]] = {
    **{(kind, A): OF_64 for kind in ("fwd", "fwd-skip", "bwd", "bwd-store")},
    ("fwd", B): OF_128, ("bwd", B): OF_64,
    **{(kind, C): OF_128 for kind in ("fwd", "fwd-skip", "bwd", "bwd-store")},
    **{(kind, D): SMALL for kind in ("fwd", "fwd-skip", "bwd", "bwd-store")},
    ("wgrad", A): weight_tiles(
        (64, 128, 4, 2, 132), (64, 128, 4, 2, 264), (64, 128, 4, 3, 132), (64, 256, 4, 2, 132), (64, 64, 4, 4, 264),
        (64, 64, 4, 3, 396),
    ),
    **{("wgrad", shape): weight_tiles(
        (128, 128, 8, 2, 132), (128, 128, 8, 2, 264), (128, 128, 8, 3, 132), (64, 128, 4, 2, 264), (64, 128, 4, 3, 132),
        (128, 64, 8, 4, 132),
    ) for shape in (B, C)},
    ("wgrad", D): weight_tiles((64, 64, 4, 3, 132), (64, 64, 4, 4, 132), (64, 64, 4, 3, 264), (128, 64, 8, 3, 132)),
}  # fmt: skip


def all_jobs() -> list[Job]:
    """Each kernel with the tile in use (None) and with every candidate."""
    return [(kind, shape, tile) for (kind, shape), some in CANDIDATES.items() for tile in [None, *some]]


def draw(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, device="cuda", generator=generator)


def fold(weight: Tensor, gain: Tensor, bias: Tensor) -> Folded:
    (folded,) = norm_conv.fold([(weight, gain, bias)], norm_conv.empty_folded([weight], torch.float16))
    return folded


def make(kind: str, shape: Shape, images: int) -> Callable[[Any], tuple[Tensor, ...]]:
    """A launch of this kernel on random images, by its tile; what it returns can be compared."""
    c, o, side = shape
    g = torch.Generator("cuda").manual_seed(0)
    layout: Any = {"memory_format": torch.channels_last}
    x = draw(g, images, c, side, side).relu().half().contiguous(**layout)
    out = draw(g, images, o, side, side).half().contiguous(**layout)
    gain, bias = 1 + draw(g, c) / 10, draw(g, c) / 10
    weight = draw(g, o, c, 3, 3) / (3 * c**0.5)
    folded, before = fold(weight, gain, bias), fold(draw(g, c, c, 3, 3) / (3 * c**0.5), gain, bias)
    sums = norm_conv.image_sums(x)
    moments = torch.stack([draw(g, images).abs() / 10, 1 + draw(g, images).abs() / 10], 1)
    grad = norm_conv.begin_backward(out, out, folded, moments, relu=False)
    affine = torch.zeros(9 * o, 2, c, device="cuda")

    def forward(tile: Any) -> tuple[Tensor, ...]:
        return (norm_conv.convolve(x, sums, folded, 1e-5, relu=shape != B, tile=tile).out,)

    def forward_skip(tile: Any) -> tuple[Tensor, ...]:
        found = norm_conv.convolve(x, sums, folded, 1e-5, skip=out, keep=True, tile=tile)
        assert found.kept is not None
        return found.out, found.kept, found.sums.sum(2)

    def backward(tile: Any) -> tuple[Tensor, ...]:
        of = Before(None, before, moments)
        _, found = norm_conv.convolve_backward(grad, folded, x, moments, store=False, before=of, tile=tile)
        assert found is not None
        return found.scaled, found.sums.sum(2), found.class_sums.sum(1)

    def backward_store(tile: Any) -> tuple[Tensor, ...]:
        of = Before(x, before, moments)
        kept, found = norm_conv.convolve_backward(
            grad, folded, x, moments, grad_sum=x, store=True, before=of, tile=tile
        )
        assert kept is not None and found is not None
        return kept, found.scaled, found.sums.sum(2), found.class_sums.sum(1)

    def weights(tile: Any) -> tuple[Tensor, ...]:
        return (norm_conv.weight_gradient(grad, x, moments, weight, gain, bias, affine, tile),)

    return {
        "fwd": forward, "fwd-skip": forward_skip, "bwd": backward, "bwd-store": backward_store, "wgrad": weights
    }[kind]  # fmt: skip


def compile_some(jobs: list[Job]) -> None:
    """Launch each once: Triton keeps what it compiled on disk."""
    for kind, shape, tile in jobs:
        try:
            make(kind, shape, 16)(tile)
            torch.cuda.synchronize()
        except Exception as error:
            print("FAILED", kind, shape, tile, str(error)[:200], flush=True)
            return  # after an illegal access nothing works in this process any more


def microseconds(launch: Callable[[], object], launches: int = 16) -> float:
    """The median of six replays of a graph of so many launches."""
    for _ in range(2):
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(launches):
            launch()
    times = []
    for _ in range(6):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1000 / launches)
    return sorted(times)[2]


def time_shape(shape: Shape, queue: Any) -> None:
    """Time all candidates of one shape; in a process of its own, as one that fails would spoil the others."""
    for images in SIZES:
        for (kind, of), candidates in CANDIDATES.items():
            if of != shape:
                continue
            launch = make(kind, shape, images)
            wanted: tuple[Tensor, ...] = ()
            for tile in [None, *candidates]:
                row: dict[str, Any] = {"kind": kind, "shape": shape, "images": images, "tile": tile and tile._asdict()}
                try:
                    found = launch(tile)
                    row["us"] = round(microseconds(lambda: launch(tile)), 2)  # noqa: B023
                    wanted = wanted or found
                    pairs = zip(found, wanted, strict=True)
                    row["far"] = max(((a.float() - b.float()).norm() / b.float().norm()).item() for a, b in pairs)
                except Exception as error:
                    row["error"] = str(error)[:300]
                queue.put(row)
    queue.put(None)


def report(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Print the best tiles of each kernel; return the best."""
    choice = {}
    for kind, shape in CANDIDATES:
        mine = [row for row in rows if (row["kind"], tuple(row["shape"])) == (kind, shape)]
        used = {row["images"]: row["us"] for row in mine if row["tile"] is None and "us" in row}
        print(kind, shape, "in use:", used)
        if len(used) < len(SIZES):
            continue
        scores = []
        for tile in {json.dumps(row["tile"]) for row in mine}:
            both = [row for row in mine if json.dumps(row["tile"]) == tile]
            if len(both) == len(SIZES) and all("us" in row and row["far"] < FAR for row in both):
                scores.append((sum(row["us"] / used[row["images"]] for row in both) / len(both), tile, both))
        scores.sort(key=lambda score: score[0])
        for ratio, tile, both in scores[:4]:
            print(f"    {ratio:.3f}", [row["us"] for row in both], f"{max(row['far'] for row in both):.0e}", tile)
        choice["/".join(map(str, (kind, *shape)))] = json.loads(scores[0][1])
    for row in rows:
        if "error" in row or row["far"] > FAR:
            print("BAD", row)
    return choice


def compare(out: str) -> None:
    """Compile, time and report."""
    began = time.time()
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=compile_some, args=(all_jobs()[i::WORKERS],)) for i in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(f"compiled after {time.time() - began:.0f} s", flush=True)
    rows: list[dict[str, Any]] = []
    for shape in (A, C, B, D):
        queue = context.Queue()
        process = context.Process(target=time_shape, args=(shape, queue))
        process.start()
        try:
            while (row := queue.get(timeout=40)) is not None:
                rows.append(row)
        except Exception as error:
            print("stopped at", shape, repr(error))
            process.kill()
        process.join()
        with open(out, "w") as file:
            json.dump(rows, file)
    with open(out + ".choice", "w") as file:
        json.dump(report(rows), file)
    print(f"done after {time.time() - began:.0f} s")


def use(path: str) -> None:
    """Let the package choose these tiles."""
    with open(path) as file:
        choice = json.load(file)
    tile_in_use, weight_tile_in_use = norm_conv.choose_tile, norm_conv.choose_weight_tile

    def choose_tile(x: Tensor, outputs: int, *, backward: bool = False) -> Tile:
        plain = tile_in_use(x, outputs, backward=backward)
        shape = (outputs, x.shape[1]) if backward else (x.shape[1], outputs)
        found = choice.get("/".join(map(str, ("bwd" if backward else "fwd", *shape, x.shape[2]))))
        return Tile(**found) if found and (plain.tma or plain.gluon) else plain

    def choose_weight_tile(x: Tensor, outputs: int) -> WeightTile:
        plain = weight_tile_in_use(x, outputs)
        found = choice.get("/".join(map(str, ("wgrad", x.shape[1], outputs, x.shape[2]))))
        return WeightTile(**found) if found and (plain.tma or plain.gluon) else plain

    patched: Any = norm_conv
    patched.choose_tile, patched.choose_weight_tile = choose_tile, choose_weight_tile


def time_towers(label: str, seconds: float, choice: str | None = None, start: str | None = None) -> None:
    """Time the three stacks' residual blocks: 512 and 224 images both ways, 384 forward."""
    if choice:
        use(choice)
    torch.manual_seed(0)
    graphs = []
    for images, both in ((512, True), (224, True), (384, False)):
        towers = []
        for c, o, side in ((64, 128, 32), (128, 128, 16), (128, 0, 8)):
            layers = [NormConv(c, o if i == 4 else c, norm=True, gain=1.0).cuda() for i in range(5 if o else 4)]
            x = torch.randn(images, c, side, side, device="cuda").relu().half()
            x = x.contiguous(memory_format=torch.channels_last).requires_grad_(both)
            towers.append((Tower(layers, torch.float16), x, [p for layer in layers for p in layer.parameters()]))

        def step(towers: Any = towers, both: bool = both) -> None:
            with torch.set_grad_enabled(both):
                for tower, x, parameters in towers:
                    y = tower(x, cached=False)
                    if both:
                        torch.autograd.grad(y, [x, *parameters], torch.ones_like(y))

        with torch.cuda.stream(torch.cuda.Stream()):
            step()
            step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        # The step keeps what the graph reads.
        graphs.append((f"{images}{'' if both else ' forward'}", graph, step))
    while start and time.time() < float(start):
        time.sleep(0.01)
    said = []
    for name, graph, _ in graphs:
        graph.replay()
        torch.cuda.synchronize()
        count, began = 0, time.time()
        while time.time() < began + seconds:
            for _ in range(5):
                graph.replay()
            torch.cuda.synchronize()
            count += 5
        said.append(f"{name}: {(time.time() - began) / count * 1e6:.0f} us")
    print(label, *said, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare tiles, or time the stacks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", metavar="OUT or towers")
    parser.add_argument("towers", nargs="*", metavar="LABEL SECONDS [OUT.choice [START]]")
    args = parser.parse_args(arguments)
    if (args.what == "towers") != (2 <= len(args.towers) <= 4):
        parser.error("give OUT, or towers LABEL SECONDS [OUT.choice [START]]")
    if not torch.cuda.is_available():
        parser.error("there is no GPU to time anything on")
    if args.what == "towers":
        label, seconds, *more = args.towers
        time_towers(label, float(seconds), *more)
    else:
        compare(args.what)


if __name__ == "__main__":
    main()
