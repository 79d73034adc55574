"""Recompute what pages say from the committed single runs, with numpy and scipy alone: ``papers/tools/referee.py``.

Prints each cell of a table that differs from its runs, and each accuracy, gain or ratio in a sentence that no file
behind it holds, and exits with 1 if there is one. Behind a sentence is what it links to, or its section and the
tables of its page: means over seeds, deviations, differences between two arms with their intervals, recorded cells.
:data:`UNFOUNDED` lists the exceptions.
"""

from __future__ import annotations

import csv
import math
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations, groupby
from pathlib import Path

import numpy as np
from scipy import stats

ROOT = Path(__file__).resolve().parents[2]
STUDIES = ROOT / "papers/studies"
Row = Mapping[str, str]
Arm = dict[int, dict[str, dict[str, float]]]  #: Figures of every run of an arm, by seed and rule
FIGURES = ("bytes", "seconds", "final", "union", "unseen", "newcomers")
OWN, OPEN = ("head", "global"), ("shared_head", "global_model", "global", "head")
"""Rules of a client's own classes and of all classes, the first that an arm has."""
ONE = r"[+-]?\d[\d,]*(?:\.\d+)?"
NUMBER = re.compile(rf"(?<![\w.^/]){ONE}(?![\w/]|\.\d)")
INTERVAL = re.compile(r"[+-]\d+\.\d+ \([+-]\d+\.\d+ (?:…|to) [+-]\d+\.\d+\)")
QUOTED = re.compile(
    rf"(?<![\w.^/-])((?:{ONE}(?:,? (?:and|to|or|against|instead of) |, | … | / | ± ))*{ONE})"
    r"(?= (%)| points?\b| times\b| kB\b)"
)
"""Numbers that tell of an outcome: accuracies, gains, ratios, sizes of messages."""


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def by(lines: Iterable[Row], *names: str) -> dict[tuple[str, ...], list[Row]]:
    found: dict[tuple[str, ...], list[Row]] = {}
    for line in lines:
        found.setdefault(tuple(line[name] for name in names), []).append(line)
    return found


def text_of(page: Path) -> str:
    """Return a page with one sign for minus, without blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.S | re.M).replace("−", "-")


def tables(page: Path | str, first: str = "") -> list[list[list[str]]]:
    """Return the tables of a page or text whose head begins with a cell, as rows of cells without marks."""
    text = page if isinstance(page, str) else text_of(page)
    blocks = groupby(text.splitlines(), key=lambda line: line.startswith("|"))
    plain = [[re.sub(r"[*`]", "", line) for line in lines] for is_table, lines in blocks if is_table]
    found = [[[c.strip() for c in line.strip("| ").split(" | ")] for line in (t[0], *t[2:])] for t in plain]
    return [table for table in found if table[0][0].startswith(first)]


def numbers(text: str) -> list[str]:
    return [found.replace(",", "") for found in NUMBER.findall(text)]


def agree(said: Sequence[str], found: Sequence[float]) -> bool:
    """Return whether each number is what was found, to the digits that it has."""
    digits = (len(own.partition(".")[2]) for own in said)
    alike = (abs(float(s) - f) <= 0.5 * 10.0**-d + 1e-6 for s, f, d in zip(said, found, digits, strict=False))
    return len(said) == len(found) and all(alike)


# What single runs say.


def arms_of(lines: Iterable[Row]) -> dict[str, Arm]:
    """Return the arms in the lines of a file, one line per run and rule."""
    found: dict[str, Arm] = {}
    for line in lines:
        runs = found.setdefault(line["arm"].removesuffix("-fixed"), {}).setdefault(int(line["seed"]), {})
        runs[line["rule"]] = {name: float(line[name]) for name in FIGURES if line[name]}
    return found


def values(arm: Arm, figure: str) -> dict[int, float]:
    """Return a figure by seed, accuracies in percent."""
    rules = next(iter(arm.values()))
    rule = next(rule for rule in (OPEN if figure in ("union", "unseen") else (*OWN, *rules)) if rule in rules)
    scale = 1 if figure in ("bytes", "seconds") else 100
    return {seed: scale * run[rule][figure] for seed, run in arm.items() if figure in run[rule]}


def mean(arm: Arm, figure: str) -> float:
    found = [*values(arm, figure).values()]
    return float(np.mean(found)) if found else math.nan


def spread(found: Iterable[float]) -> list[float]:
    """Return mean and, of several values, sample deviation."""
    own = [*found]
    return [float(np.mean(own)) for _ in own[:1]] + [float(np.std(own, ddof=1)) for _ in own[1:2]]


def interval(found: Sequence[float], level: float = 0.95) -> list[float]:
    """Return mean and, of several values, both ends of Student's t interval."""
    middle = math.fsum(found) / len(found)
    if len(found) == 1:
        return [middle]
    error = math.sqrt(math.fsum((value - middle) ** 2 for value in found) / (len(found) - 1) / len(found))
    half = quantile((1 + level) / 2, len(found) - 1) * error
    return [middle, middle - half, middle + half]


@cache
def quantile(share: float, freedom: int) -> float:
    return float(stats.t.ppf(share, freedom))


def apart(one: Arm, other: Arm, figure: str) -> list[float]:
    a, b = values(one, figure), values(other, figure)
    return [a[seed] - b[seed] for seed in a if seed in b]


def verdict(differences: Sequence[float]) -> str:
    """Return the word for paired differences: an interval without 0, or one of 90 % within a point, or neither."""
    if len(differences) < 2:
        return "inconclusive"
    _, low, high = interval(differences)
    if low > 0 or high < 0:
        return "better" if low > 0 else "worse"
    _, low, high = interval(differences, 0.9)
    return "equal" if low > -1 and high < 1 else "inconclusive"


def significant(value: float) -> float:
    """Return a number of bytes as it is written: in kB or MB, to three digits."""
    return float(f"{value / (1e6 if value >= 999_500 else 1e3):.3g}")


@cache
def about(name: str = "studies") -> dict[str, dict[str, str]]:
    return tomllib.loads((STUDIES / f"{name}.toml").read_text(encoding="utf-8"))


@cache
def study(name: str) -> dict[str, Arm]:
    """Return the arms of a study, with the closed forms of its recipe and the controls that were not tuned."""
    found = arms_of(rows(STUDIES / f"{name}.csv"))
    if closed := about()[name].get("closed"):
        found |= arms_of(rows(STUDIES / f"closed/{closed}.csv"))
    plain = name.removesuffix("-fair")
    if plain != name and plain in about():
        untuned = arms_of(rows(STUDIES / f"{plain}.csv"))
        found |= {f"untuned-{n}": untuned[n] for n in ("local-balanced", "fixed_etf-balanced") if n in untuned}
    return found


@cache
def scenarios() -> dict[str, dict[str, Arm]]:
    """Return the arms of every scenario of the leaderboard."""
    return {name: arms_of(own) for (name,), own in by(rows(STUDIES / "leaderboard.csv"), "scenario").items()}


def figure_of(arms: Mapping[str, Arm]) -> str:
    """Return what a study is about: the clients that joined later, if all arms have them."""
    return "newcomers" if all(values(arm, "newcomers") for arm in arms.values()) else "final"


# Tables against them.


class Referee:
    """What was compared, and what differs."""

    def __init__(self) -> None:
        self.compared = 0
        self.wrong: list[str] = []

    def cell(self, where: str, said: str, found: Sequence[float], word: str = "") -> None:
        """Compare the numbers of a cell, and a word that it must have."""
        self.compared += len(found) + bool(word)
        if not agree(numbers(said), found) or word not in said:
            wanted = " ".join(f"{value:.4g}" for value in found)
            self.wrong.append(f"{where}: {said!r}, and the runs give {wanted or 'nothing'} {word}".rstrip())

    def arms(self, page: str, table: list[list[str]], arms: Mapping[str, Arm]) -> dict[str, dict[str, str]]:
        """Compare a table of arms with their runs; return its rows by arm."""
        figure, group = figure_of(arms), list[str]()
        shown, groups = dict[str, dict[str, str]](), dict[str, list[str]]()
        for cells in table[1:]:
            line = dict(zip(table[0], cells, strict=False))
            if (name := line["arm"]) not in arms:
                group = []
                continue
            arm, shown[name], groups[name] = arms[name], line, group
            group += [] if mean(arm, "bytes") or name.startswith("untuned-") else [name]
            wanted: dict[str, list[float]] = {"seeds": [len(arm)], "own, %": spread(values(arm, figure).values())}
            wanted |= {part: spread(values(arm, part).values()) for part in ("union", "unseen")}
            wanted |= {"kB a round": [mean(arm, "bytes") / 1000], "s a round": [mean(arm, "seconds")]}
            for column in (column for column in line if column.startswith("against ")):
                other = arms[column.removeprefix("against ")]
                wanted[column] = [] if other is arm else interval(apart(arm, other, figure))
            if (control := line["against"].partition(" (")[0]) in arms:
                differences = apart(arm, arms[control], figure)
                wanted["points"] = interval(differences)
                self.cell(f"{page}, {name}, verdict", line["verdict"], [], verdict(differences))
            for column, found in wanted.items():
                self.cell(f"{page}, {name}, {column}", line[column], found)
        for name, line in shown.items():
            best = max(groups[name], key=lambda own: mean(arms[own], figure), default="")
            if best and not line["against"].startswith("the control" if name == best else best):
                self.wrong.append(f"{page}, {name}: against {line['against']}, and the best control is {best}")
        self.wrong += [f"{page}: its table lacks {name}" for name in sorted(set(arms) - set(shown))]
        return shown

    def lines(self, page: Path, first: str, wanted: Mapping[tuple[str, ...], Sequence[Sequence[float]]]) -> None:
        """Compare the table whose head starts with a cell: the numbers after those that name a row."""
        (keys, width), *_ = {(len(key), len(cells)) for key, cells in wanted.items()}
        found = (table for table in tables(page, first) if len(table[0]) == keys + width)
        said = {tuple(row[:keys]): row[keys:] for table in found for row in table[1:]}
        for key, cells in wanted.items():
            for place, own in enumerate(cells):
                cell = said[key][place] if key in said else "no such line"
                self.cell(f"{page.stem}, {', '.join(key)}, column {keys + place + 1}", cell, own)


def check_studies(referee: Referee) -> None:
    """Compare the pages of all studies, and with them the overview of docs/does-it-help.md."""
    shown = {n: referee.arms(n, tables(STUDIES / f"{n}.md", "arm")[0], study(n)) for n in about()}
    for link, _, *cells, best, unseen in tables(ROOT / "docs/does-it-help.md", "setting")[0][1:]:
        name = re.sub(r"^\[|\].*$", "", link)
        arms, where = study(name), f"does-it-help, {name}"
        labels = [f"{n}-balanced" if f"{n}-balanced" in arms and "-fair" in name else n for n in SHOWN]
        for label, cell in zip(labels, cells, strict=True):
            line = shown[name].get(label, {})
            said = f"{line.get('points', '')} {line.get('verdict', '')}".strip() or "–"
            referee.compared += 1
            referee.wrong += [] if cell.startswith(said) else [f"{where}: {cell}, and its page has {said}"]
        if beacon := arms.get(labels[1]):
            alone = [arm for arm in arms.values() if not mean(arm, "bytes")]
            rival = max(alone, key=lambda arm: mean(arm, figure_of(arms)))
            differences = apart(beacon, rival, figure_of(arms))
            referee.cell(f"{where}, of any kind", best, interval(differences), verdict(differences))
        known = [mean(arms[label], "unseen") for label in labels[1:] if label in arms]
        referee.cell(f"{where}, unseen", unseen, [value for value in known if not math.isnan(value)])


SHOWN = ("fedproto", "beacon", "fedlda")  #: Arms of the overview


def check_leaderboard(referee: Referee) -> None:
    """Compare the leaderboard: the table of each scenario, and the overview."""
    overview, *boards = tables(STUDIES / "leaderboard.md")
    for (name, arms), table in zip(scenarios().items(), boards, strict=True):
        shown = referee.arms(f"leaderboard, {name}", table, arms)
        for row in overview[1:]:
            sign = {"better": "▲", "worse": "▼"}.get(shown[row[0]]["verdict"], "")
            cell = row[overview[0].index(name)]
            referee.cell(f"leaderboard, {row[0]}, {name}", cell, [mean(arms[row[0]], "final")], sign)


def check_closed(referee: Referee) -> None:
    """Compare what is said of closed forms: the table of recipes, README's first table, and domains."""
    page, wanted = STUDIES / "closed-forms.md", dict[tuple[str, ...], list[list[float]]]()
    for recipe, *_ in tables(page, "recipe")[0][1:]:
        arms, cells = arms_of(rows(STUDIES / f"closed/{recipe}.csv")), list[list[float]]()
        for one, other, parts in (("fedlda", "local_lda", OPEN_PARTS), ("fedncm", "local_ncm", OPEN_PARTS[:1])):
            cells += [spread(values(arms[one], part).values()) for part in ("final", *parts)]
            cells += [
                spread(values(arms[other], "final").values()),
                interval(apart(arms[one], arms[other], "final")),
            ]
        wanted[(recipe,)] = [*cells, [significant(mean(arms[name], "bytes")) for name in ("fedlda", "fedncm")]]
    referee.lines(page, "recipe", wanted)
    first = rows(STUDIES / "closed/first.csv")
    wanted = {}
    for (name,) in by(first, "arm"):
        arm, rounds = arms_of(first)[name.removesuffix("-fixed")], 1 if name.endswith("-fixed") else 30
        wanted[(name,)] = [spread(values(arm, part).values()) for part in ("final", "unseen")]
        wanted[(name,)] += [[significant(rounds * mean(arm, "bytes"))] if mean(arm, "bytes") else []]
    referee.lines(ROOT / "README.md", "method", wanted)
    wanted = {}
    for place, lines in by(rows(STUDIES / "closed/domain-shift.csv"), "scenario", "labels").items():
        found = {arm: percent(runs, "own") for (arm,), runs in by(lines, "arm").items()}
        union = {arm: percent(runs, "union") for (arm,), runs in by(lines, "arm").items()}
        pairs = (("fedlda", "local_lda"), ("own mean", "fedlda"), ("centre", "fedlda"), ("fedncm", "local_ncm"))
        gains = [interval([a - b for a, b in zip(found[x], found[y], strict=True)]) for x, y in pairs]
        means = [spread(own)[:1] for own in (found["local_lda"], found["fedlda"], union["fedlda"], union["centre"])]
        wanted[place] = [*means[:2], *gains[:3], *means[2:], gains[3]]
    referee.lines(page, "domains", wanted)


OPEN_PARTS = ("union", "unseen")


def percent(runs: Iterable[Row], part: str) -> list[float]:
    return [100 * float(run[part]) for run in runs]


def check_protection(referee: Referee) -> None:
    """Compare accuracy against ε, and what forged sums cost."""
    page, named = (
        STUDIES / "epsilon.md",
        re.findall(r"^\{\{epsilon-(.+)\}\}$", about("measurements")["epsilon"]["text"], re.M),
    )
    for name, table in zip(named, tables(page, "method, rule"), strict=True):
        if not (path := STUDIES / f"privacy/{name}.csv").is_file():
            continue  # recorded
        found = by(rows(path), "method", "rule", "epsilon")
        for words, *cells in table[1:]:
            rule = next((rule for end, rule in RULES.items() if words.endswith(end)), "head")
            for budget, cell in zip(table[0][1:], cells, strict=True):
                runs = found.get((words.partition(", ")[0], rule, str(float(budget.replace("∞", "inf")))), [])
                referee.cell(f"epsilon, {name}, {words}, {budget}", cell, spread(percent(runs, "accuracy")))
    sums = [row for row in rows(STUDIES / "closed/privacy.csv") if row["method"] == "fedlda"]
    budgets, wanted = (
        sorted({row["epsilon"] for row in sums}, key=float),
        dict[tuple[str, ...], list[list[float]]](),
    )
    for (hidden, dim), lines in by(sums, "hidden", "dim").items():
        each = by(lines, "epsilon")
        for part in ("own", "union", "unseen"):
            wanted[hidden, dim, part] = [spread(percent(each.get((budget,), ()), part)) for budget in budgets]
    referee.lines(page, "noise hides", wanted)
    forged = rows(STUDIES / "closed/robust.csv")
    names = ("attack", "clients", "samples", "method", "rule")
    each, columns = by(forged, *names), by(forged, *names[3:])
    for case, (who, _, *cells) in zip(
        by(forged, *names[:3]), tables(ROOT / "docs/security.md", "hostile")[0][1:], strict=True
    ):
        for column, cell in zip(columns, cells, strict=True):
            means = [
                float(np.mean(percent(each[*case, *column], p)))
                for p in ("own", "union")
                if (*case, *column) in each
            ]
            referee.cell(f"security, {who}, {' '.join(column)}", cell, [m for m in means if not math.isnan(m)])


RULES = {
    "own prototype": "local",
    "global prototype": "global",
    "expert alone": "expert",
    "server's model": "global_model",
}
"""Inference rules by the last words of a row; others are of the head."""


def check_reproduction(referee: Referee) -> None:
    """Compare the papers' tables, cell by cell with the runs that cells.csv names, and gains over controls."""
    lines = [row for path in sorted(ROOT.glob(RESULTS)) for row in rows(path)]
    runs = {row["key"]: row for row in lines if row["scale"]}
    rules = {(row["key"], row["rule"]): row for row in lines}
    scored: dict[tuple[str, ...], dict[str, dict[str, float]]] = {}

    def value(cell: Row, key: str) -> float:
        main, scale = runs[key], {"params_thousands": 1e-3, "params_millions": 1e-6}.get(cell["metric"], 1)
        if cell["metric"] == "rounds" and not float(main["up"]) and not float(main["down"]):
            return 0
        if cell["metric"] == "accuracy_percent":
            return 100 * float(rules[key, cell["rule"] or main["rule"]][cell["name"]])
        if cell["metric"] == "rounds":
            return float(rules[key, cell["rule"] or main["rule"]][cell["name"]])
        return scale * math.fsum(float(main[name]) for name in cell["name"].split("+"))

    for (paper,), cells in by(rows(ROOT / "papers/reproduction/cells.csv"), "page").items():
        text = text_of(ROOT / f"papers/reproduction/{paper}.md").partition("<!-- results")[2]
        parts = re.split(r"^\*\*(?=\w+/table\d+:)", text, flags=re.M)[1:]
        for cell in cells:
            part = parts[int(cell["table"])]
            head, *body = tables(part)[0]
            row, labels = body[int(cell["line"])], 1 + (head[0] == "setting")
            place = labels + int(cell["column"])
            each = [keys.split("+") for keys in cell["runs"].split()]
            found = {runs[k[0]]["seed"]: float(np.mean([value(cell, key) for key in k])) for k in each}
            own, (printed, _, ours) = [*found.values()], row[place].rpartition(" / ")
            half = [b - a for a, _, b in [interval(own)] if b > a] if len(own) > 1 else []
            word = placed(own, printed, cell) if cell["metric"] in ("accuracy_percent", "rounds") else ""
            where = f"{part.partition(':')[0]} ({cell['scale']}), {' '.join(row[:labels])}, {head[place]}"
            referee.cell(where, ours, [float(np.mean(own)), *half], word)
            setting = " ".join([*row[: labels - 1], head[place]]).replace(",", "")
            rule = "head" if "By rule head" in part else "the paper's"
            table = f"{part.partition(':')[0]} ({cell['scale']})"
            scored.setdefault((table, setting, rule), {})[row[labels - 1]] = found
    for table, setting, rule, seeds, control, best, *gains in tables(
        ROOT / "papers/reproduction/README.md", "table"
    )[0][1:]:
        arms = scored[table, setting.replace(",", ""), rule]
        named = re.findall(r"([\w-]+) ([+-]\d+\.\d+ \(.*?\)) (\w+)", ", ".join(gains))
        shared = set.intersection(*(set(arms[name]) for name in ("local", "fixed_etf", *(n for n, *_ in named))))
        means = {name: float(np.mean([arms[name][seed] for seed in shared])) for name in ("local", "fixed_etf")}
        where = f"gains, {table}, {setting}, {rule}"
        referee.cell(where, seeds, [len(shared)])
        referee.cell(f"{where}, {control}", best, [max(means.values())], "")
        for name, said, word in named:
            apart_by = [arms[name][seed] - arms[control][seed] for seed in shared]
            referee.cell(f"{where}, {name}", f"{said} {word}", interval(apart_by), verdict(apart_by))


RESULTS = "papers/src/protofed_papers/results/*.csv"


def placed(found: Sequence[float], printed: str, cell: Row) -> str:
    """Return the word for values beside a printed number: two one-sided tests at 5 %, or one of the difference."""
    if not re.fullmatch(r"\d+(\.\d+)?", printed):
        return ""
    margin = max(10.0 if cell["metric"] == "rounds" else 1.0, 2 * float(cell["spread"]))
    differences = [value - float(printed) for value in found]
    if len(found) > 1:
        (_, low, high), (_, least, most) = interval(differences, 0.9), interval(differences)
        if -margin < low and high < margin:
            return "within"
        if least > margin or most < -margin:
            return "outside"
    return "open"


# Sentences against files.


class Pool:
    """What files hold: single numbers, and differences with intervals."""

    def __init__(self, *parts: Pool) -> None:
        self.single: list[float] = [number for part in parts for number in part.single]
        self.intervals: list[list[float]] = [found for part in parts for found in part.intervals]

    def add(self, own: Sequence[Mapping[int, float]]) -> None:
        """Add means and deviations of a figure of some arms, by seed, and the differences of each from each."""
        self.single += [value for arm in own for value in spread(arm.values())]
        pairs = ([a[seed] - b[seed] for seed in a if seed in b] for a, b in combinations(own, 2))
        found = [interval(differences) for differences in pairs if differences]
        self.intervals += found + [[-own[0], *(-end for end in own[:0:-1])] for own in found]

    def lacks(self, text: str) -> list[str]:
        """Return the numbers of a statement that are not held; a gain may be a difference between two arms."""
        intervals = [
            own for own in INTERVAL.findall(text) if not any(agree(numbers(own), i) for i in self.intervals)
        ]
        levels = [[abs(number)] for number in self.single]
        gains = levels + [[abs(own[0])] for own in self.intervals]
        return intervals + [
            said
            for said, share in quoted(text)
            if not any(agree([said.lstrip("+-")], own) for own in (levels if share else gains))
        ]


def quoted(text: str) -> list[tuple[str, bool]]:
    """Return the numbers of a statement that tell of an outcome, and whether in percent; no other whole ones."""
    found = QUOTED.finditer(INTERVAL.sub(" ", text))
    each = [(said.strip(",").replace(",", ""), bool(own[2])) for own in found for said in re.findall(ONE, own[1])]
    return [(said, share) for said, share in each if share or "." in said]


@cache
def pool(path: Path) -> Pool:
    """Return what a page or a file holds: the figures of runs where there are, else its tables."""
    found = Pool()
    if path.suffix == ".csv":
        lines = rows(path)
        parts = [name for name in lines[0] if name in ("own", "union", "unseen", "accuracy", "bytes")]
        groups = by(lines, *(name for name in lines[0] if name not in (*parts, "seed"))).values()
        for part in parts:
            scale = 0.001 if part == "bytes" else 100
            found.add(
                [{int(run["seed"]): scale * float(run[part]) for run in runs if run[part]} for runs in groups]
            )
    elif path.stem in about() or path.stem == "leaderboard":
        for arms in [study(path.stem)] if path.stem in about() else scenarios().values():
            for figure in ("final", "union", "unseen", "newcomers"):
                found.add([own for arm in arms.values() if (own := values(arm, figure))])
            found.single += [mean(arm, "bytes") / 1000 for arm in arms.values()]
    else:
        for cell in (cell for table in tables(path) for row in table[1:] for cell in row):
            found.single += map(float, numbers(cell))
            found.intervals += [[*map(float, numbers(own))] for own in INTERVAL.findall(cell)]
    return found


ALONE = ("README.md", "paper/paper.md", "docs/does-it-help.md")
"""Pages in which every statement itself names the file behind it."""
UNFOUNDED = {
    "5 % of all cases, and for other": "the meaning of a threshold",
    "find a true gain of one point in 40 % of cases": "simulated in test_does_it_help.py",
    "in 0.8 % of simulations": "simulated in test_does_it_help.py",
    "in 4.2 %": "simulated in test_does_it_help.py",
    "in 0.2 and 7.6 %": "simulated in test_does_it_help.py",
    "at most 1.05 times the bare loop": "a goal",
    "and 5 %, are missed": "a goal",
    "up to 20 % on the rows": "a setting of the attack's tests",
    "with 40 % of noise": "a setting of the attack's tests",
    "reach 0.1 % at 100,000 samples of a client, and 5 % at a million": "a bound, derived",
    "15.5 times the median": "a property of the recipes' splits",
    "1.3 to 2.1 times as fast": "seconds of one machine, not committed",
}
"""Words with numbers that no run has, and why."""
MADE = re.compile(r"<!-- (\w+): made by.*?<!-- end of \1 -->|^---\n.*?^---\n", re.S | re.M)
"""What another tool writes into a page, and the head of the paper."""


def check_sentences(referee: Referee) -> None:
    """Look for the numbers of sentences in what stands behind them."""
    pages = [*map(ROOT.joinpath, ALONE[:2]), *sorted(ROOT.glob("docs/*.md")), *sorted(STUDIES.glob("*.md"))]
    unused = set(UNFOUNDED)
    for page in [*pages, ROOT / "papers/reproduction/README.md"]:
        for text, linked in statements(page):
            if text.startswith("|"):
                linked = [] if page.parent == STUDIES or page.stem in ("README", "performance") else linked
                if not (linked := [path for path in linked if path != page]):
                    continue  # a table that is compared above or recorded, or of settings
                text += "".join(f" {said} points" for said in numbers(INTERVAL.sub(" ", text)) if "." in said)
            for words in [words for words in UNFOUNDED if words in text]:
                unused.discard(words)
                text = text.replace(words, "")
            referee.compared += len(quoted(text))
            if lacking := Pool(*map(pool, linked or [page])).lacks(text):
                named = page.relative_to(ROOT)
                referee.wrong.append(f"{named}: {', '.join(lacking)} of no file behind {text[:90]!r}")
    referee.wrong += [f"UNFOUNDED: {words!r} is said nowhere" for words in sorted(unused)]


def statements(page: Path) -> Iterator[tuple[str, list[Path]]]:
    """Yield every paragraph, item and table row of a page, with the files behind it."""
    alone = str(page.relative_to(ROOT)) in ALONE
    for section in re.split(r"^#+ .*$", MADE.sub("", text_of(page)), flags=re.M):
        for part in re.split(r"\n\s*\n|\n(?=\s*(?:- |\d+\. |\|))", section):
            own = " ".join(part.split())
            linked = links(page, own)
            if not alone:
                linked = [*dict.fromkeys([*(linked or links(page, section)), page])]
            yield re.sub(r"`[^`]*`|(?<=\])\([^)]*\)|95 % (?=t |interval|conf)", " ", own), linked


def links(page: Path, text: str) -> list[Path]:
    """Return the pages and files of papers that a text links to; from outside of docs, all pages."""
    paths = [(page.parent / found).resolve() for found in re.findall(r"\]\(([^)#]*)", text)]
    known = [path for path in paths if path.suffix in (".md", ".csv") and path.is_file()]
    return [path for path in known if ROOT / "papers" in path.parents or page.parent in (ROOT, ROOT / "paper")]


CHECKS: tuple[Callable[[Referee], None], ...] = (
    *(check_studies, check_leaderboard, check_closed, check_protection, check_reproduction, check_sentences),
)


def main() -> None:
    referee = Referee()
    for check in CHECKS:
        check(referee)
    print(*referee.wrong, f"{referee.compared:,} numbers compared, {len(referee.wrong)} differ", sep="\n")
    sys.exit(bool(referee.wrong))


if __name__ == "__main__":
    main()
