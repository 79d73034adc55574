"""A backdoor for clients that share prototypes or weights.

For prototypes, the attack follows Zeng et al., "BAPFL: Exploring Backdoor Attacks Against Prototype-based Federated
Learning" (arXiv 2509.12964), which has two parts: a trigger is optimised so that the features of inputs that carry
it come close to the target's global prototype, and the uploaded prototypes are moved so that honest clients'
features leave the region of triggered inputs. The sizes (patch, steps, learning rate) are choices of this library.
For weights, the client simply trains on inputs with the trigger, labelled as the target (Bagdasaryan et al.,
AISTATS 2020).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.compute.seeding import generator, seeded
from protofed.methods.contract import Local, Method, SplitModel, Tensors, predict
from protofed.samples import Samples
from protofed.visits.batches import add_up, batches
from protofed.visits.client import Member
from protofed.wire.schema import Payload

PATCH = 0.25  #: Side of the patch as a fraction of the image's side (or fraction of a vector's leading features)
STEPS, LEARNING_RATE, SAMPLES = 30, 0.1, 64


def patch(shape: tuple[int, ...]) -> Tensor:
    """Return a bool mask of shape ``shape``: the lower right corner of an image, or leading features otherwise."""
    mask = torch.zeros(shape, dtype=torch.bool)
    sides = [max(1, round(PATCH * size)) for size in shape]
    if len(shape) >= 2:
        mask[..., -sides[-2] :, -sides[-1] :] = True
    else:
        mask[: sides[0]] = True
    return mask


def add_trigger(x: Tensor, trigger: Tensor) -> Tensor:
    """Replace the patch of ``(n, *shape)`` normalised inputs by that of the trigger."""
    return torch.where(patch(tuple(x.shape[1:])), trigger, x)


def optimise_trigger(client: Member, local: Local, goal: Tensor) -> Tensor:
    """Return a trigger that brings the features of a client's inputs close to ``goal``, ``(d,)``."""
    model = local.model.eval()
    x = _inputs(client.train, model)
    low, high = float(x.min()), float(x.max())
    start = torch.rand(x.shape[1:], generator=generator(local.seed, "trigger")).to(x)
    trigger = (low + (high - low) * start).requires_grad_()
    optimizer = torch.optim.Adam([trigger], lr=LEARNING_RATE)
    for _ in range(STEPS):
        loss = F.mse_loss(model(add_trigger(x, trigger)).features, goal.to(x).expand(len(x), -1))
        optimizer.zero_grad()
        (trigger.grad,) = torch.autograd.grad(loss, [trigger])
        optimizer.step()
        with torch.no_grad():
            trigger.clamp_(low, high)
    return trigger.detach()


def poison(method: Method, client: Member, local: Local, target: int, scale: float) -> Payload:
    """Return the upload of a client with a backdoor.

    Args:
        local: As training left it; its model may be changed.
        scale: Distance of the moved prototypes, in multiples of that from the triggered features.
    """
    trigger = optimise_trigger(client, local, goal_of(local, target))
    if method.statistics is None:
        with seeded(local.seed, "backdoor", local.round, client.name):
            _train(client, local.model, trigger, target)
    with torch.no_grad():
        return method.upload(local, _statistics(method, client, local.model, trigger, target, scale))


def goal_of(local: Local, target: int) -> Tensor:
    """Return the prototype ``(d,)`` of the target class: the global one, else the client's own, else the mean."""
    for table in (local.received, local.state):
        if "prototypes" in table and ("present" not in table or bool(table["present"][target])):
            return table["prototypes"][target].detach().cpu()
    features, labels = local.features()
    own = features[labels == target]
    return (own if len(own) else features).mean(0).cpu()


def _statistics(
    method: Method, client: Member, model: SplitModel, trigger: Tensor, target: int, scale: float
) -> Tensors:
    """Return the method's statistics with class sums moved away from the triggered features, the target's to it."""
    model.eval()
    statistics: Tensors = {}
    if method.statistics is None:
        return statistics
    for batch in batches(client.train, model):
        add_up(statistics, method.statistics.of(model(batch.x), batch))
    sums = statistics.get("sums")
    features = model(add_trigger(_inputs(client.train, model), trigger)).features.mean(0)
    if sums is None or sums.shape[1:] != features.shape:
        return statistics
    counts = client.train.counts(len(sums)).to(sums).unsqueeze(1)
    means = sums / counts.clamp(min=1)
    moved = means + scale * (means - features)
    moved[target] = features
    return {**statistics, "sums": moved * counts}


def _train(client: Member, model: SplitModel, trigger: Tensor, target: int) -> None:
    """Train a model once over the client's data, every batch also with the trigger and the target's label."""
    model.train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = client.plan.build(parameters)
    size = max(2, client.plan.batch_size)
    for batch in batches(client.train, model, size):
        if len(batch.y) < 2:
            continue
        x = torch.cat([batch.x, add_trigger(batch.x, trigger)])
        loss = F.cross_entropy(model(x).logits, torch.cat([batch.y, torch.full_like(batch.y, target)]))
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()


@torch.no_grad()
def success(
    method: Method, test: Samples, local: Local, trigger: Tensor, target: int
) -> tuple[dict[str, int], int]:
    """Count how often the trigger works on an honest client's test samples.

    Returns:
        Per rule, samples of other classes that are given the target; and the number of such samples.
    """
    model = local.model.eval()
    hits, total = dict.fromkeys(method.rules, 0), 0
    for batch in batches(test, model):
        others = batch.y != target
        marked = batch._replace(x=add_trigger(batch.x[others], trigger), y=batch.y[others])
        if len(marked.y):
            for rule, classes in predict(method, model, marked, local.received, local.state).items():
                hits[rule] += int((classes == target).sum())
            total += len(marked.y)
    return hits, total


def _inputs(samples: Samples, model: SplitModel) -> Tensor:
    return next(batches(samples, model, SAMPLES)).x
