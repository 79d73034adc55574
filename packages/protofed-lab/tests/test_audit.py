"""The audit finds what is there and invents nothing."""

from __future__ import annotations

import json
import math
import shutil

import pytest
import torch
from attacking import audited
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import protofed
import support
from protofed import load_run
from protofed.cli import main as cli
from protofed.config.schema import apply_overrides, every_method, load_recipe, resolve
from protofed.errors import CheckpointError, ConfigError, DataError
from protofed.experiments.assemble import assemble
from protofed.models import SplitModel
from protofed.samples import Samples
from protofed_lab.audit import measures, pictures
from protofed_lab.audit.attacks import INFORMED, MEMBER, OUTSIDER, SERVER
from protofed_lab.audit.auditing import attack, audit_run, protections
from protofed_lab.audit.findings import Finding
from protofed_lab.audit.report import guarantee, summary, write_audit
from protofed_lab.audit.seen import observe, reopened, shadow, told
from support import few

FOUR = {"method.name": "fedproto", "data.clients": 4, "model.d": 16, "robust.rule": "none"}
scores = st.lists(st.integers(-5, 5), min_size=1, max_size=12).map(lambda n: torch.tensor(n, dtype=torch.float64))


# Measures, against the definitions.


@given(scores, scores)
def test_auc_counts_pairs(positive, negative):
    pairs = [(p > n) + 0.5 * (p == n) for p in positive.tolist() for n in negative.tolist()]
    assert measures.auc(positive, negative) == pytest.approx(sum(pairs) / len(pairs))


@given(scores, scores, st.floats(0, 1))
def test_caught_keeps_to_the_false_alarms(positive, negative, most):
    limits = [limit for limit in [*negative.tolist()] if (negative > limit).double().mean() <= most]
    best = max((float((positive > limit).double().mean()) for limit in limits), default=0.0)
    assert measures.caught(positive, negative, min(most, 0.999)) <= best + 1e-12
    exact = int(min(most, 0.999) * len(negative))
    limit = sorted(negative.tolist(), reverse=True)[exact]
    assert measures.caught(positive, negative, min(most, 0.999)) == float((positive > limit).double().mean())


def test_error_of_an_auc_is_its_spread():
    """Over draws of two groups with equal distributions."""
    random = torch.Generator().manual_seed(0)
    found = [measures.auc(*torch.randn(2, 40, generator=random)) for _ in range(400)]
    assert measures.auc_error(0.5, 40, 40) == pytest.approx(torch.tensor(found).std().item(), rel=0.15)


def test_similarity_is_one_for_equal_images_only():
    image = torch.rand(2, 1, 9, 9, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(measures.similarity(image, image), torch.ones(2, dtype=torch.float64))
    assert (measures.similarity(image, image.flip(3)) < 0.5).all()
    small = image[..., :3, :3]
    assert torch.allclose(measures.similarity(small, small), torch.ones(2, dtype=torch.float64))


def test_models_of_an_attack_find_a_rule():
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    score = measures.Logistic(x, x[:, 0] + x[:, 1] > 0)(x)
    assert ((score > 0) == (x[:, 0] + x[:, 1] > 0)).double().mean() > 0.97


@pytest.fixture(autouse=True, scope="module")
def few_steps():
    """Let reconstructions end early: only one test asks how good they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "STEPS", 5)
        yield


# Attacks on methods that leak everything, and nothing.


def crowd() -> protofed.samples.FederatedData:
    """Return clients with so many samples that an AUC is known to two digits."""
    held = {"ann": [0, 1], "bob": [1, 2], "cid": [2, 3], "dan": [3, 0]}
    return support.federated(
        *(support.client(name, [a] * 60 + [b] * 90, [a] * 60 + [b] * 90) for name, (a, b) in held.items())
    )


def findings_of(method: str, **options) -> dict[tuple[str, str], Finding]:
    """Return the findings on a small federation by key and observer."""
    experiment, data = support.experiment(method, **options), crowd()
    return audited(experiment, data)


@pytest.fixture(scope="module")
def gossip():
    return findings_of("leaks:Gossip", training__lr=1e-4)


@pytest.fixture(scope="module")
def noise():
    return findings_of("leaks:Noise", training__lr=1e-4)


def test_finds_a_leak(gossip):
    for observer, key in ((SERVER, "membership"), (INFORMED, "membership_informed")):
        assert gossip[key, observer].value > 0.9, gossip[key, observer]
    assert gossip["membership_tpr", SERVER].value > 0.5
    assert gossip["classes", SERVER].value == 1
    assert gossip["participation_member", MEMBER].value > 0.9


@pytest.mark.slow
def test_invents_no_leak(noise):
    assert noise["membership", SERVER].value == pytest.approx(0.5, abs=0.05)
    informed = noise["membership_informed", INFORMED]
    assert informed.value == pytest.approx(informed.baseline, abs=0.05)
    assert noise["membership_tpr", SERVER].value < 0.05
    assert not noise["counts", SERVER].learned
    assert noise["participation_member", MEMBER].value == pytest.approx(0.5, abs=0.15)


@pytest.mark.slow
def test_sums_hide_who_holds_what():
    plain, masked = findings_of("tinyproto"), findings_of("tinyproto", secure__aggregation=True)
    assert plain["classes", SERVER].value == 1
    assert not masked["classes", SERVER].learned
    assert not masked["counts", SERVER].learned
    key = ("participation_member", MEMBER)
    assert plain[key].value == masked[key].value  # the broadcast is the same


OUTSIDE = {"classes_outside", "counts_outside", "membership_outside", "membership_tpr_outside"}
OUTSIDE |= {f"membership{part}_31_outside" for part in ("", "_tpr")}  # of classes that large
OUTSIDE |= {f"membership_{least}_outside" for least in (1, 4, 11)}  # there are none so small: no figure


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True])
def test_noise_of_clients_hides_from_others_and_in_sums_from_the_server(secure):
    """Where the server adds the noise, it finds what it finds without."""
    found = findings_of("fedproto", privacy__mode="client", privacy__noise=3.0, secure__aggregation=secure)
    assert found["classes", SERVER].learned is not secure
    assert found["classes", SERVER].value == (found["classes", SERVER].baseline if secure else 1)
    outside = [f for f in found.values() if f.observer == OUTSIDER]
    assert {f.key for f in outside} == (set() if secure else OUTSIDE)
    assert not any(f.learned for f in outside)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["client", "sample"])
def test_attacks_what_is_sent_with_its_noise(mode):
    quiet, noisy = (findings_of("fedavg", privacy__mode=mode, privacy__noise=z) for z in (0, 5.0))
    assert quiet["participation_member", MEMBER].value > 0.75
    assert noisy["participation_member", MEMBER].value == pytest.approx(0.5, abs=0.2)
    assert noisy["membership", SERVER].value == pytest.approx(0.5, abs=0.05)


@pytest.mark.slow
@few("secure", [False, True], 1)
def test_a_shadow_federation_has_noise_of_its_own(secure):
    """Noise that both federations share could be learned in one and subtracted in the other."""
    chosen = {"privacy__mode": "client", "privacy__noise": 1.0, "secure__aggregation": secure, "rounds": 1}
    data = crowd()
    experiment = support.experiment("fedavg", **chosen)
    federation, _ = assemble(experiment, data)
    other, _ = shadow(experiment, data)
    given = federation.exchange(federation.names, 1)

    def noise(one, draw):
        return (
            told(one, given, 1, draw)[0].payload["head.weight"]
            - told(one, given, 1, None)[0].payload["head.weight"]
        )

    other.state.tensors = federation.server
    drawn = [noise(federation, 0), noise(other, 0), noise(federation, 1), noise(federation, 2)]
    assert all(bool(d.abs().max() > 0.05) for d in drawn)
    assert all(not torch.allclose(a, b) for i, a in enumerate(drawn) for b in drawn[:i])
    assert torch.equal(drawn[0], noise(federation, 0))


@pytest.mark.slow
def test_finds_what_weights_remember():
    """Labels without a rule can only be learned by heart."""
    random = torch.Generator().manual_seed(0)
    clients = []
    for name in ("ann", "bob"):
        x = torch.randn(80, support.FEATURES, generator=random)
        y = torch.randint(0, support.K, (80,), generator=random)
        clients.append(protofed.samples.ClientData(name, Samples(x[:40], y[:40]), Samples(x[40:], y[40:])))
    data = support.federated(*clients)
    experiment = support.experiment(
        "fedavg", training__epochs=60, training__lr=0.3, model__options={"hidden": [128]}, rounds=1
    )
    federation, _ = assemble(experiment, data)
    other, dealt = shadow(experiment, data)
    found, _ = attack(observe(federation, data), observe(other, dealt), ("a", "b", "c", "d"), 0)
    (chosen,) = [f for f in found if f.key == "membership"]
    assert chosen.value > 0.9
    assert not any(f.observer == INFORMED for f in found)  # the upload is the model


@pytest.mark.slow
@few(("method", "error"), [("fedavg", 0.35), ("tinyproto", 0.5), ("fednh", 1e-9)], 1)
def test_estimates_counts(method, error):
    """Of 60 and 90 samples: from a head's change, from products of n and a mean, and where they are sent."""
    found = findings_of(method)["counts", SERVER]
    assert found.value < error


def test_reconstructs_through_a_model_that_can_be_inverted(monkeypatch):
    monkeypatch.setattr(pictures, "STEPS", 100)
    random = torch.Generator().manual_seed(0)
    model = SplitModel(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 64)), torch.nn.Linear(64, 4))
    torch.nn.init.orthogonal_(model.extractor[1].weight)
    wanted = torch.rand(2, 1, 8, 8, generator=random)
    public = Samples(torch.rand(50, 1, 8, 8, generator=random), torch.arange(50) % 4)
    with torch.no_grad():
        goal = model(wanted).features
    images = pictures.optimise(model, torch.tensor([0, 1]), ("features", goal), public, random)
    mean = public.x.mean(0, keepdim=True).expand_as(wanted)
    near, guess = (torch.cosine_similarity((t - 0.5).flatten(1), (wanted - 0.5).flatten(1)) for t in (images, mean))
    assert (near > guess + 0.3).all()


@pytest.mark.parametrize("method", every_method())
def test_every_method_can_be_audited(method):
    data = support.ordinary()
    experiment = support.experiment(method)
    federation, _ = assemble(experiment, data)
    list(federation.run())
    state = dict(federation.server)
    seen = observe(federation, data)
    assert all(torch.equal(state[n], t) for n, t in federation.server.items())  # the server's state stays
    other, dealt = shadow(experiment, data)
    found, _ = attack(seen, observe(other, dealt), ("a", "b", "c", "d"), 0)
    assert bool(found) is (federation.method.upload_schema is not None)
    for one in found:
        assert one.value is None or math.isfinite(one.value), one
        json.dumps(one.to_dict(), allow_nan=False)


def test_shadow_clients_have_other_draws_of_the_same_sizes():
    data = crowd()
    _, dealt = shadow(support.experiment(rounds=1), data)
    for old, new in zip(data.clients, dealt.clients, strict=True):
        for part in ("train", "test"):
            assert torch.equal(getattr(old, part).counts(4), getattr(new, part).counts(4))
        pools = [torch.cat([c.train.x, c.test.x]).sum(1).sort().values for c in (old, new)]
        assert torch.equal(*pools)
        same = {tuple(row) for row in old.train.x.tolist()} & {tuple(row) for row in new.train.x.tolist()}
        assert 0.3 < len(same) / len(old.train) < 0.7


# The command.


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("audit") / "run"
    return protofed.run("quickstart", {**support.SMALL_RUN, **FOUR}, out=out)


@pytest.mark.slow
def test_attacks_the_upload_of_one_more_round(run, tmp_path):
    """The recomputed upload is the one that the run sends when it goes on, bit for bit."""
    _, federation, data = reopened(load_run(run.directory))
    seen = observe(federation, data)
    assert seen.round == 3
    longer = support.SMALL_RUN | FOUR | {"rounds": 3}
    sent = {}

    def keep(server, uploads, round_number):
        uploads = list(uploads)
        sent[round_number] = {u.client: u.payload for u in uploads}
        return kept(server, iter(uploads), round_number)

    federation, _ = assemble(resolve(apply_overrides(load_recipe("quickstart"), longer)))
    kept = federation.method.aggregate
    federation.method.aggregate = keep
    list(federation.run())
    for sender in seen.senders:
        for name, tensor in sender.upload.payload.items():
            assert torch.equal(tensor, sent[3][sender.name][name]), name


def test_writes_a_page_and_leaves_the_run_alone(run):
    def content():
        files = [p for p in run.directory.rglob("*") if p.is_file() and not p.name.startswith("audit.")]
        return {p: p.read_bytes() for p in files}

    before = content()
    result = CliRunner().invoke(cli.app, ["audit", str(run.directory)])
    assert result.exit_code == 0, result.output
    assert "Which classes does a client hold?" in result.output
    assert content() == before
    tree = json.loads((run.directory / "audit.json").read_text())
    assert (tree["method"], tree["round"], tree["clients"]) == ("fedproto", 3, 4)
    page = (run.directory / "audit.html").read_text()
    assert "data:image/png;base64" in page
    assert "No noise was added: ε = ∞" in page
    assert tree["privacy"] is None
    assert "<script" not in page


@pytest.mark.slow
def test_says_at_what_epsilon(tmp_path):
    chosen = {"privacy.mode": "client", "privacy.noise": 2.0, "secure.aggregation": True}
    private = protofed.run("quickstart", {**support.SMALL_RUN, **FOUR, **chosen}, out=tmp_path / "run")
    audit = audit_run(private.directory)
    tree = audit.to_dict()
    assert tree["privacy"] == private.summary.privacy.to_dict()
    assert (tree["privacy"]["mode"], tree["privacy"]["delta"], tree["privacy"]["releases"]) == ("client", 1e-5, 2)
    words = f"ε = {tree['privacy']['epsilon']:.3g} at δ = 1e-05 after the rounds of the run (privacy.mode=client)"
    assert words in guarantee(audit)
    page = write_audit(audit, tmp_path / "audit.html").read_text()
    assert words in page
    assert "add the noise themselves" in page
    sample = support.experiment(privacy__mode="sample", privacy__noise=1)
    assert "which the server cannot take away" in protections(sample, noisy=True)[0]
    assert protections(sample, noisy=False) == ()


@pytest.mark.slow
def test_says_that_nothing_was_sent(tmp_path):
    quiet = protofed.run("quickstart", {**support.SMALL_RUN, "method.name": "local"}, out=tmp_path / "run")
    audit = audit_run(quiet.directory)
    assert audit.sent == "nothing"
    assert summary(audit) == ["Clients send nothing, so there is nothing to attack."]
    assert "send nothing" in write_audit(audit, tmp_path / "audit.html").read_text()


def test_refuses_what_cannot_be_audited(run, tmp_path):
    for missing, error, words in (
        ("summary.json", CheckpointError, "has not finished"),
        ("end.json", CheckpointError, "has no end.json"),
    ):
        copied = tmp_path / missing.removesuffix(".json")
        shutil.copytree(run.directory, copied)
        (copied / missing).unlink()
        with pytest.raises(error, match=words):
            audit_run(copied)
    with pytest.raises(ConfigError, match=r"model\.start"):
        shadow(support.experiment(model__start=str(run.directory)), support.ordinary())
    copied = tmp_path / "code"
    shutil.copytree(run.directory, copied)
    config = copied / "config.toml"
    config.write_text(config.read_text().replace('name = "fedproto"', 'name = "leaks:Gossip"'))
    with pytest.raises(DataError, match="trust-code"):
        audit_run(copied)
