"""A finished comparison, whose answer comes first."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from html import escape

from protofed.analysis.answer import Answer, answer, answer_table
from protofed.experiments.comparing import Comparison
from protofed.experiments.shown import curves_html
from protofed.trained.run import TrainedRun


@dataclass(frozen=True, repr=False)
class Compared(Comparison[TrainedRun]):
    """A finished comparison with trained models."""

    @cached_property
    def answer(self) -> Answer | None:
        """The answer; None along axes, or if nothing was evaluated."""
        if self.axes:
            return None
        return answer([run for group in self.runs.values() for run in group])

    def _repr_html_(self) -> str:
        """Return the answer, a table and a small plot, for notebooks."""
        told = ""
        if self.answer:
            first, *others = [f"<p>{escape(text)}</p>" for text in self.answer.sentences] or [""]
            table = answer_table(self.answer).frame().to_html(index=False, border=0)
            told = f"<b>{first}</b>{''.join(others)}{table}"
        plot = curves_html([group[0] for group in self.runs.values() if group])
        return f"<div>{told}{plot}<br><code>{escape(str(self.directory))}</code></div>"
