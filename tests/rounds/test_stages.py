"""Stages of a user's own, as a recipe names them, and what the loop asks of any stage."""

from __future__ import annotations

import pytest
import torch

from protofed import load_run
from protofed.errors import ConfigError
from protofed.experiments.running import run_experiment
from protofed.rounds.stage import Stage
from support import build, experiment, one_line, ordinary, uploads

pytestmark = pytest.mark.fast


class Halves(Stage):
    """Halves every prototype, and notes whose."""

    def __call__(self, uploads, opened, record):
        """Halve, and count."""
        for upload in uploads:
            record.diagnostics[upload.client] = opened.round
            yield upload._replace(payload={**upload.payload, "prototypes": upload.payload["prototypes"] / 2})

    def note(self):
        """Say so."""
        return ("Prototypes are halved.",)


class OneRound(Stage):
    """Affords a single round."""

    def affords(self, round_number):
        """Afford the first."""
        return round_number == 1


class Drops(Stage):
    """Leaves all out."""

    def __call__(self, uploads, opened, record):
        """Read all, return none."""
        assert [upload.client for upload in uploads] == ["ann", "bob", "cid"]
        return iter(())


class NoStage:
    """Something else."""


HERE = "rounds.test_stages"


def test_a_stage_changes_what_a_method_aggregates():
    plain, halved = build("fedproto", rounds=1), build("fedproto", rounds=1, stages=[f"{HERE}:Halves"])
    list(plain.run())
    list(halved.run())
    torch.testing.assert_close(halved.server["prototypes"], plain.server["prototypes"] / 2)
    assert uploads(halved), "the audit sees the clients' own uploads"


def test_stages_pass_uploads_on_in_order():
    federation = build("fedproto", rounds=1, stages=[f"{HERE}:Halves", f"{HERE}:Drops"])
    before = {name: tensor.clone() for name, tensor in federation.server.items()}
    list(federation.run())
    for name, tensor in federation.server.items():
        assert torch.equal(tensor, before[name]), "without uploads a server keeps its state"


def test_a_stage_ends_a_run_that_it_does_not_afford():
    federation = build("fedproto", rounds=5, stages=[f"{HERE}:OneRound"])
    assert [record.round for record in federation.run()] == [1]
    assert federation.exhausted


def test_a_run_says_which_stages_it_had(tmp_path):
    chosen = experiment(
        "fedproto", stages=[f"{HERE}:Halves"], data__samples=200, data__clients=3, partition__alpha=0.5
    )
    run = run_experiment(chosen, tmp_path / "run")
    assert "Prototypes are halved." in run.federation.notes
    assert load_run(tmp_path / "run").config["stages"] == [f"{HERE}:Halves"]
    assert chosen.key != experiment("fedproto", data__samples=200, data__clients=3, partition__alpha=0.5).key


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages": "mine.py:Stage"}, r"^stages must be a list of FILE.py:CLASS, e.g. .*not 'mine.py:Stage'$"),
        ({"stages": ["clip"]}, r"^stages must be a list of FILE.py:CLASS"),
        ({"stages": ["absent.py:Mine"]}, r"^stage 'absent.py:Mine' cannot be imported: no module at "),
        ({"stages": [f"{HERE}:Absent"]}, r"cannot be imported: module .* has no attribute 'Absent'$"),
        ({"stages": [f"{HERE}:NoStage"]}, r"must be a subclass of protofed.rounds.Stage$"),
        (
            {"stages": [f"{HERE}:Halves"], "privacy__mode": "client", "privacy__noise": 1.0},
            r"^stages=.*:Halves does not go with privacy.mode=client: a stage might mix the uploads",
        ),
    ],
)
def test_what_is_no_stage_is_named(options, message):
    with one_line(ConfigError, message):
        build("fedproto", ordinary(), **options)
