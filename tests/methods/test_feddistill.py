"""FedDistill: against a naive reference, classes that few or none report, and what it has to survive."""

from __future__ import annotations

import torch

import naive
from naive import build, same, uneven
from protofed.methods.contract import Upload
from support import K, client, federated, few, visited

GAMMA = 0.7


class Reference:
    """``L = CE + γ·mean(−Σ_k F_yk log p_k)``; ``F_ij = mean_x o(x)``, ``F_j = mean over reporters i of F_ij``."""

    def __init__(self, federation, data, options) -> None:
        self.data = data
        self.nets = {c.name: naive.own_net(federation, c.name) for c in data.clients}
        self.raw = self.own = self.during = options.get("method__preset") == "htfl"
        self.reported: dict[int, dict[str, torch.Tensor]] = {}

    def output(self, w, x):
        z = naive.logits(w, x)
        return z if self.raw else naive.probabilities(z)

    def targets(self):
        return {j: naive.mean(list(rows.values())) for j, rows in self.reported.items()}

    def loss(self, w, batch, targets):
        ce = naive.mean([naive.cross_entropy(naive.logits(w, x), y) for x, y in batch])
        soft = []
        for x, y in batch:
            if y in targets or (self.own and targets):
                F = targets[y] if y in targets else self.output(w, x).detach()
                p = naive.probabilities(naive.logits(w, x))
                soft.append(-sum(F[k] * p[k].log() for k in range(K)))
        return ce + (GAMMA * naive.mean(soft) if soft else 0.0)

    def round(self, number):
        fresh: dict[int, dict[str, torch.Tensor]] = {}
        for c in self.data.clients:
            targets, w = self.targets(), self.nets[c.name]
            seen: dict[int, list[torch.Tensor]] = {}
            for batch in naive.rounds_of(c.train, c.name, number):
                if self.during:
                    for x, y in batch:
                        seen.setdefault(y, []).append(self.output(w, x))
                (w,), _ = naive.step([w], lambda parts, b=batch, t=targets: self.loss(parts[0], b, t))
            if not self.during:
                for x, y in zip(c.train.x.double(), c.train.y.tolist(), strict=True):
                    seen.setdefault(y, []).append(self.output(w, x))
            self.nets[c.name] = w
            for j, rows in seen.items():
                fresh.setdefault(j, {})[c.name] = naive.mean(rows)
        self.reported |= fresh


@few("options", [{}, {"method__preset": "htfl"}], 1, ids=["paper", "htfl"])
def test_three_rounds(options):
    data = uneven()
    federation = build("feddistill", data, rounds=3, method__gamma=GAMMA, **options)
    reference = Reference(federation, data, options)
    for number, _ in enumerate(federation.run(), start=1):
        reference.round(number)
        for c in data.clients:
            naive.same_nets(naive.own_net(federation, c.name), reference.nets[c.name])
            expected = reference.targets()
            received = visited(federation)[c.name].received
            assert received["present"].tolist() == [j in expected for j in range(K)]
            for j, row in expected.items():
                same(received["targets"][j], row)


@few("preset", ["paper", "htfl"], 1)
def test_classes_of_one_client_or_of_nobody_stay_finite(preset):
    """Class 3 is one client's alone, class 2 has one sample, class 1 nobody has at first."""
    data = federated(
        client("ann", [0] * 6, [0, 1, 2, 3]), client("bob", [0, 3, 3, 3], [3]), client("cid", [2], [2, 1])
    )
    federation = build("feddistill", data, rounds=8, method__preset=preset, method__gamma=1.0)
    for record in federation.run():
        assert not record.refused
        assert all(torch.isfinite(torch.tensor(v)) for v in record.losses.values())
    for name in federation.names:
        assert all(p.isfinite().all() for p in visited(federation)[name].model.parameters())
        assert visited(federation)[name].received["present"].tolist() == [True, False, True, True]


def test_a_class_nobody_reports_any_more_keeps_its_target():
    federation = build("feddistill", rounds=1)
    next(federation.run())
    before = federation.method.broadcast(federation.server, 2)["outputs"]
    rows = torch.full((1, K), 0.25, dtype=torch.float64)
    upload = Upload("ann", {"classes": torch.tensor([1]), "outputs": rows})
    state, _ = federation.method.aggregate(federation.server, iter([upload]), 2)
    after = federation.method.broadcast(state, 3)["outputs"]
    assert torch.equal(after[1], rows[0])
    assert torch.equal(after[[0, 2, 3]], before[[0, 2, 3]])


def test_widths_may_differ():
    list(build("feddistill", federated(client("ann", [0, 1, 2]), client("bob", [1, 3, 3], d=3))).run())
