"""Small federations and experiments for tests."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from protofed.cli import main as cli
from protofed.config.schema import apply_overrides
from protofed.experiments import Experiment, resolve
from protofed.experiments.assemble import assemble
from protofed.methods.contract import Upload
from protofed.rounds.loop import Federation
from protofed.runs.records import RoundRecord
from protofed.samples import ClientData, FederatedData, Samples
from protofed.storage.snapshots import flatten

SMALL_RUN = {
    "data.samples": 200,
    "data.clients": 3,
    "partition.alpha": 0.5,
    "model.name": "mlp",
    "model.d": 8,
    "rounds": 2,
    "evaluation.every": 1,
    "execution.device": "cpu",
    "execution.executor": "sequential",
}
"""Options of quickstart for a run of about a second."""
EXACT = {
    "model__name": "identity",
    "model__options": {},
    "execution__precision": "fp64",
    "wire__codec": "float64",
    "robust__weight": 0.0,
    "rounds": 1,
}
"""Options of a closed form of the samples themselves, in float64, whose sums are not capped."""


def few(names: str | tuple[str, ...], cases: Iterable[Any], ordinary: int, **options: Any) -> pytest.MarkDecorator:
    """Parametrise a test by cases, of which those after the first few are run with ``-m slow`` only."""
    marked = []
    for number, case in enumerate(cases):
        if not hasattr(case, "marks"):  # no pytest.param
            case = pytest.param(*case) if isinstance(names, tuple) else pytest.param(case)
        marked.append(case._replace(marks=[*case.marks, *[pytest.mark.slow] * (number >= ordinary)]))
    return pytest.mark.parametrize(names, marked, **options)


def command(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, *arguments: object, main: Callable[[], None] = cli.main
) -> tuple[int, str, str]:
    """Run ``protofed`` as typed; return its status, and what it printed to stdout and stderr."""
    monkeypatch.setattr(sys, "argv", ["protofed", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


def assert_mistake(status: int, errors: str, says: str = "") -> None:
    """Check that a command ended as with a user's mistake: by one line that has a text in it."""
    assert status == 2, errors
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert says in errors


@contextmanager
def one_line(
    error: type[Exception] | tuple[type[Exception], ...], match: str | None = None, *, says: str = ""
) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """Expect an error of one line, with a match of a pattern or a text in it."""
    with pytest.raises(error, match=match) as caught:
        yield caught
    assert "\n" not in str(caught.value)
    assert says in str(caught.value)


def script(path: Path) -> ModuleType:
    """Return a script of ``tools`` as a module, without running its ``main``."""
    spec = importlib.util.spec_from_file_location(f"tools_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look their module up
    with mock.patch.object(sys, "path", [str(path.parent), *sys.path]):  # as when it is run
        spec.loader.exec_module(module)
    return module


K = 4
FEATURES = 6

BASE = {
    "rounds": 2,
    "model": {"name": "mlp", "d": 5, "options": {"hidden": [7]}},
    "encoder": {"name": "none"},
    "training": {"batch_size": 4, "lr": 0.1},
    "execution": {"device": "cpu"},
}


def experiment(method: str = "fedproto", **overrides: Any) -> Experiment:
    """Return a tiny experiment; double underscores in names stand for dots."""
    dotted = {name.replace("__", "."): value for name, value in overrides.items()}
    return resolve(apply_overrides(BASE, {"method.name": method, **dotted}))


def samples(labels: list[int], seed: int = 0) -> Samples:
    """Return separable points: class ``j`` lies around the ``j``-th axis."""
    y = torch.tensor(labels, dtype=torch.int64)
    noise = torch.randn(len(y), FEATURES, generator=torch.Generator().manual_seed(seed))
    return Samples(torch.nn.functional.one_hot(y, FEATURES).float() * 2 + 0.3 * noise, y)


def client(name: str, train: list[int], test: list[int] | None = None, **settings: Any) -> ClientData:
    """Return a client with samples of the given labels."""
    seed = sum(map(ord, name))
    return ClientData(
        name, samples(train, seed), samples(train if test is None else test, seed + 1), None, settings
    )


def held_out(owner: ClientData, labels: list[int]) -> ClientData:
    """Return a client with validation samples of the given labels."""
    return replace(owner, validation=samples(labels, sum(map(ord, owner.name)) + 2))


def federated(*clients: ClientData) -> FederatedData:
    """Return a federation of the given clients."""
    return FederatedData(tuple(clients), K, tuple("abcd"), (FEATURES,))


def ordinary() -> FederatedData:
    """Return three clients with different classes and sizes that are no multiples of the batch."""
    return federated(
        client("ann", [0, 0, 0, 1, 1, 1, 1, 2, 2]),
        client("bob", [1, 1, 2, 2, 2, 3, 3]),
        client("cid", [0, 3, 3, 3, 3, 0, 0, 0, 1, 1, 1]),
    )


def images(size: int = 8, train: tuple[int, ...] = (9, 14, 6)) -> FederatedData:
    """Return clients with colour images of noise, as bytes."""

    def made(n: int, seed: int) -> Samples:
        g = torch.Generator().manual_seed(seed)
        x = torch.randint(0, 256, (n, 3, size, size), generator=g, dtype=torch.uint8)
        return Samples(x, torch.randint(0, K, (n,), generator=g))

    clients = [ClientData(f"c{i}", made(n, i), made(5 + i, 10 + i)) for i, n in enumerate(train)]
    return FederatedData(tuple(clients), K, tuple("abcd"), (3, size, size))


def degenerate() -> FederatedData:
    """Return clients a method has to survive: one class, one sample, none, no test data."""
    return federated(
        client("all", [0, 1, 2, 3] * 3),
        client("one-class", [2, 2, 2, 2, 2]),
        client("one-sample", [1]),
        client("no-training", [], [0, 1]),
        client("no-test", [0, 1, 1], []),
        client("nothing", [], []),
    )


def write_vectors(root: Path) -> Path:
    """Write a folder of four clients; a process that reads it starts in half the time it takes with digits."""
    rng = np.random.default_rng(0)
    for client in range(4):
        folder = root / "clients" / f"c{client}"
        folder.mkdir(parents=True)
        for part, n in (("train", 60), ("test", 15)):
            y = np.arange(n) % (3 + client)
            np.savez(folder / f"{part}.npz", x=(np.eye(64)[y] + 0.3 * rng.normal(size=(n, 64))).astype("f4"), y=y)
    return root


class WithBatchNorm(torch.nn.Module):
    """A user's own model, as a recipe names it: ``support:WithBatchNorm``."""

    def __init__(self, num_classes: int = K) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(FEATURES, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())
        self.out = torch.nn.Linear(8, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.body(x))


class NoBias(WithBatchNorm):
    """A classifier whose last layer has no bias."""

    def __init__(self, num_classes: int = K) -> None:
        super().__init__(num_classes)
        self.out = torch.nn.Linear(8, num_classes, bias=False)


class Frozen(torch.nn.Module):
    """A frozen layer and a head."""

    def __init__(self, num_classes: int = K) -> None:
        super().__init__()
        self.frozen = torch.nn.Linear(FEATURES, 7).requires_grad_(False)
        self.out = torch.nn.Linear(7, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.frozen(x))


class AllFrozen(Frozen):
    """A classifier of which nothing is trained."""

    def __init__(self, num_classes: int = K) -> None:
        super().__init__(num_classes)
        self.out.requires_grad_(False)


class Images(torch.nn.Module):
    """Convolutions, both kinds of dropout, depthwise and pointwise layers."""

    def __init__(self, num_classes: int = K) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, 2, 1, bias=False),
            torch.nn.BatchNorm2d(8),
            torch.nn.ReLU(),
            torch.nn.Dropout2d(0.2),
            torch.nn.Conv2d(8, 8, 3, 2, 1, groups=8),
            torch.nn.Conv2d(8, 6, 1),
            torch.nn.Flatten(),
            torch.nn.Dropout(0.1),
        )
        self.out = torch.nn.Linear(24, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.body(x))


class DrawsItself(torch.nn.Module):
    """Dropout that torch's random state decides."""

    def __init__(self, num_classes: int = K) -> None:
        super().__init__()
        self.body = torch.nn.Linear(FEATURES, 8)
        self.out = torch.nn.Linear(8, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.nn.functional.dropout(self.body(x).relu(), 0.2, self.training))


class Branches(DrawsItself):
    """Control flow that depends on the data."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body(x)
        return self.out(x.relu() if x.sum() > 0 else x)


def visited(federation: Federation) -> dict[str, SimpleNamespace]:
    """Return, by name, each client's data and plan with a copy of its model, its state and what it received."""
    clients = federation.executor.clients
    return {
        name: SimpleNamespace(
            name=name,
            train=member.train,
            test=member.test,
            plan=member.plan,
            model=clients.model(name),
            state=clients.snapshot(name).state,
            received=clients.snapshot(name).received,
        )
        for name, member in clients.items()
    }


def build(method: str, data: FederatedData | None = None, **overrides: Any) -> Federation:
    """Return the federation of a tiny experiment, of three ordinary clients unless there are other data."""
    return assemble(experiment(method, **overrides), data or ordinary())[0]


def stage(federation: Federation, kind: type) -> Any:
    """Return a federation's stage of some kind; None if it has none."""
    return next((stage for stage in federation.stages if isinstance(stage, kind)), None)


def uploads(federation: Federation, round_number: int = 1) -> list[Upload]:
    """Train in ``round``; return every client's decoded upload."""
    messages = federation.open(federation.names, round_number).messages
    schema = federation.method.upload_schema
    return [
        Upload(r.client, federation.codec.decode(r.message, schema))
        for r in federation.executor.train(federation.names, messages, round_number)
    ]


def told(records: Iterable[RoundRecord]) -> list[dict[str, Any]]:
    """Return what the records of equal runs have in common: all but the times."""
    return [{name: value for name, value in r.to_dict().items() if name != "seconds"} for r in records]


def tensors_of(federation: Federation) -> dict[str, torch.Tensor]:
    """Return copies of all that a server and its clients keep."""
    tensors = {f"server.{n}": t.clone() for n, t in federation.server.items()}
    for name in federation.names:
        kept = flatten(federation.executor.clients.snapshot(name))
        tensors |= {f"{name}.{n}": t.clone() for n, t in kept.items()}
    return tensors


def outcome(federation: Federation) -> tuple[Federation, list[dict[str, Any]], dict[str, torch.Tensor]]:
    """Run a federation to its end; return it with its records without times, and what is kept then."""
    with closing(federation.executor):
        return federation, told(federation.run()), tensors_of(federation)


def same(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> bool:
    """Return whether tensors are equal by name, bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def assert_close(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    """Check that tensors differ by rounding at most."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-6, atol=1e-8, msg=lambda m, n=name: f"{n}: {m}")


def assert_alike(expected: tuple, found: tuple, *, exact: bool) -> None:
    """Check that two outcomes are the same, or have the same accuracy and the rest up to rounding."""
    (_, records, tensors), (_, others, theirs) = expected, found
    if exact:
        assert others == records
        assert [name for name in tensors | theirs if not torch.equal(tensors[name], theirs[name])] == []
        return
    for a, b in zip(records, others, strict=True):
        for name in ("accuracy", "bytes", "parameters", "participants", "refused"):
            assert b[name] == a[name], name
        assert b["losses"] == pytest.approx(a["losses"], rel=1e-6, abs=1e-9)
    assert_close(theirs, tensors)
