"""ProtoNorm's figure of the alignment of prototypes."""

from __future__ import annotations

import pytest

from protofed.errors import DataError
from protofed.runs.loading import load_run
from protofed_papers.aligning import alignment
from rundirs import make_run


def test_alignment_starts_at_zero_and_has_the_simplex_as_bound(tmp_path):
    fig = alignment([load_run(make_run(tmp_path / "run", "protonorm", classes=10))])
    iterations, distances = fig.axes
    assert len(iterations.lines[0].get_xdata()) == 8
    assert distances.lines[0].get_xdata()[0] == 0
    assert distances.lines[-1].get_ydata()[0] == pytest.approx((20 / 9) ** 0.5)
    fig.draw_without_rendering()
    assert "simplex of K=10 classes, √(2K/(K−1)) = 1.49" in [t.get_text() for t in fig.legends[0].get_texts()]
    with pytest.raises(DataError, match="no alignment to show"):
        alignment([load_run(make_run(tmp_path / "local", "local", classes=10))])


@pytest.mark.parametrize("given", [5, [1, 2], [[1, 2]], [["a", "b", "c"]], {"a": 1}, [[True, 1.0, 2.0]]])
def test_distances_that_no_server_measured_are_none(tmp_path, given):
    run = load_run(make_run(tmp_path / "run", "protonorm", classes=10))
    for record in run.rounds:
        record.diagnostics["alignment_distances"] = given
    assert len(alignment([run]).axes) == 1
