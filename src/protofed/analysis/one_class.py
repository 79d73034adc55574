"""Clients with training samples of one class: the meaning of their accuracy, and the rule that answers for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from protofed.runs.run import Run, by_label
from protofed.text import few, percent

NAMED = 12  #: Most clients of one split, and most methods, that a sentence lists
SPLITS = 3  #: Most splits whose clients the notice names


def one_class(runs: Sequence[Run]) -> str:
    """Return a notice on the clients that trained on one class alone; "" if none did."""
    concerned = [run for run in runs if _lone(run)]
    if not concerned:
        return ""
    splits: dict[str, int] = {}
    for run in concerned:
        names = (f"{run.clients[i].name} ({run.class_names[label]})" for i, label in _lone(run).items())
        splits.setdefault(few([*names], NAMED), run.seed)
    told = (
        [*splits]
        if len(splits) == 1 and len(concerned) == len(runs)
        else [f"seed {seed}: {names}" for names, seed in splits.items()]
    )
    several = len(splits) > 1 or len(_lone(concerned[0])) > 1
    whose, them = ("their", "them") if several else ("its", "it")
    sentences = [f"Trained on one class alone: {few(told, SPLITS, '; ')}."]
    known = all(client.counts == "exact" for run in concerned for client in run.clients)
    if known:
        own, everyone = (_share(part for run in concerned for part in parts(run)) for parts in (_of_own, _of_all))
        sentences.append(
            f"Always giving that class is right on {percent(own)} of {whose} own test samples and on "
            f"{percent(everyone)} of all clients’, so {whose} accuracy says nothing about other classes."
        )
    else:
        sentences.append(f"So {whose} accuracy says nothing about other classes.")
    groups = by_label(concerned)
    opened = {name: group[0] for name, group in groups.items() if _open_rule(group[0])}
    for rule in dict.fromkeys(map(_open_rule, opened.values())):
        by = [name for name, run in opened.items() if _open_rule(run) == rule]
        which = f" of {few(by, NAMED)}" if len(groups) > 1 else ""
        sentences.append(f"Predictions{which} for {them} are by {rule}.")
    return " ".join(sentences)


def _lone(run: Run) -> dict[int, int]:
    """Return place → class of the clients with training samples of one class."""
    return {i: client.only_class for i, client in enumerate(run.clients) if client.only_class is not None}


def _open_rule(run: Run) -> str:
    """Return the rule by which those clients answer, if it is another than the main rule; else ""."""
    rule = run.federation.open_rule
    return rule if rule != run.main_rule else ""


def _of_own(run: Run) -> list[tuple[float, int]]:
    """Return for each of those clients its test samples of its class, and all its test samples."""
    return [(run.clients[i].test[label], sum(run.clients[i].test)) for i, label in _lone(run).items()]


def _of_all(run: Run) -> list[tuple[float, int]]:
    """Return for each of those clients all clients' test samples of its class, and all their test samples."""
    held = [sum(column) for column in zip(*(client.test for client in run.clients), strict=True)]
    return [(held[label], sum(held)) for label in _lone(run).values()]


def _share(parts: Iterable[tuple[float, int]]) -> float | None:
    """Return the sum of the first numbers over that of the second; None if that is 0."""
    numbers, totals = map(sum, zip(*parts, strict=True)) if (parts := [*parts]) else (0, 0)
    return numbers / totals if totals else None
