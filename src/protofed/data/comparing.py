"""Comparison of files or sites before training: their columns, and names that probably mean the same.

Sites are compared by what they state, without a sample, so that files in one place and sites of a network are held
to the same rules. Different classes or categories alone are no finding.
"""

from __future__ import annotations

import json
import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from protofed.data.options import DataOptions
from protofed.data.tables import TEXTS, Kind, RawColumn
from protofed.errors import DataError, unknown_name
from protofed.text import few
from protofed.untrusted import claims, limits

T = TypeVar("T", bound=Hashable)
Names = tuple[str, ...]

_SHOWN = 5  #: Findings, or values of one finding, that a message shows
_SEPARATOR = r"""[\s_'"()\[\]:;/\\]+"""
_HYPHEN = r"[-\u2010-\u2015]"
_EMPTY = re.compile(
    rf"(?<!\d){_SEPARATOR}|{_SEPARATOR}(?!\d)|[.,](?!\d)|(?<=[^\W\d_]){_HYPHEN}(?=\w)|(?<=\d){_HYPHEN}(?=[^\W\d_])"
)
"""Characters without a meaning of their own; between digits (``5-10``) or at an end (``A-``) they may have one."""
_ROMAN = re.compile("x{0,3}(ix|iv|v?i{0,3})")
_WORDS: dict[Kind, str] = {"number": "numbers", "category": "categories", "text": "texts", "token": "texts"}


@dataclass(frozen=True)
class Site:
    """A file's or site's statements about its data."""

    name: str
    classes: Names = ()
    columns: tuple[RawColumn, ...] | None = None


@dataclass(frozen=True)
class Mismatch:
    """A probable fault in the data of one site."""

    site: str
    column: str  #: "" for the label, or for the table as a whole
    values: Names
    problem: str
    advice: str = ""  #: Remedy in words, unless ``renames`` says it or the column is an identifier
    renames: Mapping[str, str] = field(default_factory=dict)  #: Proposed names in place of those that the site has
    identifier: bool = False


def check(sites: Sequence[Site], data: DataOptions, classes: Sequence[str] = ()) -> None:
    """Refuse sites whose data probably do not mean the same."""
    if findings := compare(sites, data, classes):
        raise DataError(describe(findings))


def describe(findings: Sequence[Mismatch], named: bool = True) -> str:
    """Return findings and their remedies in one line."""
    groups: dict[str, list[str]] = {}
    remedies: dict[str, None] = {}
    renames: dict[str, dict[str, str]] = {}
    for f in findings:
        groups.setdefault(f.problem, []).append(claims.clean(f.site))
        renames.setdefault(_option(f.column), {}).update(f.renames)
        if f.advice:
            remedies[f.advice] = None
    if columns := dict.fromkeys(claims.clean(f.column, 80) for f in findings if f.identifier):
        chosen = ",".join(list(columns)[:_SHOWN])
        remedies[f"set data.drop={chosen} to leave identifiers out, or data.keep={chosen} to use them"] = None
    for option, names in renames.items():
        pairs = ", ".join(f"{_key(odd)} = {_quote(usual)}" for odd, usual in list(names.items())[: 2 * _SHOWN])
        remedies |= {f"set {option}={{{pairs}}}": None} if names else {}
    parts = [(f"{few(sites, 1)}: " if named else "") + problem for problem, sites in groups.items()]
    return f"{few(parts, _SHOWN, '; ')}: {'; '.join(list(remedies)[:_SHOWN])}"


def compare(sites: Sequence[Site], data: DataOptions, classes: Sequence[str] = ()) -> list[Mismatch]:
    """Return probable faults in the data of sites, each for a site that differs from most.

    These are: other columns, or another kind of column; identifiers; categories that are not declared; names in
    several spellings (``Benign``, ``BENIGN``); abbreviations of names of other sites (``M`` and ``B`` beside
    ``malignant`` and ``benign``); and numbers where all others have words. Ties go to the first site.

    Args:
        data: A name mapped to itself in them is meant as it is.
        classes: If given, names of sites are not compared.
    """
    found = []
    if any(site.columns is not None for site in sites):
        names = [None if s.columns is None else frozenset(c.name for c in s.columns) for s in sites]
        usual = majority(names)
        home = claims.clean(sites[names.index(usual)].name)
        found = [_other_columns(s, own, usual, home) for s, own in zip(sites, names, strict=True) if own != usual]
        fitting = [(s.name, s.columns) for s, own in zip(sites, names, strict=True) if s.columns and own == usual]
        by_name: dict[str, list[tuple[str, RawColumn]]] = {}
        for site, columns in fitting:
            for column in columns:
                by_name.setdefault(column.name, []).append((site, column))
        for held in by_name.values():
            found += _column(held, data)
    if not classes:
        found += alike("", [(site.name, site.classes) for site in sites if site.classes], data.labels)
    return found


def majority(values: Iterable[T], preferred: T | None = None) -> T:
    """Return the most frequent value; ties go to ``preferred``, or else to the first."""
    votes = Counter(values)
    most = max(votes.values())
    first = [value for value, n in votes.items() if n == most]
    return preferred if preferred is not None and preferred in first else first[0]


def _other_columns(site: Site, own: frozenset[str] | None, usual: frozenset[str] | None, home: str) -> Mismatch:
    if own is None or usual is None:
        what = f"holds no table, but {home} does" if own is None else f"holds a table, but {home} does not"
        return Mismatch(site.name, "", (), what, "use one form for all clients")
    odd = sorted(usual - own or own - usual)
    has = ("lacks", "has") if usual - own else ("has", "lacks")
    what = f"{has[0]} the column {_list_values(odd)}, which {home} {has[1]}"
    text = any(column.kind in TEXTS for column in site.columns or ())
    vectors, tokens = (text and f" [{how} " in odd[0] for how in ("wordllama", "tokenizer"))
    advice = "install the version of wordllama that the others have" if vectors else ""
    advice = "set data.tokenizer to the file that the others have" if tokens else advice
    return Mismatch(
        site.name, odd[0], (), what, advice or "all sites need the same columns (data.drop leaves some out)"
    )


def _column(sites: Sequence[tuple[str, RawColumn]], data: DataOptions) -> list[Mismatch]:
    """Return the findings for a column that all sites have."""
    kinds = {kind: n for kind, n in Counter(column.kind for _, column in sites).items() if kind != "unknown"}
    if kinds.keys() <= {"number"}:
        return []
    name, usual = sites[0][1].name, max(kinds, key=lambda kind: kinds[kind])
    where, option = f"column {_format_value(name)}", _option(name)
    found, known, rest = [], set[str](), []
    declared = data.declared.get(name, ())
    for site, column in sites:
        values: Names = ()
        advice, identifier = "", "identifier" in (column.kind, usual)
        if identifier:
            what = f"{where} looks like an identifier, as its values hardly repeat"
        elif column.kind not in ("unknown", usual):
            home = next(other for other, own in sites if own.kind == usual)
            what = f"{where} holds {_WORDS[column.kind]}, but {_WORDS[usual]} at {claims.clean(home)}"
            advice = f'correct it, or declare categories by {option}=[], or rename them by {option}={{0 = "no"}}'
        elif declared and (values := tuple(sorted(set(column.categories) - set(declared)))):
            what = f"{where}: {unknown_name('category', claims.clean(values[0], 80), declared)}"
            advice = f"{option} lists them"
        elif len(known.union(column.categories)) > limits.CATEGORIES:
            what = f"brings the categories of {where} to more than {limits.CATEGORIES}"
            advice = f"leave it out by data.drop={claims.clean(name, 80)}"
        else:
            known |= set(column.categories)
            rest.append((site, column.categories))
            continue
        found.append(Mismatch(site, name, values, what, advice, identifier=identifier))
    return found if declared else found + alike(name, rest, data.renamed.get(name, {}))


def alike(column: str, sites: Sequence[tuple[str, Names]], settled: Mapping[str, str]) -> list[Mismatch]:
    """Return the findings for the names of classes (``column`` is "") or of the categories of a column.

    Args:
        settled: Names in place of others; those in place of themselves are not compared.
    """
    open_names = [(site, tuple(n for n in names if settled.get(n) != n)) for site, names in sites]
    votes = Counter(names for _, names in open_names if names)  # many sites have the same names
    lists, weights = list(votes), list(votes.values())
    holders: dict[str, set[int]] = {}
    for place, names in enumerate(lists):
        for name in names:
            holders.setdefault(name, set()).add(place)
    number = {name: sum(weights[place] for place in places) for name, places in holders.items()}
    odd = _spellings(holders, lists, number)
    rest = {name: places for name, places in holders.items() if name not in odd}
    forms = _abbreviations(rest, lists, number)
    odd = {name: forms.get(usual, usual) for name, usual in odd.items()} | forms
    what, found = f"column {_format_value(column)} has" if column else "has the classes", []
    for site, names in open_names:
        if own := {name: odd[name] for name in names if name in odd}:
            problem = f"{what} {_list_values(list(own))} beside {_list_values(sorted(set(own.values())))}"
            found.append(Mismatch(site, column, tuple(own), problem, renames=own))
    digits = {names: {name.isdecimal() for name in names} for names in votes}
    if found or any(len(kinds) > 1 for kinds in digits.values()) or len(set().union(*digits.values())) < 2:
        return found
    usual = majority(min(digits[names]) for _, names in open_names if names)
    home = next(names for names in votes if usual in digits[names])
    advice = f'name them alike, as by {_option(column)}={{0 = "no"}}'
    return [
        Mismatch(
            site, column, names, f"{what} {_list_values(names)} where others have {_list_values(home)}", advice
        )
        for site, names in open_names
        if names and usual not in digits[names]
    ]


def _spellings(
    holders: Mapping[str, set[int]], lists: Sequence[Names], number: Mapping[str, int]
) -> dict[str, str]:
    """Return the usual spelling for every other one; the arguments are those of :func:`_abbreviations`."""
    same: dict[str, list[str]] = {}
    for name in holders:
        same.setdefault(_fold(name), []).append(name)
    odd: dict[str, str] = {}
    for names in same.values():
        usual = max(names, key=lambda name: number[name])
        # A site with both letters, such as a and A, tells them apart.
        if max(map(len, names)) > 1 or not any(set(names) <= set(lists[place]) for place in holders[usual]):
            odd |= {name: usual for name in names if name != usual}
    return odd


def _fold(name: str) -> str:
    """Return a form that names share if they differ only in case, spaces or punctuation."""
    text = unicodedata.normalize("NFKC", name).casefold().strip()
    return _EMPTY.sub("", text) or text


def _abbreviations(
    holders: Mapping[str, set[int]], lists: Sequence[Names], number: Mapping[str, int]
) -> dict[str, str]:
    """Return the usual form for every name that is an abbreviation, or has one that is more usual.

    Both forms may not occur at one site, or else all its names of one letter have to be abbreviations there. At
    least half of the names of some site have to be abbreviations, which ``A`` and ``AB`` or ``I`` and ``III`` of
    different sites are not taken for.
    """
    pairs = _pairs(list(holders))
    found: dict[str, str] = {}
    for place in sorted(set().union(*(holders[short] for short in pairs))):
        names = lists[place]
        own = {short: pairs[short] for short in names if short in pairs}
        apart = {short: long for short, long in own.items() if not holders[short] & holders[long]}
        if 2 * len(apart) >= len(names) and _telling(apart):
            found |= apart
        within = {short: long for short, long in own.items() if len(short) == 1 and place in holders[long]}
        if 2 <= len(within) == sum(len(n) == 1 and n.isalpha() for n in names) and _telling(within):
            found |= within
    shorts, longs = (sum(number[name] for name in side) for side in (found.keys(), found.values()))
    first = next((name for name in holders if name in found or name in found.values()), "")
    reverse = shorts > longs or (shorts == longs and first in found)
    return {long: short for short, long in found.items()} if reverse else found


def _pairs(names: Sequence[str]) -> dict[str, str]:
    """Return the only other name that each name abbreviates: as its initial, its beginning, or by its initials."""
    forms = {_fold(name): name for name in names}
    ordered = sorted(forms)
    initials: dict[str, set[str]] = {}
    for name in names:
        words = re.findall(r"[^\W_]+", name.casefold())
        initials.setdefault("".join(word[0] for word in words) if len(words) > 1 else "", set()).add(name)
    pairs = {}
    for short, name in forms.items():
        at = bisect_right(ordered, short)
        begun = [form for form in ordered[at : at + 2] if form.startswith(short) and not _ROMAN.fullmatch(form)]
        longer = {forms[form] for form in begun if len(short) == 1 or forms[form].isalpha()}
        longer |= initials.get(short, set()) - {name}
        if short.isalpha() and len(longer) == 1:
            pairs[name] = longer.pop()
    return pairs


def _telling(pairs: Mapping[str, str]) -> bool:
    """Return whether pairs can be no coincidence: an initial, initials of words, or the beginnings of two words."""
    strong = [short for short, long in pairs.items() if len(long) > 2]
    return len(strong) > 1 or any(len(short) == 1 or not pairs[short].isalpha() for short in strong)


def merge_columns(sites: Sequence[Site], data: DataOptions) -> tuple[RawColumn, ...]:
    """Return the columns of sites without findings, in the order of the first site."""
    tables = [{column.name: column for column in site.columns} for site in sites if site.columns is not None]
    columns = []
    for name in tables[0]:
        held = [table[name] for table in tables]
        union = {value for column in held for value in column.categories}
        kinds = {column.kind for column in held}
        kind: Kind = next((k for k in ("category", *TEXTS) if k in kinds), "number")
        columns.append(RawColumn(name, kind, data.declared.get(name) or tuple(sorted(union))))
    return tuple(columns)


def _option(column: str) -> str:
    """Return the option for the names of a column, as it is typed."""
    shown = claims.clean(column, 80) if set(column).isdisjoint(".=") else _quote(column)
    return f"data.categories.{shown}" if column else "data.labels"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quote(name)


def _quote(name: str) -> str:
    return json.dumps(claims.clean(name, 80), ensure_ascii=False)


def _format_value(name: str) -> str:
    return repr(claims.clean(name))


def _list_values(values: Sequence[str]) -> str:
    return few([_format_value(value) for value in values], _SHOWN)
