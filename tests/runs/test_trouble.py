"""Diverged runs say so: in the round in which it happens, at the end, and at the top of the report."""

from __future__ import annotations

import io
import json
import sys

import pytest

import protofed
from protofed.cli import main as cli
from protofed.errors import CheckpointError
from protofed.experiments.progress import JsonProgress, LineProgress
from protofed.experiments.running import Progress
from protofed.runs.findings import Findings
from protofed.runs.loading import load_run
from protofed.runs.records import Absence, Attack, Refusal, RoundRecord
from protofed.runs.trouble import HELP, find_diverged, first_trouble, ruin, trouble, unheard
from protofed.stages.secure import sums as secure_sums
from protofed.visits.contract import Trained
from support import SMALL_RUN, few


def record(number, refused=(), asked=("ann", "bob"), **values):
    losses = {"total": values.pop("loss", 1.0)}
    entries = [Refusal(name, "prototypes", "not finite", True) for name in refused]
    sent = {"up": 10 * (len(asked) > len(refused)), "down": 0}
    return RoundRecord(number, list(asked), losses=losses, refused=entries, bytes=sent, **values)


def test_a_sound_round_says_nothing():
    assert trouble(record(1)) == ""
    assert first_trouble([record(1)]) == ruin([record(1)]) == ""


def test_the_first_round_that_is_not_finite_is_named():
    rounds = [record(1), record(2, loss=None), record(3, ["bob"], loss=None)]
    assert trouble(rounds[2]) == f"losses are not finite and uploads of bob were refused as diverged: {HELP}"
    assert first_trouble(rounds) == (
        f"Round 2: losses are not finite: {HELP}. "
        "At the end, bob had diverged (answers that are not finite count as wrong)."
    )


def test_clients_and_terms_that_are_not_finite_are_named():
    trained = [
        Trained("ann", None, {"cross_entropy": 2.0, "mine": float("nan")}, 5, 0.1),
        Trained("bob", None, {"cross_entropy": 1.0, "mine": 0.5}, 5, 0.1),
    ]
    first, second = record(1, ["ann"]), record(2, ["bob"])
    for each in (first, second):
        each.set_losses(trained)
    assert trouble(first) == f"loss mine is not finite at ann and their uploads were refused as diverged: {HELP}"
    assert trouble(second) == (
        f"loss mine is not finite at ann and uploads of bob were refused as diverged: {HELP}"
    )
    assert RoundRecord.from_dict(first.to_dict(), "line 1").not_finite == {"ann": ["mine"]}
    assert find_diverged([first, record(2)]) == []
    assert find_diverged([record(1), second]) == ["ann", "bob"]
    for wrong in ([], {"ann": "mine"}, {"ann": [3]}, {"\x1b": ["mine"]}):
        with pytest.raises(CheckpointError, match="line 1: not_finite"):
            RoundRecord.from_dict({**first.to_dict(), "not_finite": wrong}, "line 1")


def test_a_round_that_was_lost_says_why():
    lost = record(2, robust=Findings(kept="secure aggregation: 2 of the 3 clients needed sent keys"))
    why = "the server kept its previous state: secure aggregation: 2 of the 3 clients needed sent keys"
    assert trouble(lost) == why
    assert first_trouble([record(1), lost]) == f"Round 2: {why}."
    assert ruin([record(1), lost]) == ""


def test_advice_is_about_what_was_refused():
    """Data that need no standardising are not blamed for a number of bits."""
    reason = "3e+12 would overflow the sum of 2 clients: lower secure.fraction_bits"
    rounds = [RoundRecord(n, ["ann"], refused=[Refusal("ann", "prototypes", reason)]) for n in (1, 2)]
    assert ruin(rounds) == (
        f"Every upload of ann was refused, so the result is not theirs: ann: prototypes: {reason}."
    )


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        ([record(1, ["ann"]), record(2, ["ann"])], ["ann"]),
        ([record(1, ["ann"]), record(2)], []),  # it was heard once
        ([record(1, ["ann"], asked=["ann"]), record(2, asked=["bob"])], ["ann"]),  # left out from then on
        ([record(1, ["ann"]), record(2, missing=[Absence("ann", "training", "late")])], ["ann"]),
        ([record(1, ["ann"], attack=Attack(["ann"]))], []),  # an attacker of a simulation
        ([RoundRecord(1, ["ann"]), record(2, ["ann"])], ["ann"]),  # nobody sends in the first round
    ],
)
def test_clients_of_whom_nothing_was_used(rounds, expected):
    assert unheard(rounds) == expected
    assert bool(ruin(rounds)) is bool(expected)


def test_a_method_that_sends_nothing_fails_if_no_round_was_finite():
    silent = [RoundRecord(n, ["ann"], losses={"total": None}) for n in (1, 2)]
    assert ruin(silent).startswith("No round had finite losses")
    assert ruin([RoundRecord(1, ["ann"], losses={"total": 2.0}), *silent[1:]]) == ""


@few("method", ["fedproto", "local"], 1)
def test_a_diverged_run_fails_loudly(method, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = [f"{name}={value}" for name, value in SMALL_RUN.items()]
    monkeypatch.setattr(
        sys,
        "argv",
        ["protofed", "run", "quickstart", *options, f"method.name={method}", "training.lr=1e30", "--out", "r"],
    )
    with pytest.raises(SystemExit) as ended:
        cli.main()
    printed = capsys.readouterr()
    assert ended.value.code == 1
    assert printed.out.count("warning: ") == 1
    assert (
        f"warning: {method}, round 1: loss cross_entropy is not finite at client-00, client-01, client-02"
        in printed.out
    )
    assert printed.err.startswith("FAILED ")
    page = (tmp_path / "r" / "report.html").read_text()
    main = page[page.index("<main>") :]
    assert main.index('role="alert">Failed. ') < main.index("<dl")


MINE = """
import torch

from protofed.methods import Aggregate
from protofed.methods.fedproto import FedProto


class Mine(FedProto):
    first = 1

    def loss(self, model, batch, received, state):
        terms, output = super().loss(model, batch, received, state)
        bad = torch.nan if received["present"].any() or self.first == 1 else 0.0
        return {**terms, "mine": bad * output.features.sum()}, output

    def aggregate(self, server, uploads, round):
        uploads = list(uploads)
        torch.cat([upload.payload["prototypes"] for upload in uploads])
        return super().aggregate(server, iter(uploads), round)


class Later(Mine):
    first = 2


class Some(Mine):
    first = 2

    def loss(self, model, batch, received, state):
        terms, output = super(Mine, self).loss(model, batch, received, state)
        bad = torch.where((batch.y == 2).any(), torch.nan, 0.0)
        return {**terms, "mine": bad * output.features.sum()}, output


class Breaks(Mine):
    def upload(self, local, statistics):
        features, labels = local.features()
        torch.cat([row for row in features if row.isfinite().all()])
        return super().upload(local, statistics)
"""


@few("executor", ["sequential", "workers", "fused"], 1)
@few(("name", "round_number"), [("Mine", 1), ("Later", 2)], 1)
def test_a_loss_of_ones_own_that_is_not_finite(name, round_number, executor, tmp_path, monkeypatch, capsys):
    """One line says where, when and what, and no method is asked to put together the uploads of nobody."""
    code, out, err, run = of_ones_own(name, executor, tmp_path, monkeypatch, capsys)
    where = "is not finite at client-00, client-01, client-02 and their uploads were refused as diverged"
    assert f"warning: unsound.py:{name}, round {round_number}: loss mine {where}: {HELP}\n" in out
    if round_number == 1:
        assert code == 1
        assert err == (
            "FAILED Every upload of client-00, client-01, client-02 was refused, so the result is not theirs. "
            f"Round 1: loss mine {where}: {HELP}.\n"
        )
    else:
        assert (code, err) == (0, "")
        end = (
            "At the end, client-00, client-01, client-02 had diverged (answers that are not finite count as wrong)."
        )
        assert f"\nRound 2: loss mine {where}: {HELP}. {end}\n" in out
    assert [sorted(r.not_finite) for r in run.rounds] == [
        ["client-00", "client-01", "client-02"] if r.round >= round_number else [] for r in run.rounds
    ]
    assert run.rounds[round_number - 1].losses["cross_entropy"] is not None, "it was the other term"


def test_code_of_ones_own_that_breaks_on_a_diverged_model_ends_no_run(tmp_path, monkeypatch, capsys):
    code, _, err, run = of_ones_own("Breaks", "sequential", tmp_path, monkeypatch, capsys)
    assert code == 1
    assert (
        "Round 1: loss mine is not finite at client-00, client-01, client-02 and their uploads were refused" in err
    )
    assert "has diverged (torch.cat(): expected a non-empty list of Tensors)" in run.rounds[0].refused[0].reason


def test_a_server_that_diverges_keeps_its_state_and_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = [f"{name}={value}" for name, value in SMALL_RUN.items()]
    line = ["run", "quickstart", *options, "method.name=fedtgp", "method.server_lr=1e20", "--out", "r"]
    monkeypatch.setattr(sys, "argv", ["protofed", *line])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    printed = capsys.readouterr()
    assert not ended.value.code, printed.err
    assert "round 1: the server kept its previous state: clients would have refused the new one" in printed.out


@pytest.mark.slow
@pytest.mark.parametrize("method", ["protonorm", "fixed_etf"])
def test_the_recipe_of_hospitals_suits_its_methods(method, tmp_path, monkeypatch, capsys):
    """Targets of length 100 made them diverge: 55.9 % at the end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "argv", ["protofed", "run", "hospital-tables", f"method.name={method}", "--quiet", "--out", "r"]
    )
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    run = load_run(tmp_path / "r")
    assert run.outcome.accuracy["global"].final > 0.9
    assert "had diverged" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_comparison_says_at_the_end_who_diverged(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    line = "compare hospital-tables --methods protonorm,local method.gamma=100 --quiet --full --out c"
    monkeypatch.setattr(sys, "argv", ["protofed", *line.split()])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out = capsys.readouterr().out
    assert not ended.value.code
    (told,) = [line for line in out.splitlines() if "is not finite" in line]
    assert told.startswith("protonorm, seed 0: Round ")
    assert " at client-0" in told
    assert "method.gamma" in told
    assert "At the end, " in told


@few("executor", ["sequential", "fused"], 1)
def test_the_round_goes_on_for_clients_whose_loss_is_finite(executor, tmp_path, monkeypatch, capsys):
    code, out, _, run = of_ones_own("Some", executor, tmp_path, monkeypatch, capsys)
    held = [client.name for client in run.clients if client.train[2]]
    assert 0 < len(held) < len(run.clients)
    assert code == 1
    assert f"round 1: loss mine is not finite at {', '.join(held)} and their uploads were refused" in out
    last = run.rounds[-1]
    assert list(last.not_finite) == held
    assert last.bytes["up"] > 0


def of_ones_own(name, executor, tmp_path, monkeypatch, capsys):
    """Run a method of one's own from the command line; return exit status, what was printed, and the run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "unsound.py").write_text(MINE)
    chosen = {**SMALL_RUN, "rounds": 3, "method.name": f"unsound.py:{name}", "execution.executor": executor}
    options = [f"{name}={value}" for name, value in chosen.items()]
    monkeypatch.setattr(sys, "argv", ["protofed", "run", "quickstart", *options, "--full", "--out", "r"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err, load_run(tmp_path / "r")


def test_sums_that_overflow_say_what_to_change(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(secure_sums, "BITS", 20)
    chosen = {**SMALL_RUN, "method.name": "fedproto", "secure.aggregation": "true", "robust.rule": "none"}
    options = [f"{name}={value}" for name, value in chosen.items()]
    monkeypatch.setattr(sys, "argv", ["protofed", "run", "quickstart", *options, "--full", "--out", "r"])
    with pytest.raises(SystemExit):
        cli.main()
    printed = capsys.readouterr()
    kept = "the server kept its previous state: secure aggregation: 0 of the 3 clients needed have uploads"
    assert f"warning: fedproto, round 1: {kept}" in printed.out
    page = (tmp_path / "r" / "report.html").read_text()
    for told in (printed.out, printed.err, page):
        assert "would overflow the sum of 3 clients: lower secure.fraction_bits" in told
        assert "standardise the data" not in told
    assert "Rounds without effect" in page
    assert "secure aggregation: 0 of the 3 clients needed have uploads" in page


def test_lines_and_json_for_files(tmp_path):
    lines, objects = io.StringIO(), io.StringIO()
    receivers = Progress.share(LineProgress(lines), JsonProgress(objects))
    run = protofed.run(
        "quickstart", {**SMALL_RUN, "method.name": "fedproto"}, out=tmp_path / "r", progress=receivers
    )
    first, *rounds = lines.getvalue().splitlines()
    assert first == f"fedproto: rounds 1 to 2 in {tmp_path / 'r'}"
    assert len(rounds) == 2
    assert rounds[1].startswith("fedproto round 2/2: global ")
    for part in ("loss ", " kB", "0.00 s left"):
        assert part in rounds[1]
    events = [json.loads(line) for line in objects.getvalue().splitlines()]
    assert [event["event"] for event in events] == ["started", "round", "round", "finished"]
    assert events[2]["accuracy"] == run.rounds[1].accuracy.weighted["global"]
    assert events[3]["accuracy"]["head"] == run.outcome.accuracy["head"].final
