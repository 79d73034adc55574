import dataclasses

import numpy as np
import pytest
import torch

from protofed import methods
from protofed.errors import ConfigError
from protofed.experiments.encoding import encode
from protofed_lab.demo import digits
from protofed_lab.demo.engine import (
    ENCODER,
    NAMES,
    FederationPair,
    LiveFederation,
    Plane,
    federated_digits,
    whole_digits,
)
from protofed_lab.demo.setup import MAX_CLIENTS, VARIANTS, Chosen, Setup, usual
from protofed_lab.demo.words import KNOBS, METHODS, look_for, why_low
from support import few, visited


def twins(**options):
    """Return a setup with FedProto left, and right FedTGP with other options."""
    return Setup(right=Chosen("fedtgp", {**usual("fedtgp").options, **options}))


def views(pair):
    dots = pair.dots()
    return [pair.sides[side].view(dots) for side in ("left", "right")]


def test_the_documents_clients():
    federated = federated_digits(Setup())
    assert [c.train.counts(4).tolist() for c in federated.clients] == [[48, 48, 16, 16], [16, 16, 48, 48]]
    first, second = (c.train.x.flatten(1) for c in federated.clients)
    assert len(torch.cat([first, second]).unique(dim=0)) == 256  # nobody shares an image
    assert federated.input_shape == (1, 28, 28)


def test_the_documents_model_and_the_same_start():
    pair = FederationPair(Setup())
    weights = [
        [dict(visited(c.federation)[name].model.state_dict()) for name in c.federation.names]
        for c in pair.sides.values()
    ]
    assert [tuple(w.shape) for n, w in weights[0][0].items() if n.endswith("weight")] == [
        (64, 784),
        (16, 64),
        (2, 16),
        (4, 2),
    ]
    for left, right in zip(*weights, strict=True):
        assert all(torch.equal(left[name], right[name]) for name in left)
    left, right = views(pair)
    assert np.array_equal(left.dots, right.dots)
    assert left.accuracy == right.accuracy
    assert left.bytes == 0


def test_the_digits_are_real_and_attributed():
    arrays = digits.load()
    assert arrays["train_x"].shape == (640, 28, 28)
    assert np.bincount(arrays["test_y"]).tolist() == [36] * 10
    with digits.FILE.open("rb") as file, np.load(file) as arrays:
        assert "LeCun" in (source := str(arrays["source"]))
        assert "licence" in source


def test_the_sheet_holds_every_test_image():
    import io

    from PIL import Image

    strokes = np.asarray(Image.open(io.BytesIO(digits.sheet(20))))[..., 1]
    row, column = divmod(57, 20)
    seen = strokes[28 * row : 28 * (row + 1), 28 * column : 28 * (column + 1)]
    assert np.array_equal(seen, digits.load()["test_x"][57])


def test_without_a_margin_training_is_averaging():
    pair = FederationPair(twins(margin=0.0))
    for _ in range(4):
        pair.step()
    left, right = views(pair)
    np.testing.assert_allclose(left.dots, right.dots, atol=1e-4)
    np.testing.assert_allclose(left.shared, right.shared, atol=1e-4)
    assert left.bytes == right.bytes > 0


@pytest.mark.slow
def test_a_margin_moved_while_it_runs_acts_on_what_is_there():
    pair, other = FederationPair(twins(margin=0.0)), FederationPair(twins(margin=0.0))
    for d in (pair, other):
        d.step()
        d.step()
    before = pair.sides["right"].federation.server["prototypes"].clone()
    pair.sides["right"].change({"margin": 1.5})
    assert torch.equal(pair.sides["right"].federation.server["prototypes"], before)
    assert pair.sides["right"].knobs()["margin"] == 1.5
    for d in (pair, other):
        d.step()
    moved, still = views(pair), views(other)
    assert moved[1].separation > 1.2 * still[1].separation
    np.testing.assert_allclose(moved[0].dots, still[0].dots)  # the left side does not notice
    # One round later the clients have received it.
    pair.step()
    other.step()
    assert not np.allclose(views(pair)[1].dots, views(other)[1].dots)


@pytest.mark.parametrize(("options", "message"), [({"margin": -1.0}, "margin"), ({"mergin": 1.0}, "mergin")])
def test_a_change_that_does_not_fit(options, message):
    pair = FederationPair(Setup())
    with pytest.raises(ConfigError, match=message):
        pair.sides["right"].change(options)
    pair.step()  # and nothing has changed
    assert pair.sides["right"].options["margin"] == usual("fedtgp").options["margin"]


@pytest.mark.slow
def test_trained_prototypes_end_at_least_as_accurate():
    pair = FederationPair(Setup())
    for _ in range(80):
        pair.step()
    left, right = (pair.sides[side].accuracy.weighted["global"] for side in ("left", "right"))
    assert right >= left > 0.8


IN_EIGHT = ("fedproto", "gfpl", "fixed_etf", "beacon", "local")
"""Methods of each kind of picture, whose features are projected to the plane as well."""


@pytest.mark.parametrize(
    ("name", "d"),
    [
        *((name, 2) for name in sorted(methods.methods())),
        ("fedproto", 8),
        *(pytest.param(name, 2, marks=pytest.mark.slow) for name in VARIANTS),
        *(pytest.param(name, 8, marks=pytest.mark.slow) for name in IN_EIGHT[1:]),
    ],
)
def test_every_method(name, d):
    setup = dataclasses.replace(Setup(), left=usual(name), d=d, clients=3)
    live = LiveFederation(setup, setup.left, federated_digits(setup))
    pair = FederationPair(setup)
    for _ in range(2):
        pair.step()
    view = views(pair)[0]
    assert np.isfinite(view.dots).all()
    assert view.own.shape == (3, 4, 2)
    assert view.shared.shape == (len(view.labels), 2)
    assert 0 <= view.accuracy <= 1
    assert len(view.clients) == 3
    for knob in live.knobs():
        pair.sides["left"].change({knob: max(1, KNOBS[knob].low)})
    pair.step()
    assert all(look_for(name, "local"))
    assert name in METHODS


def test_it_says_why_both_sides_do_badly():
    setup = Setup(digits=(0, 1, 2, 3, 4), clients=3, skew="dirichlet", alpha=0.1)
    counts = [[9, 0, 0, 0, 0], [0, 90, 0, 90, 0], [80, 0, 70, 0, 99]]
    assert why_low(setup, counts, [0.4, 0.5], 60) == (
        "Both sides stay low: with α = 0.1 a client has images of 2 of the 5 digits on average; among three "
        "clients the smallest has 9 training images; 5 digits share 2 dimensions, and each is tested on all digits."
    )
    assert why_low(setup, counts, [0.4, 0.5], 10) == ""  # too early
    assert why_low(setup, counts, [0.4, 0.9], 60) == ""  # one side does well
    plain = Setup()
    assert why_low(plain, [[48, 48, 16, 16], [16, 16, 48, 48]], [0.3, 0.3], 60) == ""  # none of these reasons


CLOSED = ("fedlda", "fed3r", "fedcof", "fedncm", "local_lda", "local_ncm")


@few("name", CLOSED, 1)
def test_a_closed_form_takes_fixed_features_and_one_round_while_the_other_goes_on(name):
    pair = FederationPair(Setup(left=usual(name), models="mixed", clients=4))
    live, other = pair.sides["left"], pair.sides["right"]
    assert live.federated.input_shape == (ENCODER.dim,)
    assert other.federated.input_shape == (1, 28, 28)
    assert not live.knobs()
    assert views(pair)[0].ended is None
    pair.step()
    done, before = views(pair)
    pair.step()
    after, later = views(pair)
    assert (done.ended, later.ended) == (1, None)
    assert (after.accuracy, after.bytes, after.seconds) == (done.accuracy, done.bytes, done.seconds)
    assert (done.bytes == 0) == name.startswith("local")
    assert len(done.shared) == (0 if name.startswith("local") else 4)
    assert later.bytes > before.bytes
    assert not pair.finished
    assert any("scattering" in note for note in live.notes)
    assert not any("scattering" in note for note in other.notes)


def test_two_closed_forms_are_finished_after_one_round_and_say_what_joining_is_worth():
    pair = FederationPair(Setup(left=usual("local_lda"), right=usual("fedlda"), skew="apart"))
    before = views(pair)  # nothing sent yet
    assert [v.unseen for v in before] == [0.0, 0.0]
    assert before[0].accuracy == pytest.approx(before[1].accuracy, abs=0.01)
    pair.step()
    alone, together = views(pair)
    assert pair.finished
    assert (alone.unseen, alone.bytes) == (0.0, 0)
    assert together.unseen > 0.9 < together.accuracy
    assert max(alone.clients) < 0.55


@pytest.mark.slow
def test_the_class_means_of_a_closed_form_are_those_of_all_images_together():
    pair = FederationPair(Setup(left=usual("fedlda"), skew="apart", clients=3))
    pair.step()
    live = pair.sides["left"]
    whole = encode(whole_digits(pair.setup.digits), ENCODER, kept=False).clients[0].train
    means = torch.stack([whole.x[whole.y == k].double().mean(0) for k in range(4)])
    np.testing.assert_allclose(views(pair)[0].shared, live.plane.of(means), atol=1e-5)


def test_weights_cannot_be_averaged_over_different_models():
    with pytest.raises(ConfigError, match="fedavg shares weights"):
        FederationPair(Setup(left=usual("fedavg"), models="mixed"))


@pytest.mark.parametrize("clients", [2, 3, 7, MAX_CLIENTS])
@pytest.mark.parametrize("shown", [(0, 1), (3, 5, 8), tuple(range(10))])
def test_halves_share_every_image_out_once(clients, shown):
    federated = federated_digits(Setup(clients=clients, digits=shown))
    counts = torch.stack([c.train.counts(len(shown)) for c in federated.clients])
    assert counts.sum(0).tolist() == [64] * len(shown)
    first = -(-clients // 2)
    assert counts[:first, 0].sum() == 48
    assert counts[first:, -1].sum() == (48 if len(shown) > 1 else 16)
    assert len(federated.clients[0].test) == 36 * len(shown)
    assert federated.class_names == tuple(NAMES[digit] for digit in shown)


@pytest.mark.parametrize("clients", [2, 6, 10])
def test_dots_are_an_even_choice(clients):
    pair = FederationPair(Setup(clients=clients))
    dots = pair.dots()
    assert len(dots) <= 320
    assert len(set(dots)) == len(dots)
    assert {c for c, _ in dots} == set(range(clients))
    labels = np.bincount([row // 36 for _, row in dots])
    assert labels.max() - labels.min() <= clients
    assert pair.dots(client=1) == [(1, row) for row in range(144)]


def test_a_dot_is_what_its_clients_model_makes_of_its_image():
    pair = FederationPair(Setup())
    pair.step()
    dots = pair.dots()
    view = pair.sides["right"].view(dots)
    client, row = dots[200]
    federation = pair.sides["right"].federation
    one = visited(federation)[federation.names[client]]
    image = one.test.x[row : row + 1].float() / 127.5 - 1
    np.testing.assert_allclose(view.dots[200], one.model.eval()(image).features[0].detach(), atol=1e-5)
    distances = np.linalg.norm(view.shared - view.dots[200], axis=1)
    assert view.predicted[200] == view.labels[distances.argmin()]


def test_separation_against_its_definition():
    pair = FederationPair(Setup())
    pair.step()
    dots = [(c, row) for c in (0, 1) for row in range(144)]
    view = pair.sides["right"].view(dots)
    y = np.array([row // 36 for _, row in dots])
    within = np.linalg.norm(view.dots - view.shared[y], axis=1).mean()
    between = min(np.linalg.norm(view.shared[i] - view.shared[j]) for i in range(4) for j in range(i))
    assert view.separation == pytest.approx(between / within, rel=1e-4)


def test_the_plane_does_not_jump():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 16, generator=generator, dtype=torch.float64) * torch.linspace(3, 0.5, 16)
    plane = Plane(16)
    plane.turn(x)
    last = plane.of(x)
    widest = np.linalg.svd((x - x.mean(0)).numpy(), compute_uv=False)[:2]
    np.testing.assert_allclose(np.linalg.norm(last), np.linalg.norm(widest))
    for _ in range(20):
        x = x + 0.02 * torch.randn(x.shape, generator=generator, dtype=torch.float64)
        plane.turn(x)
        points = plane.of(x)
        assert np.abs(points - last).max() < 0.5
        last = points
    # Neither does it matter which of two opposite directions a decomposition happens to return.
    mirrored = Plane(16)
    mirrored.turn(x)
    mirrored.basis = -plane.basis
    mirrored.turn(x)
    np.testing.assert_allclose(mirrored.of(x), -plane.of(x), atol=1e-9)


def test_features_that_are_not_finite_are_left_out_of_the_plane():
    plane = Plane(4)
    x = torch.randn(30, 4, dtype=torch.float64)
    x[3] = torch.nan
    plane.turn(x)
    assert plane.basis.isfinite().all()
    assert np.isnan(plane.of(x)[3]).all()
