"""Measure how the server's work on prototypes scales: ``papers/tools/prototypes.py``.

Times are wall-clock medians of a few repetitions; run it on an idle machine.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from rich.console import Console
from rich.table import Table

from protofed.methods import Task, Upload
from protofed.methods.fedproto import FedProto, FedProtoOptions
from protofed.prototypes import masks
from protofed.prototypes.alignment import align
from protofed.prototypes.contrastive import (
    adaptive_margin,
    contrast,
    hinge_prototypes,
    prototype_network,
    train_prototypes,
)
from protofed.prototypes.etf import simplex_etf
from protofed.prototypes.geometry import summary
from protofed.prototypes.mixtures import fit_mixtures, fuse
from protofed.wire.codec import get_codec

Row = tuple[str, str, str, str]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def median(work: Callable[[], object], repetitions: int = 5) -> float:
    """Return the median time of a few runs in seconds."""
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def shown(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.1f} ms"


def alignment() -> Iterator[Row]:
    iterations = 20
    for K, d in ((10, 512), (100, 512), (1000, 512), (200, 2048)):
        p = torch.randn(K, d, generator=generator())
        seconds = median(partial(align, p, max_iterations=iterations)) / iterations
        yield "ProtoNorm alignment, per iteration", f"K={K}, d={d}", shown(seconds), "<= 20 ms at K=1000"


def uploads(clients: int, K: int, d: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = generator()
    centres = 3 * torch.randn(K, d, generator=g)
    return centres.repeat(clients, 1) + torch.randn(clients * K, d, generator=g), torch.arange(K).repeat(clients)


def contrastive() -> Iterator[Row]:
    for clients, K, d in ((20, 10, 512), (100, 10, 512), (20, 100, 512)):
        p, labels = uploads(clients, K, d)
        start = prototype_network(K, d, generator=generator())
        margin = adaptive_margin(p, labels, K)
        epochs = 100 if len(p) <= 200 else 10  # longer ones are extrapolated to 100 epochs
        work = partial(train_prototypes, start, p, labels, contrast(margin), epochs=epochs, generator=generator())
        size = f"{clients} clients x K={K}, d={d}"
        yield "FedTGP server round, 100 epochs", size, shown(100 / epochs * median(work)), "<= 1 s for 20 x 10"
    for clients, K in ((20, 10), (20, 100)):
        p, labels = uploads(clients, K, 512)
        seconds = median(partial(hinge_prototypes, p, labels, K, margin=1.0))
        yield "FedTGP, hinge variant", f"{clients} clients x K={K}, d=512", shown(seconds), ""


def fitted(clients: int, samples: int, d: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return components as reported by clients for one class: mixtures fitted to samples of shifted features."""
    g = generator()
    labels = torch.arange(clients).repeat_interleave(samples)
    shift = 0.3 * torch.randn(clients, d, generator=g)
    centres = 2 * torch.randn(4, d, generator=g)
    modes = torch.randint(0, 4, (len(labels),), generator=g)
    x = centres[modes] + shift[labels] + torch.randn(len(labels), d, generator=g)
    fit = fit_mixtures(x, labels, clients, generator=g)
    return fit.weights.flatten(), fit.means.flatten(0, 1), fit.stds.flatten(0, 1).clamp(min=1e-3).square()


def alike(m: int, d: int, spread: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return components around four centres, with distances within a group of about spread²·d/4."""
    g = generator()
    means = 3 * torch.randn(4, d, generator=g).repeat(m // 4, 1) + spread * torch.randn(m, d, generator=g)
    return torch.rand(m, generator=g), means, torch.ones(m, d)


def mixtures() -> Iterator[Row]:
    for clients, d in ((100, 512), (1000, 128), (1000, 512)):
        reported = fitted(clients, 100, d)
        clusters = len(fuse(*reported).weights)
        size = f"{clients} clients x 4, d={d}, fitted to 100 samples: {clusters} clusters"
        yield "GFPL fusion of one class", size, shown(median(partial(fuse, *reported))), "<= 2 s"
    for name, spread in (("all well within reach", 0.03), ("all just within reach", 0.08), ("all just out", 0.1)):
        made = alike(4000, 512, spread)
        size = f"4000 in four groups, d=512, {name}: {len(fuse(*made).weights)} clusters"
        yield "GFPL fusion of one class", size, shown(median(partial(fuse, *made), 2)), "<= 2 s"
    g = generator()
    x, labels = torch.randn(2000, 512, generator=g), torch.arange(2000) % 10
    seconds = median(lambda: fit_mixtures(x, labels, 10, generator=g))
    yield "GFPL mixtures of one client", "2,000 samples, K=10, d=512", shown(seconds), ""


def hamming(masks: torch.Tensor) -> torch.Tensor:
    """Return the Hamming distances of all pairs ``j < k`` of ``(K, d)`` masks, ``|m_j| + |m_k| − 2 m_j·m_k``."""
    bits = masks.float()  # sums of 0s and 1s are exact in float32 up to 2^24
    ones = bits.sum(1)
    distances = ones.unsqueeze(0) + ones.unsqueeze(1) - 2 * (bits @ bits.T)
    first, second = torch.triu_indices(len(masks), len(masks), offset=1, device=masks.device)
    return distances[first, second].long()


def drawn_anew(K: int, d: int, s: int) -> torch.Tensor:
    """Return masks that are not kept from before."""
    masks._class_masks.cache_clear()
    return masks.class_masks(K, d, s)


def sparsification() -> Iterator[Row]:
    for K, d, s in ((10, 500, 50), (100, 500, 50), (1000, 2048, 205)):
        distances = hamming(masks.class_masks(K, d, s)).double()
        size = f"K={K}, d={d}, s={s}: Hamming distance min {distances.min():.0f}, mean {distances.mean():.1f}"
        yield "TinyProto masks", size, shown(median(partial(drawn_anew, K, d, s))), "<= 2 s"


def streaming() -> Iterator[Row]:
    """Measure FedProto's aggregation of uploads that are decoded one by one, as in the round loop."""
    K, d = 100, 512
    method = FedProto(FedProtoOptions(), Task(K, d, rounds=1, seed=0, class_size=1.0))
    codec = get_codec("float32")
    classes = torch.arange(K)
    message = codec.encode({"classes": classes, "prototypes": torch.randn(K, d)}, method.upload_schema)
    for clients in (1_000, 10_000):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        def aggregated(clients: int) -> object:
            each = (Upload(str(n), codec.decode(message, method.upload_schema)) for n in range(clients))
            return method.aggregate(method.server_state(), each, 1)

        seconds = median(partial(aggregated, clients), 3)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        size = f"{clients:,} clients x {K} classes x {d}: {clients * len(message) / 1e6:,.0f} MB arrive"
        yield "FedProto aggregation", f"{size}, peak memory +{grown:.0f} MB", shown(seconds), ""


def the_rest() -> Iterator[Row]:
    yield "simplex ETF", "K=100, d=512", shown(median(lambda: simplex_etf(100, 512))), ""
    p = torch.randn(1000, 512, generator=generator())
    yield "geometry summary", "K=1000, d=512", shown(median(lambda: summary(p))), ""


PARTS = {
    "alignment": alignment,
    "contrastive": contrastive,
    "mixtures": mixtures,
    "masks": sparsification,
    "streaming": streaming,
    "rest": the_rest,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"any of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}; choose from {', '.join(PARTS)}")
    torch.set_num_threads(options.threads)
    table = Table(title=f"torch {torch.__version__}, {options.threads} threads, {os.cpu_count()} processors")
    for heading in ("Work", "Size", "Time", "Goal"):
        table.add_column(heading, justify="right" if heading == "Time" else "left")
    for part in options.parts or PARTS:
        for row in PARTS[part]():
            table.add_row(*row)
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
