"""Run directories as a run leaves them, without any training."""

import json
import math
from pathlib import Path

import numpy as np
import tomli_w
import torch
from safetensors.torch import save_file

RULES = {
    "local": ("head",),
    "fedavg": ("global_model", "head"),
    "gfpl": ("head", "etf"),
    "fixed_etf": ("head", "etf"),
}
PROTOTYPE_RULES = ("head", "local", "global", "global_own")
LEVEL = {"local": 0.58, "fedavg": 0.5, "fedproto": 0.62, "fedtgp": 0.66, "protonorm": 0.71, "tinyproto": 0.64}
RULE_SHIFT = {"head": -0.02, "global_model": -0.01, "local": 0.01, "global": 0.0, "global_own": 0.03, "etf": 0.02}
ARCHITECTURES = ("resnet8", "efficientnet_b0", "shufflenet_v2", "mobilenet_v2")


def make_run(
    directory: Path,
    method: str = "fedproto",
    *,
    seed: int = 0,
    rounds: int = 8,
    planned: int | None = None,
    clients: int = 4,
    classes: int = 3,
    finished: bool = True,
    every: int = 1,
    class_names: list[str] | None = None,
    recipe: str = "fake-images",
    validation: bool = False,
    on: str = "own",
    rule: str = "",
    metrics: bool = False,
) -> Path:
    """Write a run with plausible numbers; the last of several clients has no test samples."""
    rng = np.random.default_rng(seed * 1000 + sum(map(ord, method)))
    split = np.random.default_rng(seed)
    names = [f"client_{i:02d}" for i in range(clients)]
    train = (split.dirichlet([0.3] * clients, classes).T * 600).astype(int)
    test = train // 3
    test[-1] = 0 if clients > 1 else test[-1]
    from protofed.runs.rules import main_rule

    rules = RULES.get(method, PROTOTYPE_RULES)
    sends = method not in ("local", "fixed_etf")
    config = {
        "recipe": recipe,
        "seed": seed,
        "rounds": planned or rounds,
        "method": {"name": method, **({"lambda": 1.0} if sends else {})},
        "partition": {"name": "dirichlet", "alpha": 0.1, "clients": clients},
        "data": {"name": "cifar10", "samples": 0},
        "training": {"epochs": 1, "batch_size": 32, "lr": 0.01},
        **({"evaluation": {"on": on, "rule": rule}} if on != "own" or rule else {}),
        "execution": {"device": "cpu"},
    }
    directory.mkdir(parents=True)
    (directory / "config.toml").write_text(tomli_w.dumps(config))
    description = {
        "class_names": class_names or [f"class {j}" for j in range(classes)],
        "input_shape": [3, 32, 32],
        "clients": [
            {
                "name": name,
                "architecture": ARCHITECTURES[i % 4],
                "parameters": 120_000 + 830_000 * (i % 4),
                "d": 64,
                "train": train[i].tolist(),
                "test": test[i].tolist(),
            }
            for i, name in enumerate(names)
        ],
    }
    (directory / "federation.json").write_text(json.dumps(description))
    ease = split.normal(0, 0.08, clients)
    lines = [
        _round(t, rounds, every, method, rules, names, test.sum(1), ease, rng, sends, validation, classes, on)
        for t in range(1, rounds + 1)
    ]
    (directory / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if finished:
        _finish(directory, method, seed, lines, names, classes, rng, recipe, main_rule(rules, rule))
        if metrics:
            _measure(directory, dict(zip(names, test, strict=True)), rules[0], rounds)
    return directory


def _measure(directory, test, rule, rounds):
    """Write metrics of answers of which one in seven is wrong."""
    from protofed.runs.metrics import Metrics
    from protofed.trained.metrics import of_samples

    y = {name: np.repeat(np.arange(len(held)), held) for name, held in test.items()}
    y["all"] = np.concatenate(list(y.values()))
    K = len(next(iter(test.values())))
    scores = {name: 6.0 * np.eye(K)[(own + (np.arange(len(own)) % 7 == 0)) % K] for name, own in y.items()}
    found = {name: of_samples(y[name], each.argmax(1), each) for name, each in scores.items()}
    written = Metrics(rule, rounds, found.pop("all"), found).to_dict()
    (directory / "metrics.json").write_text(json.dumps(written))


def _round(t, rounds, every, method, rules, names, samples, ease, rng, sends, validation, classes, on):
    level = LEVEL.get(method, 0.6) * (1 - math.exp(-6 * t / max(rounds, 10))) + 0.12
    bytes_each = {"tinyproto": 9_000, "fedavg": 5_200_000}.get(method, 41_000) * len(names)
    record = {"round": t, "participants": names}

    def scored(shift, samples=samples):
        result = {}
        for rule in rules:
            values = np.clip(level + RULE_SHIFT[rule] + shift + ease + rng.normal(0, 0.02, len(names)), 0, 1)
            per = [float(v) if n else None for v, n in zip(values, samples, strict=True)]
            known = [v for v in per if v is not None]
            result[rule] = {
                "weighted": float(np.average(values, weights=samples)) if samples.sum() else 0.0,
                "client_mean": float(np.mean(known)) if known else 0.0,
                "client_std": float(np.std(known)) if known else 0.0,
                "clients": per,
            }
        return result

    if every and (t % every == 0 or t == rounds):
        record["accuracy"] = scored(0.0)
        if validation:
            record["validation"] = scored(0.01)
        if on != "own":
            record["union"] = scored(-0.3, np.full(len(names), samples.sum()))
            record["unseen"] = scored(-0.9)
    terms = {"cross_entropy": 2.2 * math.exp(-5 * t / max(rounds, 10)) + 0.2}
    if sends and method != "fedavg":
        terms["prototype"] = None if t == 2 else 0.6 * math.exp(-3 * t / max(rounds, 10))
    record["losses"] = terms | {"total": sum(v for v in terms.values() if v is not None)}
    record["bytes"] = {"up": bytes_each * sends, "down": int(bytes_each * 1.3) * (sends and t > 1)}
    record["parameters"] = {w: n // 4 for w, n in record["bytes"].items()}
    record["seconds"] = {"training": 1.9, "aggregation": 0.12, "evaluation": 0.4, "total": 2.45}
    record["refused"] = (
        [{"client": names[0], "field": "prototypes", "reason": "holds NaN in 2 of 7 rows"}]
        if t == 3 and sends
        else []
    )
    record["missing"] = [
        {"client": name, "phase": "training", "reason": "no answer within 60 s"}
        for name in (names[1:2] if t in (2, 4) and sends else [])
    ]
    record["diagnostics"] = {}
    if method == "protonorm":
        record["diagnostics"] = {
            "iterations": 120 + int(rng.integers(0, 30)),
            "alignment": {"energy": float(4 + math.exp(-t / 10)), "steps": [1, 2, 3]},
            "converged": True,
            "margin_min": None if t == 1 else float(0.9 - 0.3 * math.exp(-t / 20)),
            "alignment_iterations": 120 + int(rng.integers(0, 30)),
            "classes": float(classes),
        }
        if t == 1:
            record["diagnostics"]["alignment_distances"] = [
                [1.2 - 0.9 * math.exp(-i / 9), 1.5 - 0.6 * math.exp(-i / 4), 1.6 + 0.1 * math.exp(-i / 30)]
                for i in range(40)
            ]
    return record


def _finish(directory, method, seed, lines, names, classes, rng, recipe, rule):
    from protofed.runs.records import RoundRecord
    from protofed.runs.summary import Outcome

    records = [RoundRecord.from_dict(line, "a round") for line in lines]
    summary = {
        "protofed": "0.3.0",
        "recipe": recipe,
        "method": method,
        "seed": seed,
        "exchanges": "prototypes",
        "clients": len(names),
        "main_rule": rule,
        **Outcome.of(records).to_dict(),
        "peak_memory_bytes": 1_234_000_000,
        "environment": {"python": "3.11.9", "torch": "2.5.0", "device": "cpu", "processor": "x86_64", "threads": 2},
    }
    (directory / "summary.json").write_text(json.dumps(summary))
    tensors = {}
    if method in ("fedproto", "fedtgp", "protonorm", "tinyproto"):
        table = torch.tensor(rng.normal(0.2, 1.0, (classes, 64)), dtype=torch.float32)
        tensors = {"global.prototypes": table, "global.present": torch.ones(classes, dtype=torch.bool)}
        if classes > 2:
            tensors["global.present"][classes - 1] = False
    for name in names:
        tensors[f"local.{name}.prototypes"] = torch.tensor(rng.normal(size=(classes, 64)), dtype=torch.float32)
        tensors[f"local.{name}.present"] = torch.ones(classes, dtype=torch.bool)
    save_file(tensors, directory / "prototypes.safetensors")


def make_comparison(directory: Path, methods: list[str], seeds: list[int], **options) -> Path:
    """Write a comparison: one run per method and seed."""
    entries = [{"method": m, "seed": s, "directory": f"{m}-seed{s}"} for m in methods for s in seeds]
    for entry in entries:
        make_run(directory / entry["directory"], entry["method"], seed=entry["seed"], **options)
    content = {"recipe": "fake-images", "methods": methods, "seeds": seeds, "runs": entries}
    (directory / "comparison.json").write_text(json.dumps(content))
    return directory
