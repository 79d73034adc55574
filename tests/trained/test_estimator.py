"""The estimator of scikit-learn: its own checks, groups as sites, and parity with the samples of all sites."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import protofed
from protofed.errors import ConfigError, DataError
from protofed.trained.estimator import ProtofedClassifier

SKIPPED: dict[str, str] = {}  #: Checks that cannot pass, each with its reason: none so far


@pytest.fixture(scope="module")
def cells():
    x, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))[:240]
    return x[order, :8], np.array(["malignant", "benign"])[y[order]], np.array(["Ost", "West", "Süd"])[order % 3]


@pytest.fixture(scope="module")
def fitted(cells):
    x, y, site = cells
    return ProtofedClassifier().fit(x, y, groups=site)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([ProtofedClassifier()], expected_failed_checks=lambda _: SKIPPED)
def test_it_keeps_the_habits_of_scikit_learn(estimator, check):
    check(estimator)


def test_groups_are_sites_and_answers_are_probabilities(cells, fitted):
    x, y, site = cells
    assert list(fitted.classes_) == ["benign", "malignant"]
    assert list(fitted.sites_) == ["Ost", "Süd", "West"]
    for groups in (None, site):
        found = fitted.predict_proba(x, groups=groups)
        assert np.allclose(found.sum(1), 1)
        assert (fitted.classes_[found.argmax(1)] == fitted.predict(x, groups=groups)).all()
        assert fitted.score(x, y, groups=groups) == np.mean(fitted.predict(x, groups=groups) == y) > 0.9


def test_a_site_s_own_model_answers_for_its_samples(cells):
    """Sites that learn alone, the labels of one of them swapped: its model says the contrary of the others'."""
    x, y, site = cells
    swapped = np.where((site == "Süd") ^ (y == "benign"), "benign", "malignant")
    alone = ProtofedClassifier("local_lda").fit(x, swapped, groups=site)
    assert alone.score(x, swapped, groups=site) > 0.85
    assert alone.score(x, y, groups=np.full(len(y), "Ost")) > 0.85
    assert alone.score(x, y, groups=np.full(len(y), "Süd")) < 0.15
    unknown = alone.predict_proba(x, groups=np.full(len(y), "elsewhere"))
    assert np.array_equal(unknown, alone.predict_proba(x))


def test_without_groups_the_mean_of_the_sites_answers(cells):
    x, y, site = cells
    alone = ProtofedClassifier("local_lda", rule="head").fit(x, y, groups=site)
    each = [alone.predict_proba(x, groups=np.full(len(x), name)) for name in alone.sites_]
    sizes = [np.sum(site == name) for name in alone.sites_]
    assert np.allclose(alone.predict_proba(x), np.average(each, axis=0, weights=sizes))


def test_the_closed_form_does_not_depend_on_the_sites(cells):
    """Sums of parts are the sums of all: one site, and three, give one server's model."""
    x, y, site = cells
    together = ProtofedClassifier(rule="global_model").fit(x, y)
    parted = ProtofedClassifier(rule="global_model").fit(x, y, groups=site)
    assert list(together.sites_) == [0]
    assert np.allclose(together.predict_proba(x), parted.predict_proba(x), atol=1e-4)


def test_it_can_be_cloned_pickled_and_validated_by_groups(cells, fitted):
    x, y, site = cells
    copy = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(copy.predict_proba(x), fitted.predict_proba(x))
    folds = GroupKFold(3)
    scores = cross_val_score(clone(fitted), x, y, groups=site, cv=folds, params={"groups": site})
    assert scores.min() > 0.85
    search = GridSearchCV(ProtofedClassifier(), {"method": ["local_lda", "fedlda"]}, cv=GroupKFold(2), refit=False)
    assert len(search.fit(x, y, groups=site).cv_results_["params"]) == 2


def test_groups_are_routed(cells):
    x, y, site = cells
    with sklearn.config_context(enable_metadata_routing=True):
        routed = ProtofedClassifier().set_fit_request(groups=True).set_score_request(groups=False)
        line = make_pipeline(StandardScaler(), routed)
        scores = cross_val_score(line, x, y, cv=GroupKFold(3), params={"groups": site})
    assert scores.min() > 0.85


def test_frames_have_texts_dates_and_gaps(cells):
    x, y, site = cells
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(x[:, :4], columns=list("abcd"))
    frame["sex"] = pd.Categorical(np.where(rng.random(len(y)) < 0.5, "f", "m"))
    frame["seen"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(300, size=len(y)), unit="D")
    frame.loc[::9, "a"] = np.nan
    wanted = {"data.missing": "indicator", "data.dates": {"seen": "day"}}
    model = ProtofedClassifier(overrides=wanted).fit(frame, pd.Series(y), groups=pd.Series(site))
    assert list(model.feature_names_in_) == ["a", "b", "c", "d", "sex", "seen"]
    assert model.score(frame, y) > 0.85
    assert np.allclose(model.predict_proba(frame.iloc[:7]), model.predict_proba(frame)[:7])
    with pytest.raises(DataError, match="the data frame: column 'a', row 0 has no value"):
        ProtofedClassifier(overrides={"data.dates": {"seen": "day"}}).fit(frame, y)


def test_networks_learn_too(cells):
    x, y, site = cells
    model = ProtofedClassifier("fedproto", rounds=3, overrides={"method.lambda": 0.1}, random_state=3)
    assert model.fit(x, y, groups=site).score(x, y, groups=site) > 0.75


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"method": "fedlab"}, "did you mean"),
        ({"overrides": {"data.source": "mnist"}}, "data.source: X, y and groups are the data"),
        ({"overrides": {"partition.name": "iid"}}, "partition.name: X, y and groups are the data"),
        ({"overrides": {"method.shrinkage": -1}}, "shrinkage"),
    ],
)
def test_wrong_parameters_are_told_when_it_is_fitted(given, error, cells):
    x, y, _ = cells
    with pytest.raises(ConfigError, match=error):
        ProtofedClassifier(**given).fit(x, y)


def test_what_cannot_be_learned_is_refused(cells, fitted):
    x, y, site = cells
    with pytest.raises(ValueError, match="of one class, 'benign'"):
        ProtofedClassifier().fit(x[y == "benign"], y[y == "benign"])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        ProtofedClassifier().fit(x, y, groups=site[:-1])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        fitted.predict(x, groups=site[:-1])
    with pytest.raises(ValueError, match="contains NaN"):
        ProtofedClassifier().fit(np.where(x > 20, np.nan, x), y)
    with pytest.raises(NotFittedError):
        ProtofedClassifier().predict(x)


@pytest.mark.parametrize("nothing", [None, np.nan, pd.NA])
def test_a_sample_without_a_site_is_refused(nothing, cells):
    x, y, site = cells
    for groups in (pd.Series(site, dtype=object), pd.Series(site), pd.Series(np.arange(len(y)) % 3.0)):
        groups[7] = nothing
        with pytest.raises(ValueError, match="groups: has no site in row 7: name one, or leave the sample out"):
            ProtofedClassifier().fit(x, y, groups=groups)


def test_it_is_public():
    assert protofed.ProtofedClassifier is ProtofedClassifier


def test_the_number_of_threads_is_the_callers(cells, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    given = []
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    ProtofedClassifier().fit(*cells[:2])
    assert (given[0], given[-1]) == (1, 3)
