"""FedGen and FedPA: against naive references, what the generator learns, and what they have to survive."""

from __future__ import annotations

import pytest
import torch

import naive
from naive import SEED, build, same, same_nets
from protofed.compute.seeding import derive, generator
from protofed.errors import ConfigError, ModelError
from protofed.methods.contract import Task
from protofed.methods.parts.generator import PREFIX, FeatureGenerator, diversity, generate
from protofed.models.layers import uniform
from support import K, client, federated, few

Z, H, D, STEPS, BATCH = 3, 6, 5, 3, 4
SMALL = {"method__generator_hidden": H, "method__generator_steps": STEPS, "method__generator_lr": 0.01}
METHODS = pytest.mark.parametrize("method", ["fedgen", "fedpa"])


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr("protofed.methods.parts.generator.LATENT", Z)
    monkeypatch.setattr("protofed.methods.parts.generator.BATCH", BATCH)


# The generator by itself.


def naive_generate(w, noise, y, statistics):
    """``G(ε, y)`` of one sample, unit by unit; ``statistics`` are the hidden units' means and variances."""
    x = [*noise, *[torch.tensor(float(k == y), dtype=torch.float64) for k in range(K)]]
    out = []
    for u in range(H):
        a = sum(w["hidden.weight"][u][i] * x[i] for i in range(len(x))) + w["hidden.bias"][u]
        a = (a - statistics[0][u]) / (statistics[1][u] + 1e-5).sqrt() * w["norm.weight"][u] + w["norm.bias"][u]
        out.append(a.clamp(min=0))
    return torch.stack(
        [sum(w["output.weight"][j][u] * out[u] for u in range(H)) + w["output.bias"][j] for j in range(D)]
    )


def hidden(w, noise, y):
    """The hidden units of one sample before they are normalised."""
    x = torch.cat([noise, torch.eye(K, dtype=torch.float64)[y]])
    return w["hidden.weight"] @ x + w["hidden.bias"]


def a_generator():
    task = Task(K, D, rounds=1, seed=0, class_size=0, dtype=torch.float64)
    made = FeatureGenerator(task, H, "uniform")
    return {name.removeprefix(PREFIX): tensor for name, tensor in made.first.items()}


def test_generated_features():
    g = torch.Generator().manual_seed(1)
    w, noise, labels = a_generator(), torch.rand(7, Z, generator=g, dtype=torch.float64), torch.arange(7) % K
    w |= {
        "norm.running_mean": torch.rand(H, generator=g).double(),
        "norm.running_var": torch.rand(H).double() + 0.1,
    }
    a = torch.stack([hidden(w, e, y) for e, y in zip(noise, labels.tolist(), strict=True)])
    batch = a.mean(0), ((a - a.mean(0)) ** 2).mean(0)
    for training, statistics in ((False, (w["norm.running_mean"], w["norm.running_var"])), (True, batch)):
        found = generate(w, noise, labels, training=training)
        for b in range(7):
            same(found.features[b], naive_generate(w, noise[b], int(labels[b]), statistics))


def naive_diversity(noise, features, labels=None):
    """``exp(−mean_{b,b'} mean_z (ε_b − ε_b')² · mean_d |G_b − G_b'|)``, pairs of one label set to 0 if asked."""
    B, total = len(noise), 0.0
    for b in range(B):
        for c in range(B):
            if labels is None or labels[b] != labels[c]:
                total = total + ((noise[b] - noise[c]) ** 2).mean() * (features[b] - features[c]).abs().mean()
    return torch.exp(-total / B**2)


def test_diversity():
    g = torch.Generator().manual_seed(2)
    noise, features = (torch.rand(5, n, generator=g, dtype=torch.float64) for n in (Z, D))
    labels = torch.tensor([0, 1, 1, 2, 0])
    same(diversity(noise, features), naive_diversity(noise, features))
    different = labels.unsqueeze(0) != labels.unsqueeze(1)
    same(diversity(noise, features, different), naive_diversity(noise, features, labels.tolist()))


# Whole rounds.


class Draws:
    """What a client's source of noise gives in a round, call by call."""

    def __init__(self, name, number):
        self.key = derive(SEED, "noise", number, name, 0)

    def __call__(self, *shape):
        numbers = uniform(torch.tensor(self.key), shape).double()
        self.key += 1 << 32
        return numbers


class Adam:
    """Adam with weight decay added to the gradient, by hand."""

    def __init__(self, lr, decay):
        self.lr, self.decay, self.t, self.m, self.v = lr, decay, 0, {}, {}

    def step(self, w, gradients):
        self.t += 1
        moved = dict(w)
        for n, g in gradients.items():
            g = g + self.decay * w[n]
            self.m[n] = 0.9 * self.m.get(n, 0) + 0.1 * g
            self.v[n] = 0.999 * self.v.get(n, 0) + 0.001 * g**2
            m, v = self.m[n] / (1 - 0.9**self.t), self.v[n] / (1 - 0.999**self.t)
            moved[n] = w[n] - self.lr * m / (v.sqrt() + 1e-8)
        return moved


class Reference:
    """Both methods in the words of their papers' algorithms; every sample of every batch by itself."""

    def __init__(self, federation, data, method, options):
        self.data, self.method = data, method
        self.head_only = options.get("method__preset") == "htfl"
        self.nets = {c.name: naive.own_net(federation, c.name) for c in data.clients}
        self.shared = [t.clone() for n, t in federation.server.items() if n in federation.method.initial]
        prefix = "generator."
        self.G = {n.removeprefix(prefix): t.clone() for n, t in federation.server.items() if n.startswith(prefix)}
        self.prior = [1 / K] * K
        self.P = {}

    def weights(self, number):
        t = number - 1
        if self.head_only:
            return 1.0, 0.0
        if self.method == "fedgen":
            return (0.0, 0.0) if t == 0 else (10 * 0.98**t, 10 * 0.98**t)
        return (0.0, 0.0) if t == 0 else (max(1e-4, 25 * 0.98**t), max(0.15, 5 * 0.98**t))

    def running(self, noise, y):
        return naive_generate(self.G, noise, y, (self.G["norm.running_mean"], self.G["norm.running_var"]))

    def client_loss(self, w, batch, alpha, beta, draws):
        ce = naive.mean([naive.cross_entropy(naive.logits(w, x), y) for x, y in batch])
        if alpha:  # α_t·CE(g(G(ε, y')), y')
            places, noise = draws(len(batch)), draws(len(batch), Z)
            labels = []
            for u in places.tolist():
                height, label = 0.0, -1
                while height <= u:
                    label += 1
                    height += self.prior[label]
                labels.append(label)
            pseudo = [
                naive.cross_entropy(naive.head(w, self.running(e, y)), y)
                for e, y in zip(noise, labels, strict=True)
            ]
            ce = ce + alpha * naive.mean(pseudo)
        if beta and self.method == "fedgen":  # β_t·KL(softmax g(G(ε', y)) ‖ p(x))
            terms = []
            for (x, y), e in zip(batch, draws(len(batch), Z), strict=True):
                teacher = naive.probabilities(naive.head(w, self.running(e, y))).detach()
                terms.append(naive.divergence(teacher, naive.probabilities(naive.logits(w, x))))
            ce = ce + beta * naive.mean(terms)
        if beta and self.method == "fedpa":  # β_t·MSE(f(x), P_y), 0 for a class without prototype
            pulls = [
                ((naive.features(w, x) - self.P[y]) ** 2).mean() if y in self.P else torch.zeros(()).double()
                for x, y in batch
            ]
            ce = ce + beta * naive.mean(pulls)
        return ce

    def generator_loss(self, leaves, noise, labels, heads, alpha, number):
        a = torch.stack([hidden(leaves, e, y) for e, y in zip(noise, labels, strict=True)])
        statistics = a.mean(0), ((a - a.mean(0)) ** 2).mean(0)
        made = [naive_generate(leaves, e, y, statistics) for e, y in zip(noise, labels, strict=True)]
        counts = {c.name: torch.bincount(c.train.y, minlength=K).double() for c in self.data.clients}
        total = sum(counts.values())
        n = sum(len(c.train) for c in self.data.clients)
        if self.head_only:  # CE(Σ_i (n_i/n)·g_i(G), y)
            loss = naive.mean(
                [
                    naive.cross_entropy(
                        sum(len(c.train) / n * naive.head(heads[c.name], f) for c in self.data.clients), y
                    )
                    for f, y in zip(made, labels, strict=True)
                ]
            )
            return loss, statistics
        loss = sum(  # Σ_i mean_b a_{y,i}·CE(g_i(G), y)
            naive.mean(
                [
                    counts[c.name][y] / total[y] * naive.cross_entropy(naive.head(heads[c.name], f), y)
                    for f, y in zip(made, labels, strict=True)
                ]
            )
            for c in self.data.clients
        )
        if self.method == "fedgen":
            return loss + naive_diversity(noise, torch.stack(made)), statistics
        loss = alpha * loss
        if number > 1:  # − 0.15·MSE(G, P_y)
            push = [
                ((f - self.P[y]) ** 2).mean() if y in self.P else torch.zeros(()).double()
                for f, y in zip(made, labels, strict=True)
            ]
            loss = loss - 0.15 * naive.mean(push)
        return loss + naive_diversity(noise, torch.stack(made), labels), statistics

    def train_generator(self, heads, number):
        source = generator(SEED, "generator training", number)
        adam = Adam(0.01, 0.0) if self.head_only else Adam(0.01 * 0.98 ** (number - 1), 0.01)
        alpha = max(1e-4, 25 * 0.98 ** (number - 1))
        prior = torch.tensor(self.prior, dtype=torch.float64)
        for _ in range(STEPS):
            labels = torch.multinomial(prior, BATCH, replacement=True, generator=source).tolist()
            noise = torch.rand(BATCH, Z, generator=source, dtype=torch.float64)
            leaves = {n: t.clone().requires_grad_("running" not in n) for n, t in self.G.items()}
            loss, (m, v) = self.generator_loss(leaves, noise, labels, heads, alpha, number)
            names = [n for n in leaves if "running" not in n]
            gradients = torch.autograd.grad(loss, [leaves[n] for n in names])
            self.G = adam.step(self.G, dict(zip(names, gradients, strict=True)))
            m, v = m.detach(), v.detach() * BATCH / (BATCH - 1)
            self.G["norm.running_mean"] = 0.9 * self.G["norm.running_mean"] + 0.1 * m
            self.G["norm.running_var"] = 0.9 * self.G["norm.running_var"] + 0.1 * v

    def round(self, number):
        alpha, beta = self.weights(number)
        seen: dict[int, list[torch.Tensor]] = {}
        for c in self.data.clients:
            w = self.nets[c.name][:2] + self.shared if self.head_only else self.shared
            draws = Draws(c.name, number)
            for batch in naive.rounds_of(c.train, c.name, number):
                for x, y in batch:  # train-mode features, sample-weighted over the clients: n_ij·p_ij
                    seen.setdefault(y, []).append(naive.features(w, x).detach())
                (w,), _ = naive.step(
                    [w], lambda parts, b=batch, d=draws: self.client_loss(parts[0], b, alpha, beta, d)
                )
            self.nets[c.name] = w
        counts = sum(torch.bincount(c.train.y, minlength=K) for c in self.data.clients)
        held = counts.double() if self.head_only else (counts > 0).double()
        self.prior = (held / held.sum()).tolist()
        self.train_generator(self.nets, number)
        total = sum(len(c.train) for c in self.data.clients)
        first = 2 if self.head_only else 0
        self.shared = [
            sum(len(c.train) * self.nets[c.name][i] for c in self.data.clients) / total for i in range(first, 4)
        ]
        self.P |= {y: naive.mean(rows) for y, rows in seen.items()}


@few(
    ("method", "options"),
    [("fedgen", {}), ("fedgen", {"method__preset": "htfl"}), ("fedpa", {})],
    1,
    ids=["original", "htfl", "fedpa"],
)
def test_three_rounds(method, options):
    data = federated(client("ann", [0, 0, 0, 0, 1, 1]), client("bob", [1, 1, 2, 2, 2]), client("cid", [0]))
    federation = build(method, data, rounds=3, **SMALL, **options)
    reference = Reference(federation, data, method, options)
    for number, _ in enumerate(federation.run(), start=1):
        reference.round(number)
        server = federation.server
        same_nets([server[n] for n in federation.method.initial], reference.shared)
        for name, tensor in reference.G.items():
            torch.testing.assert_close(server[f"generator.{name}"], tensor, rtol=1e-7, atol=1e-10)
        assert server["prior"].tolist() == pytest.approx(reference.prior)
        if method == "fedpa":
            assert server["present"].tolist() == [y in reference.P for y in range(K)]
            for y, p in reference.P.items():
                same(server["prototypes"][y], p)


def test_the_generator_learns_what_the_heads_know():
    federation = build("fedgen", rounds=1, method__generator_steps=300, method__generator_lr=0.01)
    record = next(federation.run())
    assert record.diagnostics["generator_loss_last"] < 0.7 * record.diagnostics["generator_loss_first"]


@pytest.mark.slow
def test_the_push_has_a_limit(monkeypatch):
    """A generator that is only pushed away would go on for ever."""
    monkeypatch.setattr("protofed.methods.fedpa.WEIGHT_DECAY", 0.0)
    ends = []
    for limit in (0.5, 1e9):
        monkeypatch.setattr("protofed.methods.fedpa.PUSH_LIMIT", limit)
        federation = build("fedpa", method__alpha=0.0, method__generator_lr=0.1, rounds=3)
        list(federation.run())
        ends.append(
            max(float(t.abs().max()) for n, t in federation.server.items() if n.startswith("generator.output"))
        )
    assert ends[0] < ends[1]


@METHODS
@few("prior", ["available", "counts", "uniform"], 5)
def test_which_labels_are_generated(method, prior):
    """Class 3 nobody has; with a uniform prior no counts are sent."""
    data = federated(client("ann", [0, 0, 0, 1]), client("bob", [2, 1]))
    federation = build(method, data, method__label_prior=prior, **SMALL)
    list(federation.run())
    expected = {"available": [1 / 3, 1 / 3, 1 / 3, 0], "counts": [3 / 6, 2 / 6, 1 / 6, 0], "uniform": [1 / 4] * 4}
    assert federation.server["prior"].tolist() == pytest.approx(expected[prior])
    assert ("counts" in federation.method.upload_schema.fields) is (prior != "uniform")


@pytest.mark.slow
def test_heads_alone_fit_any_extractor():
    data = federated(client("ann", [0, 1, 2]), client("bob", [1, 3, 3], model="support:WithBatchNorm"))
    ours = {"model__d": 8, "data__trust_code": True}
    list(build("fedgen", data, method__preset="htfl", **ours).run())
    for method in ("fedgen", "fedpa"):
        with pytest.raises(ConfigError, match=f"{method} shares weights and needs one architecture, but ann has"):
            build(method, data, **ours)
    with pytest.raises(ModelError, match="ann: fedgen shares a head with a bias"):
        build("fedgen", model__name="support:NoBias", model__options={})
