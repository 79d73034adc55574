"""The attacks: what a server can work out from the uploads of one round.

Each attack is fitted on a shadow federation, of which the attacker knows the truth, and judged on the run.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Sequence

import torch
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from protofed.compute.seeding import generator
from protofed.engine import Samples
from protofed.methods import Method, Tensors, Upload
from protofed.models import SplitModel
from protofed_lab.audit.findings import Finding
from protofed_lab.audit.measures import Logistic, auc, auc_error
from protofed_lab.audit.seen import Seen, Sender, told

SERVER = "The server"
INFORMED = "A server that knows the sender's model"
MEMBER = "Any client, from the next broadcast"
OUTSIDER = "Whoever is given the server's state"
HALVES = 12  #: Halves of the clients whose aggregates are compared


# The network in an upload.


def network(sender: Sender, stranger: SplitModel) -> tuple[SplitModel, bool]:
    """Return the network that an attacker looks through: a stranger's, with the weights that the upload brings.

    Returns:
        And whether all its weights are the sender's.
    """
    candidates = [m for m in stranger.extras.values() if isinstance(m, SplitModel)] + [stranger]

    def fitting(model: SplitModel) -> Tensors:
        own = model.state_dict()
        return {n: t for n, t in sender.weights.items() if n in own and own[n].shape == t.shape}

    chosen = max(candidates, key=lambda model: len(fitting(model)))
    if not (found := fitting(chosen)):
        return stranger, False
    chosen = copy.deepcopy(chosen)
    chosen.load_state_dict(found, strict=False)
    lacking = {n for n, _ in chosen.named_parameters() if not n.startswith("extras.")} - found.keys()
    return chosen.eval().requires_grad_(False), not lacking


def strangers(seen: Seen, shadow: Seen) -> dict[str, SplitModel]:
    """Return for each client a model of its architecture that it has not trained.

    It is that of the shadow federation's client, other than the namesake, whose classes are most like its own.
    """
    K, result = seen.num_classes, {}
    for sender in seen.senders:
        alike = [s for s in shadow.senders if s.kind == sender.kind and s.name != sender.name] or [
            s for s in shadow.senders if s.kind == sender.kind
        ]
        if alike:
            own = sender.train.counts(K).double()
            near = torch.stack([torch.cosine_similarity(own, s.train.counts(K).double(), 0) for s in alike])
            result[sender.name] = alike[int(near.argmax())].model
    return result


def public(shadow: Seen, but: str, most: int = 2**62) -> Samples:
    """Return training samples of all shadow clients but one, at most ``most`` at equal distances."""
    parts = [s.train for s in shadow.senders if s.name != but] or [s.train for s in shadow.senders]
    x, y = torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts])
    step = -(-len(y) // most)
    return Samples(x[::step], y[::step])


# Who holds which class, and how much of it.


def evidence(sender: Sender, num_classes: int) -> tuple[Tensor, bool]:
    """Return ``(K, p)`` figures of an upload that grow with the number of samples of a class.

    They are the logarithms of the lengths of its vectors (0 without one), of the numbers of samples that it states,
    and the change of each class's row of a head.

    Returns:
        And whether the upload names its classes.
    """
    columns: list[Tensor] = []
    named = False
    for rows in sender.rows:
        present = torch.zeros(num_classes, dtype=torch.float64)
        length = present.clone()
        sent = rows.values.abs().sum(1) > 0
        present[rows.classes[sent]] = 1.0
        length.index_put_((rows.classes[sent],), rows.values[sent].double().norm(dim=1))
        columns += [present, torch.log1p(length)]
        named = named or len(rows.classes) < num_classes or not bool(sent.all())
    each, total = sender.counts
    if each is not None:
        columns += [torch.log1p(each.double())]
        named = True
    for name in ("head.weight", "head.bias"):
        if name in sender.weights and name in sender.opening and len(sender.weights[name]) == num_classes:
            change = (sender.weights[name] - sender.opening[name]).double().reshape(num_classes, -1).sum(1)
            columns += [change, torch.sign(change) * torch.log1p(change.abs() * 1e3)]
    if columns and total is not None:
        columns.append(torch.full((num_classes,), math.log1p(total), dtype=torch.float64))
    return torch.stack(columns, 1) if columns else torch.zeros(num_classes, 0, dtype=torch.float64), named


def classes(seen: Seen, shadow: Seen) -> Finding:
    """Work out which classes each client holds."""
    attack, key, K = "Which classes does a client hold?", "classes", seen.num_classes
    x, held, x_there, held_there = _evidence(seen, shadow)
    share = float(held.double().mean())
    guess = max(share, 1 - share)
    if not x.shape[1]:
        return Finding(attack, SERVER, "share of pairs right", guess, guess, note="nothing to go by", key=key)
    if bool(held.all()) or not bool(held.any()):
        return Finding(attack, SERVER, "share of pairs right", None, guess, note="all hold the same", key=key)
    fitted = Logistic(x_there, held_there)
    scores, limit = fitted(x), 0.0
    right = float(((scores > limit) == held).double().mean())
    value = auc(scores[held], scores[~held])
    note = f"AUC {value:.2f} over {len(seen.senders)} clients × {K} classes"
    error = math.sqrt(max(guess * (1 - guess), 1e-4) / len(x))
    return Finding(attack, SERVER, "share of pairs right", right, guess, error, note, key)


def _evidence(seen: Seen, shadow: Seen) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return figures and truth of both federations, one row per client and class."""
    result = []
    for one in (seen, shadow):
        result.append(torch.cat([evidence(s, one.num_classes)[0] for s in one.senders]))
        result.append(torch.cat([s.train.counts(one.num_classes) > 0 for s in one.senders]))
    return result[0], result[1], result[2], result[3]


def counts(seen: Seen, shadow: Seen) -> list[Finding]:
    """Estimate the numbers of samples ``n_ij`` of the classes that a client holds, and ``n_i``."""
    K, measure = seen.num_classes, "error (median of |n̂/n − 1|)"
    x, held, x_there, held_there = _evidence(seen, shadow)
    n, n_there = (torch.cat([s.train.counts(K) for s in one.senders]).double() for one in (seen, shadow))
    n, n_there = n[held], n_there[held_there]
    guess = float((n_there.median() / n - 1).abs().median())
    attack, key = "How many samples of a class?", "counts"
    if not x.shape[1]:
        return [Finding(attack, SERVER, measure, guess, guess, note="nothing to go by", key=key)]
    if all(s.counts[0] is not None for s in seen.senders):
        stated = torch.cat([s.counts[0] for s in seen.senders if s.counts[0] is not None]).double()[held]
        off, note = float((stated / n - 1).abs().median()), "the upload states them"
    else:
        ridge = make_pipeline(StandardScaler(), Ridge(alpha=1e-3 * len(n_there)))
        ridge.fit(x_there[held_there].numpy(), n_there.log().numpy())
        estimate = torch.from_numpy(ridge.predict(x[held].numpy())).exp()
        off, note = float((estimate / n - 1).abs().median()), f"rank correlation {_ranks(estimate, n):.2f}"
    result = [Finding(attack, SERVER, measure, off, guess, None, note, key)]
    totals = [(s.counts[1], len(s.train)) for s in seen.senders]
    if all(stated is not None for stated, _ in totals):
        usual = statistics.median(len(s.train) for s in shadow.senders)
        off = statistics.median(abs((stated or 0) / n - 1) for stated, n in totals)
        guess = statistics.median(abs(usual / n - 1) for _, n in totals)
        note = "the upload states it"
        result.append(Finding("How many samples in all?", SERVER, measure, off, guess, None, note, "total"))
    return result


def _ranks(a: Tensor, b: Tensor) -> float:
    """Return Spearman's rank correlation; 0 where one of them is constant."""
    if len(a) < 2:
        return 0.0
    pair = torch.stack([t.argsort().argsort().double() for t in (a, b)])
    found = float(torch.corrcoef(pair)[0, 1])
    return 0.0 if math.isnan(found) else found


# Who took part.


def participation(seen: Seen, shadow: Seen, seed: int, halves: int = HALVES) -> list[Finding]:
    """Tell from the server's broadcast whether a client took part in the round.

    Random halves of the clients are aggregated. For each client, the attacker compares what the broadcast has in
    excess of the usual one with what the upload of the client's namesake has in excess of the usual upload.
    """
    attack, key = "Did a client take part?", "participation"
    names = f"every upload arrives under its sender's name; {len(seen.senders)} clients"
    result = [Finding(attack, SERVER, "AUC", 1.0, 0.5, 0.0, names, key)]
    known = {s.name: s.upload for s in shadow.senders}
    able = [s.upload for s in seen.senders if s.name in known]
    if seen.method.broadcast_schema is None or seen.method.declared.personal or len(able) < 4:
        return result
    random = generator(seed, "audit", "halves")
    chosen = [torch.randperm(len(able), generator=random) < len(able) // 2 for _ in range(halves)]
    halved = [[u for u, c in zip(able, half, strict=True) if c] for half in chosen]
    broadcasts = [_broadcast(seen, half, draw) for draw, half in enumerate(halved, start=1)]
    # What a broadcast would be if one client alone took part, on either side of the comparison.
    broadcasts += [_broadcast(shadow, [known[u.client]], None) for u in able]
    width = max(map(len, broadcasts))
    if {len(b) for b in broadcasts} - {0, width}:
        return result
    # Before the first class is known, nothing is sent.
    every = torch.stack([b if len(b) else torch.zeros(width, dtype=torch.float64) for b in broadcasts])
    sent, alone = every[:halves], every[halves:]
    excess, mark = sent - sent.mean(0), alone - alone.mean(0)
    scores = torch.nn.functional.normalize(excess, dim=1) @ torch.nn.functional.normalize(mark, dim=1).mT
    took = torch.stack(chosen)
    value = auc(scores[took], scores[~took])
    error = auc_error(value, int(took.sum()), int((~took).sum()))
    note = f"{halves} random halves of the clients"
    return [*result, Finding(attack, MEMBER, "AUC", value, 0.5, error, note, f"{key}_member")]


def _broadcast(seen: Seen, uploads: Sequence[Upload], draw: int | None) -> Tensor:
    """Return the broadcast that follows from some uploads, as one vector, with noise of a number or without."""
    method: Method = seen.method
    server = {n: t.clone() for n, t in seen.server.items()}
    given = told(seen.federation, uploads, seen.round, draw)
    state = method.aggregate(server, iter(given), seen.round).state
    payload = method.broadcast(state, seen.round + 1) or {}
    schema = method.broadcast_schema
    assert schema is not None
    parts = []
    for name, field in schema.fields.items():
        if field.kind != "real" or name not in payload:
            continue
        tensor = payload[name].double()
        if "classes" in payload and len(tensor) == len(payload["classes"]):  # rows of the classes known so far
            dense = tensor.new_zeros(seen.num_classes, *tensor.shape[1:])
            tensor = dense.index_put((payload["classes"],), tensor)
        parts.append(tensor.flatten())
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)
