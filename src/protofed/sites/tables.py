"""What a person should know about the tables of several sites before they learn together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np

from protofed.data.arrow import LABEL_NAMES
from protofed.data.comparing import alike, majority
from protofed.data.dates import DAY, day
from protofed.data.options import DataOptions
from protofed.data.tables import another_unit, category
from protofed.data.typed import identifies
from protofed.errors import unknown_name
from protofed.sites.recipe import Notice, combine
from protofed.sites.scan import ColumnScan, SiteTable
from protofed.text import few
from protofed.untrusted import limits

MANY_CLASSES = 30  #: Most different values of a column that is taken for the label
FEW_CLASSES = 10  #: Most different numbers that are taken for classes however few samples there are
FEW_TESTED = 30  #: Test samples below which a difference of a few points is chance
TEST_FRACTION = 0.25
OUT = "leave the column out; correct it to use it"
_LABEL = re.compile(
    r".*(activity|class|condition|death|deceased|default|diagnos|died|disease|event|fraud|grade|group|label|"
    r"malign|mortality|outcome|positive|quality|readmi|recurr|relapse|response|result|species|stage|status|"
    r"surviv|target|type).*"
)
_SITE = re.compile(
    r"(bank|branch|center|centre|client|clinic|country|hospital|institution|site|source|station)(id|name|nr|number)?"
)
_PLACEHOLDER = re.compile(
    r"[^\w\d]+|empty|k\.? ?a\.?|missing|n\.?[abd]\.?|na|nan|nil|none?|not (available|done|known)|unbekannt|"
    r"unk(nown)?|void|x+",
    re.IGNORECASE,
)
"""Texts in place of a value that nobody knows."""
_WORD = re.compile(r"[+\-±]+|x+|none?|nil|void|empty", re.IGNORECASE)  #: Those that may be a category
Held = Mapping[str, Mapping[str, int]]  #: Number of samples of each class or category, by site
_BIRTH = re.compile(r".*(birth|born|dob|geb).*", re.IGNORECASE)


def find_site_column(sheet: SiteTable) -> str:
    """Return the column of a single table that most probably names its sites; "" if none does."""
    found = [n for n, c in sheet.columns.items() if is_site_column(n) and 2 <= len(c.distinct) <= 1000]
    return min(found, key=lambda name: len(sheet.columns[name].distinct), default="")


def is_site_column(column: str) -> bool:
    """Return whether a column has the name of one that names sites."""
    return _SITE.fullmatch(_fold(column)) is not None


def rename_columns(sheets: Sequence[SiteTable], asked: DataOptions) -> tuple[list[SiteTable], list[Notice]]:
    """Return tables whose columns have the usual spelling of their name, and what was found.

    Args:
        asked: Names of columns and categories in place of others, and columns to leave out.
    """
    sheets = [replace(sheet, columns=_match_columns(sheet, asked)) for sheet in sheets]
    votes = Counter(name for sheet in sheets for name in sheet.columns)
    usual = {_fold(name): name for name, _ in reversed(votes.most_common())}
    named, found = [], []
    for sheet in sheets:
        own = {n: usual[_fold(n)] for n in sheet.columns if usual[_fold(n)] not in sheet.columns}
        for old, new in own.items():
            options = {"data.rename": {old: new}}
            found.append(Notice(sheet.site, old, f"is called {new!r} elsewhere", f"read it as {new!r}", options))
        columns = {own.get(name, name): column for name, column in sheet.columns.items()}
        named.append(SiteTable(sheet.site, sheet.file, columns, sheet.tested))
    return named, found


def _match_columns(sheet: SiteTable, asked: DataOptions) -> dict[str, ColumnScan]:
    names = {n: asked.rename.get(n, n) for n in sheet.columns}
    kept = {names[n]: column for n, column in sheet.columns.items() if names[n] not in asked.drop}
    return {n: column.rename(asked.renamed.get(n, {})) for n, column in kept.items()}


def find_label(sheets: Sequence[SiteTable], wanted: str, names: Mapping[str, str]) -> tuple[str, Notice]:
    """Return the column that is most probably the label, or "", and what speaks for it.

    Args:
        wanted: The column that somebody has named; "" to guess.
    """
    common = [name for name in sheets[0].columns if all(name in sheet.columns for sheet in sheets)]
    if wanted:
        if lacking := [sheet.site for sheet in sheets if wanted not in sheet.columns]:
            return "", Notice(
                few(lacking), wanted, "is not there", unknown_name("label", wanted, common), open=True
            )
        if quantity := _quantity(sheets, wanted):
            return "", _no_classes(wanted, quantity, [name for name in common if _score(sheets, name, False)])
        return wanted, Notice(
            "", wanted, _classes(sheets, wanted, names), "the label", {"data.label_column": wanted}
        )
    scores = {name: _score(sheets, name, name == common[-1]) for name in common}
    ranked = sorted((name for name in common if scores[name]), key=lambda name: -scores[name])
    best = max(((_rate_label(name), name == common[-1]) for name in ranked), default=(0.0, False))
    for name in common:  # what is meant to be predicted may be no class
        last = not best[0] and name == common[-1]
        if (_rate_label(name) > best[0] or (last and not best[1])) and (quantity := _quantity(sheets, name)):
            return "", _no_classes(name, quantity, ranked)
    if not ranked:
        return "", Notice("", "", "no column looks like a label", f"name it: --label {few(common)}", open=True)
    others = [name for name in ranked[1:4] if 2 * scores[name] > scores[ranked[0]]]
    proposal = f"the label; it could be {' or '.join(others)}, too (--label)" if others else "the label"
    options = {"data.label_column": ranked[0]}
    return ranked[0], Notice("", ranked[0], _classes(sheets, ranked[0], names), proposal, options)


def _no_classes(name: str, quantity: str, others: Sequence[str]) -> Notice:
    named = f", or name another column: --label {few(others)}" if others else ""
    return Notice("", name, f"{quantity}; protofed classifies", f"make classes of it{named}", open=True)


def _quantity(sheets: Sequence[SiteTable], name: str) -> str:
    """Return what a column measures, in words; "" if its values may be classes, or identify samples."""
    columns = [sheet.columns[name] for sheet in sheets if sheet.columns[name].present]
    if not columns or not all(column.numeric for column in columns):
        return ""
    numbers = np.concatenate([column.numbers for column in columns])
    values, few = np.unique(numbers), max(FEW_CLASSES, len(numbers) / 5)
    if (values % 1).any():
        few = min(MANY_CLASSES, few)
    elif np.ptp(values) < len(values):
        return ""  # classes that are numbered without gaps
    if len(values) <= few or any(identifies(name, column.numbers) for column in columns):
        return ""
    return f"is a quantity from {numbers.min():g} to {numbers.max():g}"


def _score(sheets: Sequence[SiteTable], name: str, last: bool) -> float:
    """Return how much speaks for a column being the label; 0 if it cannot be."""
    columns = [sheet.columns[name] for sheet in sheets]
    values = {value for column in columns for value in column.distinct}
    rows = sum(len(column.present) for column in columns)
    fractions = any(column.numeric and bool((column.numbers % 1).any()) for column in columns)
    few = 2 <= len(values) <= min(MANY_CLASSES, rows / 5)
    if not few or fractions or sum(column.dates() for column in columns) > rows / 2:
        return 0.0
    words = 0.5 * (len(values) == 2) + 0.5 * (not any(c.numeric for c in columns))
    return _rate_label(name) + 1.5 * last + words + 0.1


def _rate_label(name: str) -> float:
    return 4.0 if name.casefold() in LABEL_NAMES else 3.0 if _LABEL.fullmatch(name.casefold()) else 0.0


def _classes(sheets: Sequence[SiteTable], name: str, names: Mapping[str, str]) -> str:
    held = (rename_counts(sheet.columns[name].distinct, names) for sheet in sheets)
    return format_classes(sum(held, Counter()))


def rename_counts(counts: Mapping[str, int], names: Mapping[str, str]) -> Counter[str]:
    """Return numbers of samples by class, with names in place of others."""
    found: Counter[str] = Counter()
    for value, number in counts.items():
        found[names.get(value, value)] += number
    return found


def format_classes(votes: Counter[str]) -> str:
    """Return numbers of samples by class in words."""
    return f"{len(votes)} classes: {few([f'{value} ({number:,})' for value, number in votes.most_common()], 6)}"


def judge(sheets: Sequence[SiteTable], label: str, settled: DataOptions) -> list[Notice]:
    """Return the notices for all columns and sites, in the order in which a person would read them.

    Args:
        label: The column of the label; "" if there is none.
    """
    if label:
        columns = [{**s.columns, label: s.columns[label].rename(settled.labels)} for s in sheets]
        sheets = [replace(sheet, columns=own) for sheet, own in zip(sheets, columns, strict=True)]
    found = [*_labels(sheets, label, settled.labels)] if label else []
    names = list(dict.fromkeys(name for sheet in sheets for name in sheet.columns if name != label))
    shared = [name for name in names if all(name in sheet.columns for sheet in sheets)]
    for name in names:
        if name not in shared:
            found += _ask_renamed(sheets, name)
            lacking = few([sheet.site for sheet in sheets if name not in sheet.columns])
            found.append(Notice(lacking, name, "is not there", "leave it out at all sites", {"data.drop": [name]}))
    dated = [name for name in shared if _is_date(sheets, name)]
    found += _dates(sheets, dated) if dated else ()
    for name in shared:
        if name not in dated:
            found += _column(sheets, name, settled.renamed.get(name, {}))
    dropped = {name for notice in found for name in notice.options.get("data.drop", ())}
    found += _missing(sheets, [name for name in shared if name not in dropped])
    if len(sheets) > 1 and "data.standardise" not in combine(found):
        told = "no column of numbers looks as if it had another unit at one site"
        options = {"data.standardise": "federated"}
        found.append(Notice("", "", told, "standardise numbers over all sites together", options))
    if label:
        settings = combine(found).get("data.labels", {})
        held = {sheet.site: rename_counts(sheet.columns[label].distinct, settings) for sheet in sheets}
        for sheet in sheets:
            tested = round(TEST_FRACTION * sheet.rows) if sheet.tested is None else sheet.tested
            found += note_classes(held, sheet.site, tested)
    return found


def _ask_renamed(sheets: Sequence[SiteTable], name: str) -> Iterator[Notice]:
    """Yield the question whether the column that one site alone has is what all others call something else."""
    (own, *more) = [sheet for sheet in sheets if name in sheet.columns]
    rest = [sheet for sheet in sheets if sheet is not own]
    if more or not rest:
        return
    common = set.intersection(*(set(sheet.columns) for sheet in rest)) - own.columns.keys()
    kind = own.columns[name].numeric
    alike = [n for n in rest[0].columns if n in common and rest[0].columns[n].numeric == kind]
    if alike:
        found = f"here alone, where others have {few(list(map(repr, alike)))}"
        told = f"the same? data.rename.{name}={alike[0] if len(alike) == 1 else '…'}"
        yield Notice(own.site, name, found, told, asks=True)


def _labels(sheets: Sequence[SiteTable], label: str, settled: Mapping[str, str]) -> Iterator[Notice]:
    held = {sheet.site: sheet.columns[label].distinct for sheet in sheets}
    yield from ask_renamed(held, label, "data.labels", settled)
    for sheet in sheets:
        column = sheet.columns[label]
        if column.missing:
            told = f"{column.missing} rows have none, the first is row {column.rows[column.texts.index(None)]}"
            yield Notice(sheet.site, label, told, "leave these rows out", {"data.unlabelled": "drop"})
    values = {value for sheet in sheets for value in sheet.columns[label].distinct}
    if not all(re.fullmatch(r"-?\d+", value) for value in values):
        yield from find_spellings(held, label, "data.labels")
    elif {int(value) for value in values} != set(range(len(values))):
        names = {value: value for value in sorted(values, key=int)}
        told = f"is numbered {few(list(names))}"
        yield Notice("", label, told, "use the numbers as names", {"data.labels": names})


def ask_renamed(held: Held, name: str, option: str, settled: Mapping[str, str]) -> Iterator[Notice]:
    """Yield what only one site says: words for a missing value, and names that may be those of all others.

    Args:
        held: Number of samples by class or category, by site.
        option: Option for names in place of others.
        settled: What it already says; a name in place of itself is one of its own.
    """
    within = _within(held)
    held = {site: rename_counts(counts, within) for site, counts in held.items()}
    for site, own in held.items():
        rest = [set(counts) for other, counts in held.items() if other != site and counts]
        alone = sorted(own.keys() - set().union(*rest) - settled.keys()) if rest else []
        if blanks := [n for n in alone if _PLACEHOLDER.fullmatch(n) and not _WORD.fullmatch(n)]:
            options = {"data.na_values": blanks}
            found = f"{few(list(map(repr, blanks)))} here alone"
            yield Notice(site, name, found, "read it as a missing value", options, asks=True)
        names = [n for n in alone if n not in blanks]
        usual, plain = sorted(rest[0]) if rest else [], len(own) - len(blanks)
        if not 2 <= len(names) == plain == len(usual) or any(other != rest[0] for other in rest):
            continue
        if (len(rest) == 1 and plain > 2) or any(n.isdecimal() for n in (*names, *usual)):
            continue  # two sites may have different classes; of numbers and words, see alike
        first = few(list(map(repr, usual)))
        told = f"the same? {' '.join(f'{option}.{n}=…' for n in names[:3])}; or {option}.{names[0]}={names[0]}"
        only = option == "data.labels"  # of which an answer depends
        yield Notice(site, name, f"{few(list(map(repr, names)))}, elsewhere {first}", told, open=only, asks=True)


def find_spellings(held: Held, name: str, option: str, column: str = "") -> Iterator[Notice]:
    """Yield the names of categories or classes that are probably the same.

    Args:
        column: The column in that option; "" if it is that of the label.
    """
    within = _within(held)
    for odd, usual in within.items():
        where = few([site for site, counts in held.items() if odd in counts])
        found, proposal = f"{odd!r} beside {usual!r}", f"read {odd!r} as {usual!r}"
        yield Notice(where, name, found, proposal, _renames(option, column, {odd: usual}))
    sites = [(site, tuple(dict.fromkeys(within.get(n, n) for n in counts))) for site, counts in held.items()]
    for match in alike(column, sites, {}):
        found = match.problem.split(" has ")[-1].removeprefix("has the classes ")
        if not match.renames:
            yield Notice(match.site, name, found, match.advice, open=True)
            continue
        again = {odd: match.renames[new] for odd, new in within.items() if new in match.renames}
        pairs = {**match.renames, **again}
        told = ", ".join(f"{old!r} as {new!r}" for old, new in pairs.items())
        yield Notice(match.site, name, found, f"read {told}", _renames(option, column, pairs))


def _renames(option: str, column: str, pairs: Mapping[str, str]) -> dict[str, Any]:
    return {option: {column: dict(pairs)} if column else dict(pairs)}


def _within(held: Held) -> dict[str, str]:
    """Return the most frequent spelling for every other one that differs from it in case and spaces alone."""
    votes = sum(map(Counter, held.values()), Counter[str]())
    usual = {" ".join(value.casefold().split()): value for value, _ in reversed(votes.most_common())}
    spelt = {value: usual[" ".join(value.casefold().split())] for value in votes}
    return {value: best for value, best in spelt.items() if value != best and len(value) > 1}


def _is_date(sheets: Sequence[SiteTable], name: str) -> bool:
    columns = [sheet.columns[name] for sheet in sheets if sheet.columns[name].present]
    plain = all(not column.numeric or set(map(len, column.present)) == {8} for column in columns)
    shares = [max(column.dates(), column.dates(True)) / len(column.present) for column in columns]
    return plain and min(shares, default=0.0) > 0.9


def _dates(sheets: Sequence[SiteTable], names: Sequence[str]) -> Iterator[Notice]:
    """Yield columns of dates: the latest as a day, the others as days before it, such as an age."""
    month_first = any(sheet.columns[n].dates(True) > sheet.columns[n].dates() for sheet in sheets for n in names)
    american = {"data.month_first": True} if month_first else {}
    wrong = {name: _no_dates(sheets, name, month_first) for name in names}
    middles = {name: _middle(sheets, name, month_first) for name in names if not wrong[name]}
    latest = max(middles, key=lambda name: middles[name], default="")
    for name in names:
        if wrong[name]:
            yield Notice("", name, f"{few(wrong[name])} among dates", OUT, {"data.drop": [name]})
        elif name == latest:
            yield Notice("", name, "dates", "use the day as a number", {"data.dates": {name: DAY}, **american})
        else:
            what = f"the age at {latest!r}" if _BIRTH.fullmatch(name) else f"the days until {latest!r}"
            yield Notice("", name, "dates", f"use {what}", {"data.dates": {name: latest}, **american})


def _no_dates(sheets: Sequence[SiteTable], name: str, month_first: bool) -> list[str]:
    """Return the values of a column of dates that are none, with their places."""
    columns = {sheet.site: sheet.columns[name] for sheet in sheets}
    return [
        f"{text!r} ({site}, row {column.rows[place]})"
        for site, column in columns.items()
        for place, text in enumerate(column.texts)
        if text is not None and day(text, month_first) is None
    ]


def _middle(sheets: Sequence[SiteTable], name: str, month_first: bool) -> float:
    found = (day(text, month_first) for sheet in sheets for text in sheet.columns[name].present)
    return float(np.median([number for number in found if number is not None]))


def _column(sheets: Sequence[SiteTable], name: str, settled: Mapping[str, str]) -> Iterator[Notice]:
    """Yield the notices for a column that all sites have and that holds no dates."""
    columns = {sheet.site: sheet.columns[name] for sheet in sheets if sheet.columns[name].present}
    if not columns:
        yield Notice("", name, "is empty at all sites", "leave it out", {"data.drop": [name]})
    elif majority(column.numeric for column in columns.values()):
        yield from _numbers(name, columns)
    else:
        yield from _words(name, columns, settled)


def _words(name: str, columns: Mapping[str, ColumnScan], settled: Mapping[str, str]) -> Iterator[Notice]:
    """Yield the notices for a column of texts."""
    texts = [text for column in columns.values() for text in column.present]
    number = len({value for column in columns.values() for value in column.distinct})
    hardly = any(identifies(name, np.array(list(map(category, c.present)))) for c in columns.values())
    if not hardly and number <= limits.CATEGORIES:
        if odd := [site for site, column in columns.items() if column.numeric]:
            yield Notice(few(odd), name, "numbers, where other sites have words", OUT, {"data.drop": [name]})
        else:
            held = {site: column.distinct for site, column in columns.items()}
            yield from ask_renamed(held, name, f"data.categories.{name}", settled)
            yield from find_spellings(held, name, "data.categories", name)
    elif sum(text.count(" ") for text in texts) >= 3 * len(texts):
        known = find_spec("wordllama") is not None
        use = "use the mean of its words' vectors" if known else "learn from its first words"
        form = {} if known else {"data.text_as": "tokens"}
        yield Notice("", name, "free text", use, {"data.text": [name], **form})
    else:
        told = "hardly repeats, like a name" if hardly else f"has {number} different texts"
        yield Notice("", name, told, "leave it out", {"data.drop": [name]})


def _numbers(name: str, columns: Mapping[str, ColumnScan]) -> Iterator[Notice]:
    """Yield the notices for a column of numbers."""
    if any(identifies(name, column.numbers) for column in columns.values()):
        yield Notice("", name, "hardly repeats, like a case number", "leave it out", {"data.drop": [name]})
        return
    odd = [(site, text, row) for site, column in columns.items() for text, row in column.odd.items()]
    if blanks := list(dict.fromkeys(text for _, text, _ in odd if _PLACEHOLDER.fullmatch(text))):
        sites = few(list(dict.fromkeys(site for site, text, _ in odd if text in blanks)))
        told = f"{few(list(map(repr, blanks)))} among numbers"
        yield Notice(sites, name, told, "read it as a missing value", {"data.na_values": blanks})
    for site, text, row in odd:
        if text not in blanks:
            yield Notice(site, name, f"{text!r} in row {row}, among numbers", OUT, {"data.drop": [name]})
            return
    middles = {site: float(np.median(column.numbers)) for site, column in columns.items() if len(column.numbers)}
    for site, middle in middles.items() if len(middles) > 1 else ():
        others = float(np.median([value for other, value in middles.items() if other != site]))
        rest = np.concatenate([column.numbers for other, column in columns.items() if other != site])
        (low, high), (first, last) = (np.quantile(values, [0.25, 0.75]) for values in (columns[site].numbers, rest))
        if another_unit((low, middle, high), (first, others, last)):
            told = f"median {middle:.4g}, elsewhere {others:.4g}: another unit?"
            yield Notice(site, name, told, "standardise each site by itself", {"data.standardise": "site"})


def _missing(sheets: Sequence[SiteTable], names: Sequence[str]) -> Iterator[Notice]:
    total = sum(sheet.rows for sheet in sheets)
    for name in names:
        lacking = {sheet.site: sheet.columns[name].missing for sheet in sheets if sheet.columns[name].missing}
        if lacking:
            told = f"{sum(lacking.values()):,} of {total:,} values are missing"
            proposal = "use the site's mean, and an input that says so"
            yield Notice(few(list(lacking)), name, told, proposal, {"data.missing": "indicator"})


def note_classes(held: Mapping[str, Mapping[str, int]], site: str, tested: int) -> Iterator[Notice]:
    """Yield the notices for the classes and the number of test samples of one site."""
    own = held[site]
    lacks = sorted({name for counts in held.values() for name in counts} - own.keys())
    if len(own) == 1:
        told = f"all {sum(own.values())} samples are {next(iter(own))!r}"
        yield Notice(site, "", told, "keep it: its accuracy says little")
    elif lacks:
        yield Notice(site, "", f"has no {few(lacks)}")
    if tested < FEW_TESTED:
        yield Notice(site, "", f"{tested} test samples: a gain of a few points cannot be seen")


def _fold(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.casefold())
