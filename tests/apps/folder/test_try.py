"""``protofed try``: each site alone against all together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from typer.testing import CliRunner

from protofed.apps.folder.looking import inspected
from protofed.apps.folder.notice import combined
from protofed.apps.folder.page import write_trial
from protofed.apps.folder.trying import Arm, FolderTrial, _learnt, _logistic, _numbers, tried
from protofed.cli.main import app
from protofed.config.schema import load_recipe, resolve
from protofed.errors import DataError
from protofed.samples import ClientData
from protofed.untrusted.reading import parse_toml
from strangers import FOLDERS, skewed, write
from support import few


@pytest.fixture(scope="module")
def trial(tmp_path_factory, without_pictures):
    home = tmp_path_factory.mktemp("try")
    FOLDERS["hospitals"](home / "sites")
    look = inspected(home / "sites")
    taken = [notice for notice in look.notices if notice.options]
    found = tried(look.recipe(taken).replace("rounds = 20", "rounds = 1"), (0,), home / "runs")
    write_trial(found, taken)
    return found


def test_every_way_of_learning_is_compared_on_the_same_samples(trial):
    titles = [arm.title for arm in trial.arms]
    assert titles == [
        *("fedlda, together", "local_lda, alone", "beacon, together", "local, alone"),
        *("logistic regression, alone", "logistic regression, pooled"),
        *("gradient boosting, alone", "gradient boosting, pooled"),
    ]
    assert trial.sites == ("Köln", "north", "west")
    assert trial.left_out == ("east",)  # all its samples are of one class
    sizes = [[list(map(len, hits)) for hits in arm.hits.values()] for arm in trial.arms]
    assert all(size == sizes[0] for size in sizes)
    assert min(arm.mean()[0] for arm in trial.arms if arm.name not in ("beacon", "local")) > 0.85


def test_the_page_begins_with_the_answer(trial):
    page = trial.page.read_text()
    assert trial.verdict in page.replace("&#39;", "'")
    assert page.index(trial.verdict[:20]) < page.index("<table")
    assert "patient_id" in page
    written = json.loads((trial.directory / "try.json").read_text())
    assert written["verdict"] == trial.verdict
    assert len(written["arms"]) == len(trial.arms)


def test_what_was_stopped_goes_on_with_the_same_command(trial, monkeypatch):
    text = trial.directory.with_suffix(".toml").read_text()
    for out in (trial.directory, None):
        trial.directory.joinpath("try.json").unlink()
        monkeypatch.setattr("protofed.experiments.rundir._existing", lambda _: [trial.directory])
        again = tried(text.partition("\n\n")[2], (0,), out)
        assert (again.directory, again.verdict) == (trial.directory, trial.verdict)


def _by_hand(clients: Sequence[ClientData], pooled: bool) -> float:
    """Return the share of test samples that plain logistic regression gets right."""
    right = tested = 0
    for own in clients:
        several = [c for c in clients if len(c.train)] if pooled else [own]
        x = np.concatenate([c.train.x.flatten(1).numpy() for c in several]).astype(float)
        y = np.concatenate([c.train.y.numpy() for c in several])
        if len(np.unique(own.train.y)) < 2 or not len(own.test):
            continue
        found = make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000)).fit(x, y)
        right += int((found.predict(own.test.x.flatten(1).numpy().astype(float)) == own.test.y.numpy()).sum())
        tested += len(own.test)
    return right / tested


@few("name", FOLDERS, 1)
def test_nobody_is_compared_with_a_straw_man(name, tmp_path):
    """Alone and pooled are as good as what somebody would do by hand who had raw numbers of one unit."""
    FOLDERS[name](tmp_path)
    look = inspected(tmp_path)
    tree = load_recipe(parse_toml(look.recipe([notice for notice in look.notices if notice.options])))
    plain = resolve({**tree, "encoder": {}})
    raw = plain if name == "units" else replace(plain, data=replace(plain.data, standardise="none"))
    for pooled in (False, True):
        reached, wanted = [], []
        for seed in range(3):
            clients = _numbers(replace(plain, seed=seed)).clients
            kept = [c.name for c in clients if len(c.train.y.unique()) > 1 and len(c.test)]
            hits = _learnt(_logistic, [clients], pooled)
            reached.append(np.concatenate([hits[site][0] for site in kept]).mean())
            wanted.append(_by_hand(_numbers(replace(raw, seed=seed)).clients, pooled))
        assert np.mean(reached) >= np.mean(wanted) - 0.02, (name, pooled)


@pytest.mark.slow
def test_pooled_samples_of_hospitals_with_other_shares_of_classes_are_worth_what_they_are(tmp_path):
    """Standardised by site, they lost what tells patients apart: 82 % in place of 97."""
    skewed(tmp_path)
    look = inspected(tmp_path)
    assert combined(look.notices)["data.standardise"] == "federated"
    tree = load_recipe(parse_toml(look.recipe([notice for notice in look.notices if notice.options])))
    held = [_numbers(resolve({**tree, "encoder": {}, "seed": seed})).clients for seed in range(3)]
    alone, pooled = (
        np.mean([own for parts in _learnt(_logistic, held, together).values() for part in parts for own in part])
        for together in (False, True)
    )
    assert pooled > 0.96
    assert pooled > alone


def hits(*right: list[int]) -> dict[str, list[np.ndarray]]:
    """Return the same right and wrong answers for each of two seeds."""
    return {f"s{i}": [np.array(own, float)] * 2 for i, own in enumerate(right)}


def judged(together: dict[str, list[np.ndarray]], alone: dict[str, list[np.ndarray]], tmp_path) -> str:
    arms = (Arm("fedlda", True, True, together), Arm("local_lda", False, False, alone))
    return FolderTrial(tuple(together), (), arms, (0,), 4096.0, tmp_path).verdict


@pytest.mark.parametrize(
    ("together", "alone", "said"),
    [
        (
            hits([1] * 90 + [0] * 10, [1] * 90),
            hits([1] * 60 + [0] * 40, [1] * 50 + [0] * 40),
            "helps 2 of 2 sites: +",
        ),
        (hits([1] * 60 + [0] * 40), hits([1] * 90 + [0] * 10), "does not help: -30.0 points"),
        (hits([1, 0] * 50), hits([0, 1] * 50), "No gain from federating is seen: +0.0 points"),
        (hits([1] * 50, [0] * 50), hits([0] * 50, [1] * 50), "s0 gains; s1 loses"),
    ],
)
def test_the_answer_follows_the_interval(together, alone, said, tmp_path):
    assert said in judged(together, alone, tmp_path)


def test_nothing_to_compare_is_said(tmp_path):
    names, rows = ["size", "weight", "outcome"], [[i + 0.5, i % 5 + 0.5, "y"] for i in range(40)]
    write(tmp_path / "a.csv", names, rows)
    write(tmp_path / "b.csv", names, [[*row[:2], "n"] for row in rows])
    look = inspected(tmp_path)
    text = look.recipe([notice for notice in look.notices if notice.options])
    with pytest.raises(DataError, match="no site has test samples and more than one class"):
        tried(text, (0,), tmp_path / "runs")


def test_a_folder_that_is_none_is_one_line(tmp_path):
    result = CliRunner().invoke(app, ["try", str(tmp_path / "none")])
    assert isinstance(result.exception, DataError)
    assert "no such folder" in str(result.exception)
