"""One site of a run in words."""

from __future__ import annotations

from dataclasses import replace

from protofed.runs.loading import load_run
from protofed_lab.viewer.site import site_view
from rundirs import make_run


def test_what_a_site_has_lacks_gains_and_reveals(tmp_path):
    run, alone = (load_run(make_run(tmp_path / name, name, clients=4)) for name in ("fedproto", "local"))
    client = run.clients[1]
    view = site_view(run, "client_01", [run, alone])
    assert view.has.startswith(f"{sum(client.train):,} training samples of 1 class (")
    own, base = run.client_accuracies(run.main_rule)[1], alone.client_accuracies("head")[1]
    assert view.gains.startswith(f"{100 * own:.1f}% of its own test samples are right by {run.main_rule}; ")
    assert f"alone {100 * base:.1f}% with local: {100 * (own - base):+.1f} (" in view.gains
    assert view.reveals.startswith("It sends prototypes, 328 kB in 8 rounds (mean of all sites)")
    assert "a method that sends nothing on the same split" in site_view(run, "client_01").gains
    assert site_view(alone, "client_01").gains.endswith("right by head, alone.")
    assert site_view(alone, "client_01").reveals == "Nothing has left it."
    assert "nothing was tested here" in site_view(run, "client_03").gains


def test_classes_that_a_site_lacks_and_numbers_that_it_withholds(tmp_path):
    run = load_run(make_run(tmp_path / "run", classes=3, clients=2))
    first, second = (replace(c, train=n) for c, n in zip(run.clients, ([5, 0, 2], [1, 7, 0]), strict=True))

    def of(*clients):
        return replace(run, federation=replace(run.federation, clients=list(clients)))

    view = site_view(of(first, second), "client_00")
    assert view.lacks == "1 class that others have (class 1: 7 elsewhere)."
    assert "1 of its classes have 3 samples or fewer, whose means are nearly samples" in view.reveals
    hidden = site_view(of(replace(first, counts="none"), second), "client_00")
    assert (hidden.has, hidden.lacks) == ("It keeps its numbers of samples to itself.", "Not known.")
    assert "samples or fewer" not in hidden.reveals
