"""The answer of a comparison, its interval, and the short table."""

from __future__ import annotations

import io
import itertools
import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from protofed.analysis.answer import answer, answer_table
from protofed.analysis.figures import figures
from protofed.analysis.report.metrics import _variance, two_classes
from protofed.errors import CheckpointError, DataError
from protofed.runs.loading import load_run, load_runs
from protofed.storage.files import read_json
from protofed.trained.paired import Sampled, two_level
from rundirs import make_run


@pytest.fixture
def runs_of(tmp_path):
    """Return a function that makes runs of a method with given right answers of each client, one run per seed.

    The clients have 40, 30 and no test samples.
    """

    def make(method, *seeds, rule="head", bits=False):
        found = []
        for seed, rights in enumerate(seeds):
            path = make_run(tmp_path / f"{method}{seed}", method, seed=seed, rounds=1, clients=3, classes=2)
            tree = read_json(path / "federation.json")
            for client, n in zip(tree["clients"], (40, 30, 0), strict=True):
                client["test"] = [n, 0]
            (path / "federation.json").write_text(json.dumps(tree))
            right = [np.isin(np.arange(n), own) for n, own in zip((40, 30), rights, strict=True)]
            if bits:
                write_bits(path, rule, right)
            run = load_run(path)
            each = [*(float(own.mean()) for own in right), None]
            total = float(np.concatenate(right).mean())
            accuracy = replace(run.rounds[-1].accuracy, weighted={rule: total}, clients={rule: each})
            found.append(replace(run, rounds=[replace(run.rounds[-1], accuracy=accuracy)]))
        return found

    return make


def write_bits(path, rule, right):
    names = [client["name"] for client in read_json(path / "federation.json")["clients"]]
    bits = [np.packbits(own).tobytes().hex() for own in right]
    clients = {name: {"samples": len(own), "right": b} for name, own, b in zip(names, right, bits, strict=False)}
    clients[names[-1]] = {"samples": 0}
    tree = {"version": 1, "rule": rule, "round": 1, "overall": {"samples": 70}, "clients": clients}
    (path / "metrics.json").write_text(json.dumps(tree))


FEW, MOST = (range(20), range(15)), (range(2, 38), range(1, 29))


@pytest.mark.parametrize("bits", [False, True])
def test_one_seed_has_the_interval_over_test_samples(runs_of, bits):
    """By the answers one by one where both runs have kept them; otherwise by the most that can be apart."""
    runs = [*runs_of("fedproto", MOST, bits=bits), *runs_of("local", FEW, bits=bits)]
    found = answer(runs)
    right = [[np.isin(np.arange(n), own) for n, own in zip((40, 30), each, strict=True)] for each in (MOST, FEW)]
    ours, theirs = (np.concatenate(each).astype(float) for each in right)
    apart = ours - theirs
    if not bits:  # as if no sample were wrong by both that need not be
        n, a, b = (np.array(v) for v in ((40, 30), (36, 28), (20, 15)))
        discordant = (a + b - 2 * np.maximum(0, a + b - n)).sum()
    else:
        discordant = np.abs(apart).sum()
    half = stats.norm.ppf(0.975) * math.sqrt(((discordant + 1) / 72 - (apart.sum() / 72) ** 2) / 72)
    centre = apart.sum() / 72
    assert found.gain == pytest.approx([100 * apart.mean(), 100 * (centre - half), 100 * (centre + half)])
    assert found.sentences[0].startswith(f"Federating seems to help: {100 * apart.mean():+.1f} (")
    assert found.sentences[0].endswith("; the draw of the weights is not in this interval (--seeds 0,1,2).")
    assert found.sentences[1] == "By site, a gain is seen at 2 of 2 (client_00, client_01)."
    fixed = [replace(run, rounds=[replace(record, losses={}) for record in run.rounds]) for run in runs]
    assert answer(fixed).sentences[0].startswith("Federating helps: "), "closed forms draw no weights"
    assert answer(fixed).sentences[-1] == "One split: --seeds 0,1,2 shows how much it matters."
    only = ours[:40] - theirs[:40]
    assert found.sites["client_00"].mean == pytest.approx(100 * only.mean())
    assert "client_02" not in found.sites, "it has no test samples"


def test_bits_that_do_not_give_the_recorded_accuracy_are_not_used(runs_of):
    runs = [*runs_of("fedproto", MOST, bits=True), *runs_of("local", FEW, bits=True)]
    wide = answer([*runs_of("fedtgp", MOST), *runs_of("fixed_etf", FEW)]).gain
    own = runs[0].measured.clients
    other = replace(own["client_00"], right="0" * 10)
    runs[0] = replace(runs[0], measured=replace(runs[0].measured, clients={**own, "client_00": other}))
    assert wide.half > answer(runs).gain.half > answer([*runs_of("gfpl", MOST, bits=True), runs[1]]).gain.half


@pytest.mark.parametrize("bits", ["0g", "0", "0xff", "FF", 7])
def test_bits_are_hexadecimal_digits(tmp_path, bits):
    path = make_run(tmp_path / "run", metrics=True)
    tree = read_json(path / "metrics.json")
    tree["clients"]["client_00"]["right"] = bits
    (path / "metrics.json").write_text(json.dumps(tree))
    with pytest.raises(CheckpointError, match=r"metrics.json: .*client_00.*right"):
        load_run(path)


def test_losing_and_undecided_comparisons_say_so(runs_of):
    lost = answer([*runs_of("fedproto", FEW), *runs_of("local", MOST)])
    assert lost.sentences[0].startswith("Federating does not help: ")
    assert lost.sentences[1] == "By site, a gain is seen at none of 2, a loss at 2 (client_00, client_01)."
    same = answer([*runs_of("fedavg", MOST, rule="global_model"), *runs_of("fixed_etf", MOST)])
    assert same.sentences[0].startswith("No gain from federating is seen: +0.0 (")


def test_different_rules_are_named(runs_of):
    """The control by its head, the exchange by its prototypes: whoever reads the gain has to know."""
    (ours,), control = runs_of("fedproto", FEW, rule="global"), runs_of("local", MOST)
    found = answer([ours, *control])
    assert "They are scored by different rules, global and head, and have none in common." in found.sentences
    table = answer_table(found)
    assert [row[1].note for row in table.rows] == ["", "by global"]
    assert table.caption == "By the rule head, unless a cell names another."
    accuracy = ours.rounds[-1].accuracy
    scored = replace(accuracy, weighted={"head": 0.5} | accuracy.weighted)
    found = answer([replace(ours, rounds=[replace(ours.rounds[-1], accuracy=scored)]), *control])
    assert "different rules, global and head: evaluation.rule=head scores both alike." in found.text
    alike = answer([*runs_of("fedtgp", FEW), *control])
    assert "different rules" not in alike.text
    assert not answer_table(alike).caption


def test_the_best_of_either_side_are_compared_and_every_other_kind_is_named(runs_of):
    runs = [*runs_of("fedproto", MOST), *runs_of("fedtgp", FEW), *runs_of("fedavg", FEW, rule="global_model")]
    found = answer([*runs, *runs_of("local", FEW), *runs_of("fixed_etf", (range(3), range(3)))])
    assert (found.best.label, found.control.label) == ("fedproto", "local")
    (others,) = (text for text in found.sentences if text.startswith("Others by what they send"))
    assert others.startswith("Others by what they send: prototypes (fedtgp): no gain seen, +0.0 (")
    assert "all weights (fedavg): no gain seen" in others


def test_without_a_control_or_an_exchange_there_is_no_gain(runs_of):
    pair = [*runs_of("fedproto", MOST), *runs_of("fedtgp", FEW)]
    assert answer(pair).gain is None
    assert answer(pair).sentences == []
    (alone,) = answer(runs_of("local", MOST)).sentences
    assert alone.startswith(
        "local is right on 91.4 % of its clients' own test samples (head), from 90.0 % at client_00"
    )
    assert answer([]) is None
    assert answer([pair[0], replace(pair[1], config={**pair[1].config, "recipe": "another"})]) is None
    with pytest.raises(DataError, match="one that exchanges"):
        figures.get("sites")(pair)


def test_seeds_that_only_one_side_has_are_not_compared(runs_of):
    ours = [replace(run, config={**run.config, "seed": 7}) for run in runs_of("fedproto", MOST)]
    assert answer([*ours, *runs_of("local", FEW)]).gain is None


def test_the_short_table_fits_a_narrow_screen_and_keeps_the_control(runs_of):
    names = ["fedproto", "fedtgp", "protonorm", "tinyproto", "gfpl", "fedavg"]
    rules = {"fedavg": "global_model"}
    runs = [run for name in names for run in runs_of(name, MOST, MOST, rule=rules.get(name, "head"))]
    table = answer_table(answer([*runs, *runs_of("local", FEW, FEW)]), 3)
    assert [row[0].text for row in table.rows] == ["fedproto", "fedtgp", "local"]
    assert table.caption.startswith("4 more")
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table)
    shown = console.export_text()
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown.replace(" … ", "")


def test_withheld_numbers_of_samples_leave_the_seeds(runs_of):
    def hidden(runs):
        for run in runs:
            clients = [replace(client, counts="none") for client in run.clients]
            yield replace(run, federation=replace(run.federation, clients=clients))

    runs = [*runs_of("fedproto", MOST, MOST), *runs_of("local", FEW, (range(22), range(15)))]
    found = answer([*hidden(runs)])
    each = [100 * (64 - 35) / 70, 100 * (64 - 37) / 70]
    half = stats.t.ppf(0.975, 1) * np.std(each, ddof=1) / math.sqrt(2)
    assert found.gain == pytest.approx([np.mean(each) + k * half for k in (0, -1, 1)])
    assert found.sites == {}


@pytest.mark.parametrize(("seeds", "spread"), [(1, 0.0), (2, 0.0), (3, 0.0), (3, 1.0), (5, 0.5), (5, 2.0)])
def test_the_interval_covers_the_true_gain(seeds, spread):
    """2,000 simulated comparisons; the spread between seeds is in units of that over test samples."""
    rng = np.random.default_rng(seeds)
    draws = 1.0 + rng.normal(0, 1, (2000, seeds)) + spread * rng.normal(0, 1, (2000, seeds))
    found = [two_level([Sampled(value, 1.0) for value in row]) for row in draws]
    assert np.mean([each.low <= 1.0 <= each.high for each in found]) > 0.945


def test_more_seeds_tell_no_more_of_the_same_test_samples(runs_of):
    """Of a folder that sets them aside; before, eight seeds that differ in nothing made the interval a third."""
    runs = [*runs_of("fedproto", *[MOST] * 4), *runs_of("local", *[FEW] * 4)]

    def gain(seeds, tests):
        chosen = [run for run in runs if run.seed < seeds]
        return answer([replace(r, federation=replace(r.federation, tests=tests(r))) for r in chosen]).gain

    once = gain(1, lambda run: "0f")
    assert gain(4, lambda run: "0f") == pytest.approx(once)
    assert gain(4, lambda run: "") == pytest.approx(once), "those of a network may be the same"
    assert gain(4, lambda run: f"{run.seed}").half == pytest.approx(once.half / 2)


@pytest.mark.parametrize("share", [0.8, 0.95, 0.99])
@pytest.mark.parametrize(("n", "seeds"), [(15, 1), (15, 3), (15, 5), (150, 5)])
def test_the_interval_of_an_accuracy_covers_it_and_its_mean(share, n, seeds):
    """Every seed has test samples of its own, of which one or none may be wrong."""
    rng, held = np.random.default_rng(0), 0
    for hits in rng.binomial(n, share, (500, seeds)):
        found = two_level([Sampled.share(hit / n, n) for hit in hits])
        assert found.low <= found.mean <= found.high or seeds == 1
        held += found.low <= 100 * share <= found.high
    assert held / 500 > 0.9


def test_what_is_printed_covers_the_interval():
    """That of few samples is not centred at their share."""
    found = two_level([Sampled.share(1.0, 15)])
    assert found.low == pytest.approx(75.7, abs=0.1)
    assert found.with_half() == "100.0 ± 24.3"


@pytest.mark.parametrize("n", [1, 2, 3, 5, 10, 20, 30])
def test_few_test_samples_show_no_gain_where_there_is_none(n):
    """The exact probability that an interval excludes 0, with 30 % of samples that one of two has right."""
    chance = 0.0
    for more, less in itertools.product(range(n + 1), repeat=2):
        if more + less <= n and two_level([Sampled.difference(n, more - less, more + less)]).sign:
            chance += stats.multinomial.pmf([more, less, n - more - less], n, [0.15, 0.15, 0.7])
    assert chance < 0.05


def test_the_best_of_many_may_be_the_best_by_chance(runs_of):
    """Six samples of 70 more: one method with this gain helps, the best of eight with it may."""
    control = runs_of("local", FEW, bits=True)
    alone = runs_of("fedproto", (range(23), range(18)), bits=True)
    found = answer([*alone, *control])
    assert (found.tried, found.gain.sign, found.sure) == (1, 1, 1)
    assert found.sentences[0].startswith("Federating seems to help: +8.6 (")
    names = ("fedtgp", "gfpl", "protonorm", "tinyproto", "fedavg", "fedper", "beacon")
    found = answer([*alone, *control, *(run for name in names for run in runs_of(name, FEW, bits=True))])
    assert (found.tried, found.gain.sign, found.sure) == (8, 1, 0)
    assert found.sentences[0].startswith(
        "Federating may help, but the best of 8 methods can be as good by chance: +8.6 ("
    )


def test_the_best_of_many_controls_may_be_the_best_by_chance(runs_of):
    exchange, best = runs_of("fedproto", FEW, bits=True), runs_of("local", (range(23), range(18)), bits=True)
    found = answer([*exchange, *best])
    assert (found.gain.sign, found.sure) == (-1, -1)
    assert found.sentences[0].startswith("Federating does not help: -8.6 (")
    controls = [run for name in ("fixed_etf", "local_lda", "local_ncm") for run in runs_of(name, FEW, bits=True)]
    found = answer([*exchange, *best, *controls])
    assert (found.gain.sign, found.sure) == (-1, 0)
    assert found.sentences[0].startswith("No gain from federating is seen: -8.6 (")


def test_classes_that_chance_has_separated_leave_some_doubt():
    classes = [SimpleNamespace(samples=3), SimpleNamespace(samples=12)]
    assert math.sqrt(_variance(SimpleNamespace(auroc=1.0, classes=classes))) > 0.01


@pytest.mark.parametrize(("area", "positive", "negative"), [(0.8, 20, 200), (0.95, 30, 300), (0.95, 200, 20)])
def test_the_interval_of_an_area_covers_it_whichever_class_is_rare(area, positive, negative):
    """500 draws of normal scores."""
    rng, apart = np.random.default_rng(0), math.sqrt(2) * stats.norm.ppf(area)
    held = 0
    for _ in range(500):
        one, other = rng.normal(apart, 1, positive), rng.normal(0, 1, negative)
        found = stats.mannwhitneyu(one, other).statistic / positive / negative
        classes = [SimpleNamespace(samples=negative), SimpleNamespace(samples=positive)]
        spread = 1.96 * math.sqrt(_variance(SimpleNamespace(auroc=found, classes=classes)))
        held += abs(found - area) <= spread
    assert held / 500 > 0.94


def test_two_classes_have_the_metrics_of_a_test(tmp_path):
    paths = [make_run(tmp_path / str(seed), "local", seed=seed, classes=2, metrics=True) for seed in (0, 1)]
    runs = load_runs(paths)
    (row,) = two_classes(runs).rows
    found = [run.measured.overall for run in runs]
    recall = [{c.label: c.recall for c in each.classes} for each in found]
    assert (
        row[1].text
        == f"{100 * np.mean([r[1] for r in recall]):.1f} ± {100 * np.std([r[1] for r in recall], ddof=1):.1f}%"
    )
    low, high = map(float, row[3].note.split(" … "))
    assert 0 <= low <= np.mean([each.auroc for each in found]) <= high <= 1
    assert two_classes(load_runs([make_run(tmp_path / "three", metrics=True)])) is None


@pytest.mark.parametrize("rare", [0, 1])
def test_sensitivity_is_that_of_the_rarer_class(rare, tmp_path):
    (run,) = load_runs([make_run(tmp_path / "run", "local", classes=2, metrics=True)])
    whole = run.measured.overall
    classes = tuple(
        replace(c, samples=20 if c.label == rare else 80, recall=0.25 + 0.5 * c.label) for c in whole.classes
    )
    table = two_classes([replace(run, measured=replace(run.measured, overall=replace(whole, classes=classes)))])
    names = run.class_names
    assert table.head[1:3] == [f"Sensitivity ({names[rare]})", f"Specificity ({names[1 - rare]})"]
    assert [cell.text for cell in table.rows[0][1:3]] == [f"{25 + 50 * rare}.0%", f"{75 - 50 * rare}.0%"]
