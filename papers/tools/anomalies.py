"""What is odd in the papers' printed tables, computed from the numbers: ``papers/tools/anomalies.py [PAPER]``.

The pages in ``reproduction`` contain this output; a test compares them.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterable, Iterator

from protofed_papers.papers import ACCURACY, NAMES, Printed, find_paper

METHODS = {
    "fedavg": "FedAvg",
    "feddistill": "FedDistill",
    "fedfa": "FedFA",
    "fedpa": "FedPA",
    "fedper": "FedPer",
    "fedproto": "FedProto",
    "fedprox": "FedProx",
    "fedrep": "FedRep",
    "fesem": "FeSEM",
    "gfpl": "GFPL",
    "lg-fedavg": "LG-FedAvg",
    "local": "Local",
    "tinyproto-fp": "TinyProto-FP",
    "tinyproto-ft": "TinyProto-FT",
}
DATASETS = {  # as TinyProto and ProtoNorm write them; FedProto and GFPL write capitals
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "flowers102": "Flowers-102",
    "tinyimagenet": "TinyImageNet",
}
CLASSES = {"cifar10": 10, "cifar100": 100, "tinyimagenet": 200}
STATED_D = {"mnist": "50", "femnist": "80", "cifar10": "128", "cifar100": "128"}  # GFPL, Sec. 5.1
RESNET18_D = 512
FEDPROTO_TABLES = {"mnist": 2, "femnist": 3, "cifar10": 4}

Pairs = list[tuple[Printed, Printed]]


def cells(paper: str, *numbers: int, metric: str = ACCURACY, **settings: str) -> list[Printed]:
    """Return the numbers of some tables with these settings."""
    printed = [p for number in numbers for p in find_paper(paper).table(number).printed]
    return [p for p in printed if p.metric == metric and settings.items() <= p.settings.items()]


def row(paper: str, number: int, method: str, **settings: str) -> list[Printed]:
    return [p for p in cells(paper, number, **settings) if p.method == method]


def cell(paper: str, number: int, method: str, **settings: str) -> Printed:
    (found,) = row(paper, number, method, **settings)
    return found


def values(printed: Iterable[Printed], name: str) -> dict[str, float]:
    """Return values by a setting."""
    return {p.settings[name]: float(p.value) for p in printed}


def columns(printed: Iterable[Printed], *names: str) -> list[list[Printed]]:
    """Return numbers in groups that share the named settings."""
    found: dict[tuple[str, ...], list[Printed]] = {}
    for p in printed:
        found.setdefault(tuple(p.settings[n] for n in names), []).append(p)
    return list(found.values())


def pairs(mine: list[Printed], theirs: list[Printed], *names: tuple[str, str]) -> Pairs:
    """Return numbers of two tables for the same method and settings, whose names may differ."""
    places = {(p.method, *(p.settings.get(b) for _, b in names)): p for p in theirs}
    keys = [(p.method, *(p.settings.get(a) for a, _ in names)) for p in mine]
    return [(p, places[key]) for p, key in zip(mine, keys, strict=True) if key in places]


def change(a: Printed, b: Printed) -> float:
    return float(b.value) - float(a.value)


def equal(a: Printed, b: Printed) -> bool:
    return float(a.value) == float(b.value) and a.std == b.std


def repeated(both: Pairs) -> str:
    return f"{sum(equal(a, b) for a, b in both)} of {len(both)}"


def best(printed: Iterable[Printed]) -> Printed:
    return max((p for p in printed if p.value), key=lambda p: float(p.value))


def span(numbers: Iterable[float], form: str = ".2f") -> str:
    ordered = sorted(numbers)
    return f"{ordered[0]:{form}} to {ordered[-1]:{form}}"


def listed(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def methods(printed: Iterable[Printed]) -> str:
    return listed(dict.fromkeys(METHODS[p.method] for p in printed))


def capitals(p: Printed) -> str:
    return p.settings["dataset"].upper()


def shown(p: Printed) -> str:
    return f"{p.value} ± {p.std}"


def caption(paper: str, number: int, says: str) -> str:
    datasets = {p.settings["dataset"] for p in cells(paper, number)}
    return f"Table {number}'s caption says {says}, but it has {len(datasets)} data sets."


def gfpl() -> Iterator[str]:
    yield from gfpl_baselines()
    yield from gfpl_deviations()
    yield from gfpl_ablation()
    yield from gfpl_margins()
    yield from gfpl_dimensions()
    yield from gfpl_bound()


def gfpl_bound() -> Iterator[str]:
    """Appendix B.1: I <= D/2 log(2 pi e s^2) - 1/2 log det(2 pi e S), where 2 pi e cancels."""
    size, variance, determinant = 512, 0.1, 1e-5
    bits = (size * math.log(variance) - math.log(determinant)) / 2 / math.log(2)
    yield (
        f"Appendix B.1 gives less than 0.005 bits for D = {size}, a variance of {variance} and a determinant of "
        f"{determinant:g}; its formula gives {bits:.0f}, and no mutual information is negative."
    )


def gfpl_baselines() -> Iterator[str]:
    accuracies, rounds, parameters = gfpl_shared("cifar10")
    shifts = Counter(round(change(a, b), 2) for a, b in accuracies if a.std == b.std)
    ((shift, count),) = shifts.most_common(1)
    five = methods(a for a, _ in accuracies)
    yield (
        f"Table 1, CIFAR10: {count} of {len(accuracies)} numbers of {five} are those of FedProto's Table 1 minus "
        f"exactly {shift:.2f}, with the same deviations."
    )
    changed = listed(
        f"{METHODS[a.method]}'s {int(b.value):,} thousand became {int(a.value):,} thousand"
        for a, b in parameters
        if not equal(a, b)
    )
    yield (
        f"Table 1, CIFAR10: the rounds of {repeated(rounds)} of these methods are FedProto's, and so are the "
        f"parameters of {repeated(parameters)}; {changed}."
    )
    accuracies, rounds, parameters = gfpl_shared("mnist", "femnist")
    yield (
        f"Table 1, MNIST and FEMNIST: {repeated(accuracies)} accuracies of {five} are FedProto's, with the same "
        f"deviations, and so are {repeated(rounds)} numbers of rounds and {repeated(parameters)} of parameters."
    )
    known = {"gfpl", *(p.method for p in cells("fedproto", 1, 2, 3, 4))}
    others = methods(p for p in cells("gfpl", 1) if p.method not in known)
    yield f"Table 1: {others} have no counterpart in FedProto's tables, so the origin of their numbers is open."


def gfpl_shared(*datasets: str) -> Iterator[Pairs]:
    """Yield accuracies, rounds and parameters of Table 1 with FedProto's, where both papers have them."""
    for metric in (ACCURACY, "rounds", "params_thousands"):
        mine = [p for dataset in datasets for p in cells("gfpl", 1, metric=metric, dataset=dataset)]
        yield pairs(mine, cells("fedproto", 1, metric=metric), ("dataset", "dataset"), ("w_bar", "n"))


def gfpl_deviations() -> Iterator[str]:
    cifar, mnist, femnist = (
        list(zip(row("gfpl", 1, "gfpl", dataset=d), row("fedproto", 1, "fedproto-mh", dataset=d), strict=True))
        for d in ("cifar10", "mnist", "femnist")
    )
    on_cifar, on_mnist, on_femnist = (
        f"{sum(a.std == b.std for a, b in both)} of {len(both)}" for both in (cifar, mnist, femnist)
    )
    apart = listed(f"{change(a, b):.2f}" for a, b in cifar)
    yield (
        f"Table 1, CIFAR10: GFPL's deviations ({', '.join(a.std for a, _ in cifar)}) are those of FedProto-mh in "
        f"FedProto's Table 1 in {on_cifar} columns, although the means differ by {apart}; on MNIST they are in "
        f"{on_mnist}, on FEMNIST in {on_femnist}."
    )


def gfpl_ablation() -> Iterator[str]:
    both = [
        (here, cell("gfpl", 1, method, dataset=here.settings["dataset"], w_bar=here.settings["w_bar"]))
        for variant, method in (("without-dcs-and-pfg", "local"), ("full", "gfpl"))
        for here in row("gfpl", 2, "gfpl", variant=variant, s_hat="1")
    ]
    same = listed(f"{METHODS[b.method]} on {capitals(b)}" for a, b in both if equal(a, b))
    yield (
        f"Table 2, ŝ = 1 repeats Table 1's Local (as GFPL without DCS and PFG) and GFPL, w = 4 in {repeated(both)} "
        f"cells: {same}."
    )
    for a, b in both:
        if not equal(a, b):
            yield (
                f"Table 2 has {shown(a)} for {METHODS[b.method]} on {capitals(a)} (ŵ = {a.settings['w_hat']}, "
                f"ŝ = {a.settings['s_hat']}), where Table 1 has {shown(b)} (ŵ = {b.settings['w_hat']}, "
                f"ŝ = {b.settings['s_hat']})."
            )
    yield caption("gfpl", 2, "CIFAR10")


def gfpl_margins() -> Iterator[str]:
    both = []
    for column in columns(cells("gfpl", 1), "dataset", "w_bar"):
        (own,) = [p for p in column if p.method == "gfpl"]
        both.append((best(p for p in column if p.method != "gfpl"), own))
    *others, (rival, own) = sorted(both, key=lambda pair: change(*pair))
    yield (
        f'The claimed "3.6%" is the largest of {len(both)} margins over the best baseline in Table 1 '
        f"({change(rival, own):.2f} points, {capitals(own)}, w = {own.settings['w_bar']}; the others are "
        f"{span(change(*pair) for pair in others)}), over a shifted baseline ({METHODS[rival.method]})."
    )


def gfpl_dimensions() -> Iterator[str]:
    printed = {
        p.settings["dataset"]: p.value for p in cells("gfpl", 3, metric="hyperparameter", name="projection_dim")
    }
    yield (
        f"d on MNIST, FEMNIST, CIFAR10 and CIFAR100 is {', '.join(STATED_D.values())} in Sec. 5.1 and "
        f"{', '.join(printed.values())} in Table 3; {printed['cifar100']} < K = {CLASSES['cifar100']} on CIFAR100 "
        "breaks its own d > K."
    )
    ten, hundred = (
        cell("gfpl", 1, "gfpl", metric="params_thousands", dataset=d).value for d in ("cifar10", "cifar100")
    )
    yield (
        f"Table 1 prints {ten} thousand parameters for GFPL on CIFAR10 and {hundred} thousand on CIFAR100, at "
        f"equal d: {STATED_D['cifar10']} and {STATED_D['cifar100']} in Sec. 5.1, {printed['cifar10']} and "
        f"{printed['cifar100']} in Table 3."
    )
    sizes = sorted({RESNET18_D, *map(int, STATED_D.values()), *map(int, printed.values())})
    costs = row("gfpl", 1, "fedproto", metric="params_thousands")
    fitting = [str(d) for p in costs for d in sizes if round(20 * 4 * d / 1000) == int(p.value)]
    yield (
        f"Table 1 prints {', '.join(p.value for p in costs)} thousand parameters for FedProto on "
        f"{listed(map(capitals, costs))}; of d = {listed(map(str, sizes))} (ResNet18's) only {', '.join(fitting)} "
        "fit 20 clients x 4 classes x d."
    )


def fedproto() -> Iterator[str]:
    yield from fedproto_table1()
    yield from fedproto_columns()
    yield from fedproto_table4()
    yield from fedproto_deviations()


def fedproto_table1() -> Iterator[str]:
    accuracies = fedproto_twice(ACCURACY, "dataset", "n", "stdev_n")
    rounds = fedproto_twice("rounds", "dataset")
    parameters = fedproto_twice("params_thousands", "dataset")
    every = repeated(accuracies + rounds + parameters)
    yield (
        f"Table 1 repeats {repeated(accuracies)} accuracies, {repeated(rounds)} numbers of rounds and "
        f"{repeated(parameters)} numbers of parameters of Tables 2 to 4, together {every} cells."
    )
    for a, b in accuracies:
        if not equal(a, b):
            dataset, n = a.settings["dataset"], a.settings["n"]
            there = cell("gfpl", 1, a.method, dataset=dataset, w_bar=n)
            yield (
                f"{METHODS[a.method]}, {capitals(a)}, n = {n} is {shown(a)} in Table 1 and {shown(b)} in Table "
                f"{FEDPROTO_TABLES[dataset]}; GFPL's Table 1 has {there.value}."
            )


def fedproto_twice(metric: str, *names: str) -> Pairs:
    """Return the numbers of Table 1 with those of Tables 2 to 4."""
    later = cells("fedproto", *FEDPROTO_TABLES.values(), metric=metric)
    return pairs(cells("fedproto", 1, metric=metric), later, *((n, n) for n in names))


def fedproto_columns() -> Iterator[str]:
    printed = cells("fedproto", *FEDPROTO_TABLES.values())
    winners = [best(column) for column in columns(printed, "dataset", "stdev_n", "n")]
    lost = [p for p in winners if not fedproto_own(p)]
    yield (
        f"FedProto or FedProto-mh is best in {len(winners) - len(lost)} of {len(winners)} columns of Tables 2 to "
        f"4; the others go to {listed(map(fedproto_place, lost))}."
    )
    mnist = [p for p in winners if p.settings["dataset"] == "mnist"]
    failing = [p for p in mnist if p in lost]
    yield (
        f'"In all the settings" on MNIST fails in {len(failing)} of {len(mnist)} columns of Table 2, for '
        f"{listed(map(fedproto_place, failing))}."
    )


def fedproto_own(p: Printed) -> bool:
    return p.method in ("fedproto", "fedproto-mh")


def fedproto_place(p: Printed) -> str:
    return f"{METHODS[p.method]} {p.value} ({capitals(p)}, stdev {p.settings['stdev_n']}, n = {p.settings['n']})"


def fedproto_table4() -> Iterator[str]:
    one, two = (cells("fedproto", 4, n="3", stdev_n=stdev) for stdev in ("1", "2"))
    changes = {a.method: change(a, b) for a, b in pairs(one, two)}
    rise = changes.pop("fedper")
    yield (
        f"Table 4, CIFAR10, n = 3: from stdev 1 to 2 FedPer rises by {rise:.2f}, while the {len(changes)} other "
        f"methods fall by {span(-c for c in changes.values())}."
    )


def fedproto_deviations() -> Iterator[str]:
    printed = cells("fedproto", 1, 2, 3, 4)
    own = span(float(p.std) for p in printed if fedproto_own(p))
    others = span(float(p.std) for p in printed if not fedproto_own(p))
    yield f"The deviations of FedProto and FedProto-mh are {own} in all tables, the baselines' {others}."


def tinyproto() -> Iterator[str]:
    yield from tinyproto_shared()
    yield from tinyproto_repetitions()
    yield from tinyproto_ablation()
    yield from tinyproto_costs()


def tinyproto_shared() -> Iterator[str]:
    mine = cells("tinyproto", 1, 3)
    theirs = cells("protonorm", 1, 2, split="practical", d="512")
    both = pairs(mine, theirs, *((n, n) for n in ("dataset", "alpha", "clients")))
    yield (
        f"Tables 1 and 3: {repeated(both)} numbers of the {len({a.method for a, _ in both})} baselines shared with "
        f"ProtoNorm are the same there, with the same deviations, although d is {mine[0].settings['d']} here and "
        f"{theirs[0].settings['d']} there."
    )
    for a, b in both:
        if not equal(a, b):
            where = f"{METHODS[a.method]}, {DATASETS[a.settings['dataset']]}"
            yield f"{where}: {shown(a)} in Table 1, {shown(b)} in ProtoNorm's Table 1."


def tinyproto_repetitions() -> Iterator[str]:
    five = cells("tinyproto", 5, dataset="tinyimagenet")
    for number in sorted({p.value for p in five}):
        twice = [p for p in five if p.value == number]
        if len(twice) > 1:
            yield (
                f"Table 5, TinyImageNet: {number} stands for {listed(map(tinyproto_place, twice))}, possibly by a "
                "mixed-up column."
            )


def tinyproto_place(p: Printed) -> str:
    scaling = "with" if p.settings["scaling"] == "yes" else "without"
    return f"{METHODS[p.method]}, s = {p.settings['s']}, {scaling} scaling (± {p.std})"


def tinyproto_ablation() -> Iterator[str]:
    accuracies, parameters = (
        pairs(
            cells("tinyproto", 5, metric=metric, s="50", scaling="yes"),
            cells("tinyproto", 1, metric=metric),
            ("dataset", "dataset"),
        )
        for metric in (ACCURACY, "params_millions")
    )
    yield (
        "Table 5: the marks of scaling are lost in the transcribed text and inferred from the order of rows; those "
        f"with scaling and s = 50 equal Table 1 in {repeated(accuracies + parameters)} cells."
    )
    base = values(row("tinyproto", 5, "fedtgp"), "dataset")
    scaled = values(row("tinyproto", 5, "tinyproto-ft", s="none"), "dataset")
    sparse = [p for p in row("tinyproto", 5, "tinyproto-ft") if p.settings["s"] != "none"]
    alone, on_top = (
        [float(p.value) - without[p.settings["dataset"]] for p in sparse if p.settings["scaling"] == scaling]
        for scaling, without in (("no", base), ("yes", scaled))
    )
    yield (
        f"Table 5: on FedTGP, sparsification alone lowers accuracy in {sum(a < 0 for a in alone)} of {len(alone)} "
        f"cells ({span(alone, '+.2f')})."
    )
    yield (
        f"Table 5: on FedTGP, scaling alone adds {', '.join(f'{scaled[d] - base[d]:.2f}' for d in scaled)} "
        f"({', '.join(DATASETS[d] for d in scaled)}) and sparsification on top of it {span(on_top, '+.2f')}: "
        "nearly all of TinyProto-FT's gain comes from scaling."
    )


def tinyproto_costs() -> Iterator[str]:
    means = listed(f"{tinyproto_classes(dataset)} on {DATASETS[dataset]}" for dataset in CLASSES)
    yield (
        "Tables 1 and 5: the parameters of FedDistill and of prototype methods agree with Table 2's formulas for a "
        f"mean number of classes per client of {means}."
    )
    less = tinyproto_ratios("feddistill", "tinyproto-ft")
    at_most, *others = (f"{ratio:.1f} on {DATASETS[dataset]}" for dataset, ratio in less.items())
    true = listed(DATASETS[dataset] for dataset, ratio in less.items() if ratio >= 4)
    yield (
        f'"Up to 4x" fewer parameters than FedDistill holds on {true} only: Table 1\'s ratio of FedDistill to '
        f'TinyProto-FT is {listed(others)}, and less than {at_most}, where FedDistill is printed as "<0.01".'
    )
    kept = tinyproto_ratios("fedkd", "fml")
    yield (
        f"Table 1: FedKD's parameters are {', '.join(f'{ratio:.3f}' for ratio in kept.values())} x FML's "
        f"({', '.join(DATASETS[dataset] for dataset in kept)})."
    )


def tinyproto_classes(dataset: str) -> str:
    """Return the mean classes per client for which clients x (mean + K) x size rounds to every printed cost."""
    least, most, total = [], [], CLASSES[dataset]
    for p in cells("tinyproto", 1, 5, metric="params_millions", dataset=dataset):
        if p.method in ("lg-fedavg", "fml", "fedkd") or "upper bound" in p.note:
            continue
        sent = p.settings["d"] if p.settings.get("s", "none") == "none" else p.settings["s"]
        size = total if p.method == "feddistill" else int(sent)
        per_class = int(p.settings["clients"]) * size / 1e6
        least.append((float(p.value) - 0.005) / per_class - total)
        most.append((float(p.value) + 0.005) / per_class - total)
    return f"{max(least):.1f} to {min(most):.1f}"


def tinyproto_ratios(method: str, other: str) -> dict[str, float]:
    mine, theirs = (
        values(row("tinyproto", 1, name, metric="params_millions"), "dataset") for name in (method, other)
    )
    return {dataset: mine[dataset] / theirs[dataset] for dataset in mine}


def protonorm() -> Iterator[str]:
    yield from protonorm_clients()
    yield from protonorm_upscaling()
    a, b = (cell("protonorm", 2, "lg-fedavg", **where) for where in ({"d": "64"}, {"clients": "50"}))
    yield f"Table 2: LG-FedAvg on CIFAR-100 is {shown(a)} at d = 64 and {shown(b)} at 50 clients."


def protonorm_clients() -> Iterator[str]:
    series = {}
    for first in cells("protonorm", 1, dataset="cifar100", split="practical"):
        more = [cell("protonorm", 2, first.method, clients=clients) for clients in ("50", "100")]
        series[first.method] = [first, *more]
    for method, printed in series.items():
        numbers = [float(p.value) for p in printed]
        if numbers != sorted(numbers, reverse=True):
            yield (
                f"Tables 1 and 2, CIFAR-100: accuracy falls with the number of clients for all {len(series)} "
                f"methods but {METHODS[method]}: {', '.join(p.value for p in printed)} at "
                f"{listed(p.settings['clients'] for p in printed)} clients."
            )


def protonorm_upscaling() -> Iterator[str]:
    scaled = best(row("protonorm", 5, "fedtgp", dataset="cifar100"))
    own = cell("protonorm", 1, "protonorm", dataset="cifar100", split="practical")
    yield (
        f"Scaled FedTGP on CIFAR-100 ({scaled.value} at gamma = {scaled.settings['gamma']}, Table 5) is "
        f"{change(scaled, own):.2f} below ProtoNorm ({shown(own)}, Table 1)."
    )
    unscaled = row("protonorm", 4, "protonorm", gamma="1")
    base = [cell("protonorm", 1, "fedproto", dataset=p.settings["dataset"], split="practical") for p in unscaled]
    yield (
        f"Alignment without upscaling ({', '.join(p.value for p in unscaled)} on "
        f"{listed(DATASETS[p.settings['dataset']] for p in unscaled)}, Table 4, gamma = 1) stays near FedProto "
        f"({', '.join(p.value for p in base)}, Table 1)."
    )
    yield caption("protonorm", 4, "CIFAR-100")


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
