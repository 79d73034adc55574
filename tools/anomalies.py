"""What is odd in the papers' printed tables, computed from the numbers: ``python tools/anomalies.py [PAPER]``.

The pages in ``docs/reproduction`` contain this output; a test compares them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from protofed.reproduction.papers import ACCURACY, NAMES, Printed, find_paper

Key = tuple[tuple[str, str], ...]


def cells(paper: str, number: int, metric: str = ACCURACY) -> list[Printed]:
    return [p for p in find_paper(paper).table(number).printed if p.metric == metric]


def on(dataset: str, paper: str, number: int) -> list[Printed]:
    return [p for p in cells(paper, number) if p.settings["dataset"] == dataset]


def value(paper: str, number: int, method: str, metric: str = ACCURACY, **settings: str) -> float:
    (found,) = [
        p
        for p in cells(paper, number, metric)
        if p.method == method and all(p.settings.get(name) == wanted for name, wanted in settings.items())
    ]
    return float(found.value)


def pairs(mine: list[Printed], theirs: list[Printed], *names: tuple[str, str]) -> Iterator[tuple[Printed, Printed]]:
    """Yield numbers of two tables for the same method and settings, whose names may differ."""
    places = {(p.method, *(p.settings.get(b) for _, b in names)): p for p in theirs}
    for p in mine:
        other = places.get((p.method, *(p.settings.get(a) for a, _ in names)))
        if other is not None:
            yield p, other


SHARED = ("fesem", "fedprox", "fedper", "fedavg", "fedproto")


def gfpl() -> Iterator[str]:
    both = list(pairs(cells("gfpl", 1), cells("fedproto", 1), ("dataset", "dataset"), ("w_bar", "n")))
    both = [(a, b) for a, b in both if a.method in SHARED]
    cifar = [(a, b) for a, b in both if a.settings["dataset"] == "cifar10"]
    rest = [(a, b) for a, b in both if a.settings["dataset"] != "cifar10"]
    shifted = sum(round(float(b.value) - float(a.value), 2) == 12.0 and a.std == b.std for a, b in cifar)
    same = sum(float(a.value) == float(b.value) and a.std == b.std for a, b in rest)
    yield (
        f"Table 1, CIFAR10: {shifted} of {len(cifar)} numbers of FeSEM, FedProx, FedPer, FedAvg and FedProto are "
        "those of FedProto's Table 1 minus exactly 12.00, with the same deviations."
    )
    yield f"Table 1, MNIST and FEMNIST: {same} of {len(rest)} of them are FedProto's, with the same deviations."
    mh = {
        p.settings["n"]: p
        for p in cells("fedproto", 1)
        if p.method == "fedproto-mh" and p.settings["dataset"] == "cifar10"
    }
    own = {
        p.settings["w_bar"]: p
        for p in cells("gfpl", 1)
        if p.method == "gfpl" and p.settings["dataset"] == "cifar10"
    }
    equal = [n for n in own if own[n].std == mh[n].std]
    apart = ", ".join(f"{float(mh[n].value) - float(own[n].value):.2f}" for n in own)
    yield (
        f"GFPL's deviations on CIFAR10 are those of FedProto-mh in {len(equal)} of 3 columns; the means differ by "
        f"{apart}."
    )
    for variant, method in (("without-dcs-and-pfg", "local"), ("full", "gfpl")):
        for dataset in ("cifar10", "femnist", "cifar100"):
            there = value("gfpl", 2, "gfpl", dataset=dataset, variant=variant, s_hat="1")
            here = value("gfpl", 1, method, dataset=dataset, w_bar="4")
            if there != here:
                yield f"Table 2 has {there} for {method} on {dataset}, where Table 1 has {here}."
    margins = []
    for p in cells("gfpl", 1):
        if p.method == "gfpl":
            others = [
                float(q.value)
                for q in cells("gfpl", 1)
                if q.method != "gfpl" and all(q.settings[n] == p.settings[n] for n in ("dataset", "w_bar"))
            ]
            margins.append((round(float(p.value) - max(others), 2), p.settings["dataset"], p.settings["w_bar"]))
    best = max(margins)
    yield (
        f'The claimed "3.6%" is the largest of {len(margins)} margins over the best baseline ({best[0]} points, '
        f"{best[1]}, w = {best[2]}; the others are {min(margins)[0]} to {sorted(margins)[-2][0]}), over a shifted "
        "baseline."
    )
    printed = {
        p.settings["dataset"]: p.value
        for p in cells("gfpl", 3, "hyperparameter")
        if p.settings["name"] == "projection_dim"
    }
    yield (
        f"d is 50, 80, 128, 128 in Sec. 5.1 and {', '.join(printed.values())} in Table 3; 80 < K = 100 "
        f"breaks its own d > K."
    )


def fedproto() -> Iterator[str]:
    first = cells("fedproto", 1)
    names = [(n, n) for n in ("dataset", "n", "stdev_n")]
    rest = [p for number in (2, 3, 4) for p in cells("fedproto", number)]
    both = list(pairs(first, rest, *names))
    equal = sum(a.value == b.value and a.std == b.std for a, b in both)
    yield f"Table 1 repeats the accuracies of Tables 2 to 4 in {equal} of {len(both)} cells."
    for a, b in both:
        if a.value != b.value:
            where = ", ".join(f"{n} = {a.settings[n]}" for n in ("dataset", "n"))
            yield f"{a.method}, {where} is {a.value} in Table 1 and {b.value} elsewhere."
    columns = {tuple(p.settings[n] for n in ("dataset", "n", "stdev_n")) for p in rest}
    best = 0
    for column in columns:
        own = [p for p in rest if tuple(p.settings[n] for n in ("dataset", "n", "stdev_n")) == column]
        best += max(own, key=lambda p: float(p.value)).method in ("fedproto", "fedproto-mh")
    yield f"FedProto or FedProto-mh is best in {best} of {len(columns)} columns."
    losing = [
        f"{p.method} {p.value} (stdev {p.settings['stdev_n']}, n = {p.settings['n']})"
        for p in cells("fedproto", 2)
        if p.method in SHARED[:4]
        and float(p.value) > value("fedproto", 2, "fedproto", n=p.settings["n"], stdev_n=p.settings["stdev_n"])
    ]
    yield f'"In all the settings" on MNIST fails for {", ".join(losing)}.'
    spreads = {True: [], False: []}
    for p in rest:
        spreads[p.method.startswith("fedproto")].append(float(p.std))
    yield (
        f"FedProto's deviations are {min(spreads[True]):.2f} to {max(spreads[True]):.2f} on all tables, the "
        f"baselines' {min(spreads[False]):.2f} to {max(spreads[False]):.2f}."
    )


def tinyproto() -> Iterator[str]:
    mine = [p for n in (1, 3) for p in cells("tinyproto", n)]
    theirs = [
        p
        for n in (1, 2)
        for p in cells("protonorm", n)
        if p.settings.get("split") == "practical" and p.settings["d"] == "512"
    ]
    both = list(pairs(mine, theirs, *((n, n) for n in ("dataset", "alpha", "clients"))))
    same = [(a, b) for a, b in both if a.value == b.value and a.std == b.std]
    yield (
        f"{len(same)} of {len(both)} numbers of the six baselines shared with ProtoNorm are "
        f"the same there, although "
        "d is 500 here and 512 there."
    )
    for a, b in both:
        if (a, b) not in same:
            where = f"{a.method}, {a.settings['dataset']}"
            yield f"{where}: {a.value} here, {b.value} in ProtoNorm, deviation {a.std} in both."
    five = on("tinyimagenet", "tinyproto", 5)
    for number in sorted({p.value for p in five}):
        twice = [p for p in five if p.value == number]
        if len(twice) > 1:
            where = " and ".join(
                f"{p.method}, s = {p.settings['s']}, "
                f"{'with' if p.settings['scaling'] == 'yes' else 'without'} scaling"
                for p in twice
            )
            yield f"Table 5, TinyImageNet: {number} stands for {where}."
    lower, apart = 0, []
    for p in cells("tinyproto", 5):
        if p.method == "tinyproto-ft" and p.settings["scaling"] == "no" and p.settings["s"] != "none":
            base = value("tinyproto", 5, "fedtgp", dataset=p.settings["dataset"])
            lower += float(p.value) < base
            apart.append(float(p.value) - base)
    yield (
        f"On FedTGP, sparsification alone lowers accuracy in {lower} of {len(apart)} cells "
        f"({max(apart):+.2f} to {min(apart):+.2f})."
    )
    gains = [
        value("tinyproto", 5, "tinyproto-ft", dataset=d, s="none", scaling="yes")
        - value("tinyproto", 5, "fedtgp", dataset=d)
        for d in ("cifar10", "cifar100", "tinyimagenet")
    ]
    yield (
        f"Scaling alone adds {', '.join(f'{g:.2f}' for g in gains)}: nearly all of TinyProto-FT's gain "
        f"comes from it."
    )
    ratios = {
        d: value("tinyproto", 1, "feddistill", "params_millions", dataset=d)
        / value("tinyproto", 1, "tinyproto-ft", "params_millions", dataset=d)
        for d in ("cifar10", "cifar100", "tinyimagenet")
    }
    shown = ", ".join(f"{ratio:.1f} on {d}" for d, ratio in ratios.items())
    yield f'"Up to 4x" fewer parameters than FedDistill: {shown} (CIFAR-10 is printed as "<0.01").'


def protonorm() -> Iterator[str]:
    clients = {m: value("protonorm", 2, "feddistill", clients=m) for m in ("50", "100")}
    alone = value("protonorm", 1, "feddistill", dataset="cifar100", split="practical")
    yield (
        f"Accuracy falls with the number of clients for all methods but FedDistill: {alone:.2f}, "
        f"{clients['50']:.2f}, {clients['100']:.2f} at 20, 50 and 100."
    )
    scaled = max(
        (float(p.value), p.settings["gamma"])
        for p in cells("protonorm", 5)
        if p.value and p.method == "fedtgp" and p.settings["dataset"] == "cifar100"
    )
    own = value("protonorm", 1, "protonorm", dataset="cifar100", split="practical")
    yield (
        f"Scaled FedTGP on CIFAR-100 ({scaled[0]} at gamma = {scaled[1]}) is {own - scaled[0]:.2f} "
        f"below ProtoNorm ({own})."
    )
    unscaled = [
        value("protonorm", 4, "protonorm", dataset=d, gamma="1") for d in ("cifar100", "flowers102", "tinyimagenet")
    ]
    base = [
        value("protonorm", 1, "fedproto", dataset=d, split="practical")
        for d in ("cifar100", "flowers102", "tinyimagenet")
    ]
    yield (
        f"Alignment without upscaling ({', '.join(map(str, unscaled))}) stays near FedProto "
        f"({', '.join(map(str, base))})."
    )
    datasets = len({p.settings["dataset"] for p in cells("protonorm", 4)})
    yield f"Table 4's caption says CIFAR-100, but it has {datasets} data sets."
    a, b = value("protonorm", 2, "lg-fedavg", d="64"), value("protonorm", 2, "lg-fedavg", clients="50")
    yield f"LG-FedAvg is {a} at d = 64 and {b} at 50 clients."


PAPERS = {"fedproto": fedproto, "gfpl": gfpl, "protonorm": protonorm, "tinyproto": tinyproto}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paper", nargs="?", choices=NAMES)
    chosen = parser.parse_args().paper
    for name in [chosen] if chosen else NAMES:
        for line in PAPERS[name]():
            print(f"- {line}")


if __name__ == "__main__":
    main()
