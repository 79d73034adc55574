"""An audit of one run: all attacks, and what stood in their way."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from protofed.config.architectures import traits_of
from protofed.engine import Experiment, Run, load_run
from protofed_lab.audit import attacks
from protofed_lab.audit.findings import Audit, Finding, Reconstruction
from protofed_lab.audit.imprint import read_verbatim
from protofed_lab.audit.membership import membership
from protofed_lab.audit.pictures import reconstruct
from protofed_lab.audit.seen import Seen, observe, reopened, shadow
from protofed_lab.audit.sums import sums


def audit_run(directory: Path, trust_code: bool = False) -> Audit:
    """Attack a finished run with what its parties saw; ``trust_code`` imports code that its configuration names."""
    run = load_run(Path(directory))
    experiment, seen, other, verbatim = compared(run, trust_code)
    last = next((r.privacy for r in reversed(run.rounds) if r.privacy), None)
    spent = last if last and last.noise else None
    findings, pictures = attack(seen, other, tuple(run.class_names), experiment.seed)
    return Audit(
        run.method,
        seen.round,
        len(seen.senders),
        sent(seen),
        protections(experiment, noisy=spent is not None),
        spent,
        (*findings, *verbatim),
        tuple(pictures),
    )


def compared(run: Run, trust_code: bool = False) -> tuple[Experiment, Seen, Seen, list[Finding]]:
    """Return a run's experiment, one more round as its server sees it, and the same of a shadow federation.

    The findings are those of a server that does more than look on.
    """
    experiment, federation, federated = reopened(run, trust_code)
    with closing(federation.executor):
        seen = observe(federation, federated)
        if not seen.senders:
            return experiment, seen, seen, []
        verbatim = [read_verbatim(federation, federated, seen.round, free=free) for free in (True, False)]
    federation, federated = shadow(experiment, federated)
    with closing(federation.executor):
        return experiment, seen, observe(federation, federated), verbatim


def attack(
    seen: Seen, shadow: Seen, class_names: tuple[str, ...], seed: int
) -> tuple[list[Finding], list[Reconstruction]]:
    """Return the findings of all attacks, and the pictures; neither where nothing is sent."""
    if not seen.senders:
        return [], []
    made, pictures = reconstruct(seen, shadow, class_names, seed)
    findings = [
        attacks.classes(seen, shadow),
        *attacks.counts(seen, shadow),
        *membership(seen, shadow),
        *made,
        *attacks.participation(seen, shadow, seed),
        *sums(seen),
    ]
    if seen.outside is not None and shadow.outside is not None:
        found = [attacks.classes(seen.outside, shadow.outside), *attacks.counts(seen.outside, shadow.outside)]
        found += [f for f in membership(seen.outside, shadow.outside) if f.observer == attacks.SERVER]
        findings += [replace(f, observer=attacks.OUTSIDER, key=f"{f.key}_outside") for f in found]
    return findings, pictures


def sent(seen: Seen) -> str:
    """Describe the content of an upload."""
    schema = seen.method.upload_schema
    if schema is None or not seen.senders:
        return "nothing"
    tensors = [n for n, f in schema.fields.items() if f.kind == "real"]
    numbers = [n for n, f in schema.fields.items() if f.kind != "real"]
    return ", ".join([*(tensors if len(tensors) <= 4 else [f"{len(tensors)} tensors of weights"]), *numbers])


def protections(experiment: Experiment, *, noisy: bool) -> tuple[str, ...]:
    """Describe the protections between clients and observers, in sentences."""
    sentences = []
    if experiment.wire.codec not in ("float32", "float64"):
        sentences.append(f"Messages are rounded to {experiment.wire.codec} (wire.codec).")
    if getattr(experiment.method_options, "scaling", False):
        sentences.append("Prototypes are multiplied by sample counts that are not sent (method.scaling).")
    if experiment.secure.aggregation:
        sentences.append("The server sees the sum of all uploads only (secure.aggregation).")
    if experiment.privacy.mode == "client" and noisy:
        sentences.append(
            "Clients shorten their contributions and add the noise themselves: the server sees neither without "
            "(privacy.mode with secure.aggregation)."
            if experiment.secure.aggregation
            else "The server adds the noise, and sees single uploads before (privacy.mode)."
        )
    if experiment.privacy.mode == "sample" and noisy:
        what = "add noise to their sums" if traits_of(experiment).protection.dp_statistics else "train with noise"
        sentences.append(f"Clients {what}, which the server cannot take away (privacy.mode).")
    return tuple(sentences)
