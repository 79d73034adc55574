"""Clients that are asked about digits they never saw."""

import numpy as np
import pytest

from protofed_lab.demo.engine import FederationPair, federated_digits
from protofed_lab.demo.setup import Setup, usual
from protofed_lab.demo.words import look_for


def test_by_halves_each_its_own_digits():
    federated = federated_digits(Setup(skew="apart"))
    assert [c.train.counts(4).tolist() for c in federated.clients] == [[64, 64, 0, 0], [0, 0, 64, 64]]


@pytest.mark.slow
def test_only_what_the_beacon_taught_answers_for_digits_never_seen():
    pair = FederationPair(Setup(left=usual("local"), right=usual("beacon"), skew="apart"))
    for _ in range(8):
        pair.step()
    left, right = (pair.sides[side].view(pair.dots()) for side in ("left", "right"))
    assert left.unseen == 0.0
    assert right.unseen > 0.75
    assert right.accuracy > 0.75  # on all digits, though its own rule would answer with half of them only
    assert right.head < 0.55
    assert right.bytes > 0
    shown = pair.dots(0)
    found = pair.sides["right"].view(shown).predicted
    truth = pair.federated.clients[0].test.y[[row for _, row in shown]].numpy()
    assert np.mean((found == truth)[truth >= 2]) > 0.75  # client A, which has the first two digits


def test_nothing_is_unseen_where_all_have_all_digits():
    pair = FederationPair(Setup())
    assert pair.sides["left"].view(pair.dots()).unseen is None


def test_it_says_what_to_look_for():
    assert "never saw" in " ".join(look_for("local", "beacon"))
