"""The card of an exported model from a run's records, in Markdown with Hugging Face's metadata."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from protofed.errors import printable
from protofed.methods import methods
from protofed.runs.description import ClientDescription
from protofed.runs.run import Run
from protofed.text import few, number, percent, size
from protofed.trained.opening import TrainedClient

SUFFIX = ".model-card.md"
LONGEST = 300  #: Characters of a text by others
MOST = 100  #: Clients, classes or notes that are listed one by one
FEW = 30  #: Fewer test samples than this say little
FILL_IN = "*To be filled in by whoever publishes the model.*"
ACTIVE = re.compile(r"[\\`*_{}\[\]<>|&#~!$@^]|:(?=//)|(?<=www)\.", re.IGNORECASE)
"""Characters that may begin markup, a link or a mention within a line."""


def plain(text: object) -> str:
    r"""Return a text that Markdown shows as it is, in one line.

    Example:
        >>> print(plain("a|b <i>_c_\n"))
        a\|b \<i\>\_c\_\\n
    """
    shown = printable(str(text))
    cut = shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "…"
    return ACTIVE.sub(r"\\\g<0>", cut)


def model_card(run: Run, trained: TrainedClient, file: str, facts: Mapping[str, str], checked: str) -> str:
    """Return the card of an exported model."""
    client = run.clients[run.names.index(trained.name)]
    made = []
    if run.summary:
        made = [f"- Trained by protofed {plain(run.summary.protofed)}: {_options(run.summary.environment)}."]
    parts = {
        "Use": _use(file, facts, checked),
        "Training": _training(run, client),
        "Accuracy": _accuracy(run, client, facts["rule"]),
        "Data": _data(run),
        "Messages": _messages(run),
        "Privacy": _privacy(run),
        "Limits": _limits(run, trained, client, facts["rule"]),
        "Software": [f"- Exported by {plain(facts['producer'])}.", *made],
    }
    head = f"---\n{_metadata(run, trained, client, facts['rule'])}---\n\n"
    body = (f"\n## {title}\n\n" + "".join(f"{line}\n" for line in lines) for title, lines in parts.items())
    return f"{head}# {plain(trained.name)} by {plain(run.method)}\n{''.join(body)}"


def _metadata(run: Run, trained: TrainedClient, client: ClientDescription, rule: str) -> str:
    """Return the YAML of the head."""
    from huggingface_hub import EvalResult, ModelCardData

    images = trained.table is None and len(trained.classifier.input_shape) == 3
    task = "image-classification" if images else "tabular-classification" if trained.table else None
    own = _own(run, client, rule)
    result = EvalResult(
        task_type=task or "other",
        dataset_type=printable(_source(run)),
        dataset_name=printable(f"test samples of {trained.name}"),
        metric_type="accuracy",
        metric_name=f"accuracy by the rule {printable(rule)}",
        metric_value=own,
    )
    card = ModelCardData(
        library_name="protofed",
        tags=["federated-learning", printable(run.method)],
        pipeline_tag=task,
        model_name=None if own is None else printable(trained.name),
        eval_results=None if own is None else [result],
    )
    return f"{card.to_yaml()}\n"


def _use(file: str, facts: Mapping[str, str], checked: str) -> Iterable[str]:
    shape = " × ".join(map(str, json.loads(facts["input_shape"])))
    yield f"- Intended use: {FILL_IN}"
    yield f"- Uses that are out of scope: {FILL_IN}"
    yield f"- Licence of the model: {FILL_IN}"
    yield f"- File: {plain(file)}; its metadata hold the class names and the preprocessing."
    yield f"- Input: n × {shape}, {plain(facts['input_type'])}. Output: {', '.join(json.loads(facts['outputs']))}."
    yield f"- Rule: {plain(facts['rule'])}. The file is {plain(checked)}."
    yield f"- Classes: {few([plain(n) for n in json.loads(facts['class_names'])], MOST)}."


def _training(run: Run, client: ClientDescription) -> Iterable[str]:
    known = methods()
    about = known.get(run.method) if run.method in known else None
    yield f"- Method: {plain(run.method)}" + (
        f": {plain(about.summary)} ({plain(about.reference)})." if about else "."
    )
    yield f"- Model: {plain(client.architecture)}, {number(client.parameters)} parameters, {client.d} features."
    early = f" of {run.planned_rounds}, stopped early" if run.last_round < run.planned_rounds else ""
    yield f"- Rounds: {run.last_round}{early}; clients: {len(run.clients)}; seed: {run.seed}."
    steps = {name: run.config.get("training", {}).get(name) for name in ("optimizer", "lr", "epochs", "batch_size")}
    yield f"- Local steps: {_options(steps)}."
    if (kind := run.config.get("attack", {}).get("kind", "none")) != "none":
        yield f"- The run simulated an attack, {plain(kind)}: the model is no product."


def _accuracy(run: Run, client: ClientDescription, rule: str) -> Iterable[str]:
    if not run.evaluations:
        yield "The run was not evaluated."
        return
    yield f"On test samples after round {run.last_evaluation}, of one run with one seed."
    yield ""
    yield "| rule | class given | this client | all clients' samples | mean of clients |"
    yield "|---|---|---|---|---|"
    for name, outcome in run.outcome.accuracy.items():
        known = run.rule(name)
        mark = " (this file)" if name == rule else ""
        cells = (percent(_own(run, client, name)), percent(outcome.final), percent(outcome.client_mean))
        yield f"| {plain(known.title)}{mark} | {plain(known.text)} | {' | '.join(cells)} |"


def _data(run: Run) -> Iterable[str]:
    partition, data = dict(run.config.get("partition", {})), run.config.get("data", {})
    name, options = partition.pop("name", "unknown"), data.get("options", {})
    split = f"simulated, split by {plain(name)} ({_options(partition)})"
    place = Path(data.get("path", ""))
    if data.get("source") == "path" and (options.get("sites") or (place / "clients").is_dir()):
        split = "the sites of a folder, each with its own file or folder, in one process"
    elif name == "natural":
        column = options.get("id_column", "")
        split = (
            "as the data name them" + (f", in the column {plain(column)}" if column else "") + ", in one process"
        )
    yield f"- Source: {plain(_source(run))}. Licence, consent and origin: {FILL_IN}"
    yield f"- Clients: {'nodes of a network, each with its own data' if run.federation.network else split}."
    yield f"- Classes: {len(run.class_names)}. Personal or sensitive attributes: {FILL_IN}"
    yield ""
    yield "| client | training samples | test samples | classes it trains on |"
    yield "|---|---|---|---|"
    for client in run.clients[:MOST]:
        held = number(sum(map(bool, client.train))) if client.counts != "even" else "not disclosed"
        counts = (_format_count(client, client.train), _format_count(client, client.test), held)
        yield f"| {plain(client.name)} | {' | '.join(counts)} |"
    if len(run.clients) > MOST:
        yield f"| {len(run.clients) - MOST} more |  |  |  |"


def _format_count(client: ClientDescription, counts: list[int]) -> str:
    """Return a client's number of samples as far as it was disclosed."""
    total = number(sum(counts))
    return {"coarse": f"at most {total}", "none": "not disclosed"}.get(client.counts, total)


def _messages(run: Run) -> Iterable[str]:
    traffic = run.outcome.communication
    if not traffic.sent:
        yield "Nothing was sent: every client trained alone."
        return
    up, down = (size(traffic.bytes_total[way]) for way in ("up", "down"))
    yield f"- Exchanged: {plain(run.federation.exchanges or 'unknown')}."
    yield f"- By all clients in all rounds: {up} to the server, {down} back."
    yield f"- Encoding: {_options(run.config.get('wire', {}))}."
    if refused := run.outcome.refused:
        yield f"- Uploads refused: {number(refused)}."


def _privacy(run: Run) -> Iterable[str]:
    secure = run.config.get("secure", {}).get("aggregation") is True
    if run.outcome.communication.sent:
        yield f"- Secure aggregation: {'on, the server saw sums' if secure else 'off, the server saw each upload'}."
    spent = run.summary.privacy if run.summary else None
    if spent is None:
        yield "- Differential privacy: none. No bound holds for what messages or the model reveal of samples."
        return
    epsilon = f"{spent.epsilon:.3g}" if spent.noise else "∞"
    yield (
        f"- Differential privacy: ε = {epsilon} at δ = {spent.delta:g} hides the presence of one {spent.mode} "
        f"({spent.adjacency} neighbours); noise multiplier {spent.noise:.3g}, accountant {spent.accountant}."
    )


def _limits(run: Run, trained: TrainedClient, client: ClientDescription, rule: str) -> Iterable[str]:
    yield "- Test samples come from the clients that trained; other populations and later times are not measured."
    yield "- Probabilities are not calibrated. One seed gives no interval."
    if client.counts in ("exact", "even") and sum(client.test) < FEW:
        yield f"- This client has only {sum(client.test)} test samples."
    if caution := trained.caution(rule):
        yield f"- {plain(caution)}."
    for name, reason in list(run.federation.left_out.items())[:MOST]:
        yield f"- Left out: {plain(name)} ({plain(reason)})."
    for note in run.notes[:MOST]:
        yield f"- {plain(note)}"


def _own(run: Run, client: ClientDescription, rule: str) -> float | None:
    """Return the client's own last accuracy; None if it is not known."""
    return run.client_accuracies(rule)[run.names.index(client.name)] if rule in run.rules else None


def _source(run: Run) -> str:
    return str(run.config.get("data", {}).get("source") or run.recipe or "unknown")


def _options(values: Mapping[str, Any]) -> str:
    known = [(k, v) for k, v in values.items() if v is not None and not isinstance(v, (dict, list))]
    return ", ".join(f"{plain(name)} {plain(value)}" for name, value in known[:MOST]) or "unknown"
