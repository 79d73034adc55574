"""The page about an audit, and its figures as JSON."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from protofed.analysis.report.page import environment
from protofed.analysis.table import TextCell, TextTable
from protofed.storage.files import write_text
from protofed_lab.audit.findings import Audit, Finding

WORDS = {True: "yes", False: "no", None: "–"}


def write_audit(audit: Audit, out: Path) -> Path:
    """Write one page about an audit, and ``audit.json`` beside it."""
    write_text(out.with_suffix(".json"), json.dumps(audit.to_dict(), indent=1, allow_nan=False) + "\n")
    template = environment("protofed_lab.audit").get_template("audit.html")
    pictures = [
        (p, [picture(t) for t in (p.found, p.nearest, p.guess)]) for p in audit.pictures if p.found.dim() == 3
    ]
    texts = {"findings": table(audit), "summary": summary(audit), "guarantee": guarantee(audit)}
    write_text(out, template.render(audit=audit, pictures=pictures, **texts))
    return out


def forget(run: Path, gone: Mapping[str, str]) -> None:
    """Remove what an audit found in a run of which clients were forgotten."""
    for name in ("audit.html", "audit.json"):
        (run / name).unlink(missing_ok=True)


def table(audit: Audit) -> TextTable:
    """Return one row per finding."""
    rows = TextTable(["Question", "Figure", "Learned", "Found", "By guessing"], text_columns=3)
    for f in audit.findings:
        found = TextCell(_number(f, f.value), "" if not f.error else f"± {_number(f, f.error)}")
        learned = TextCell(WORDS[f.learned], strong=bool(f.learned))
        guess = _number(f, f.baseline)
        figure = TextCell(f.measure[:1].upper() + f.measure[1:], f.note)
        rows.add(TextCell(f.attack, f.observer), figure, learned, found, guess)
    return rows


def _number(finding: Finding, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" if finding.measure.startswith(("AUC", "SSIM")) else f"{100 * value:.1f}%"


def guarantee(audit: Audit) -> str:
    """Return the ε of the run, what it hides and from whom, as sentences."""
    spent = audit.spent
    if spent is None:
        return "No noise was added: ε = ∞, so that no bound limits what other attacks learn (privacy.mode)."
    hidden = {"client": "whether one client's data were there", "sample": "whether one sample was there"}
    return (
        f"Noise hides {hidden[spent.mode]}: ε = {spent.epsilon:.3g} at δ = {spent.delta:g} after the rounds of the "
        f"run (privacy.mode={spent.mode}); the attacked round is one more."
    )


def summary(audit: Audit) -> list[str]:
    """Describe in one sentence each finding that beats its guess."""
    if not audit.findings:
        return ["Clients send nothing, so there is nothing to attack."]
    sentences = [
        f"{f.attack} {f.observer}: {f.measure} {_number(f, f.value)}, where a guess reaches "
        f"{_number(f, f.baseline)}."
        for f in audit.findings
        if f.learned
    ]
    return sentences or ["No attack beat its guess."]


def picture(image: Tensor) -> str:
    """Return a ``(C, H, W)`` image in [0, 1] as a PNG in base64."""
    from PIL import Image

    pixels = (image.detach().cpu().clamp(0, 1) * 255).round().to(torch.uint8)
    array = pixels[0].numpy() if len(pixels) == 1 else pixels[:3].permute(1, 2, 0).numpy()
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()
