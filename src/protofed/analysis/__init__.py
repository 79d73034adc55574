"""Results of runs: figures, tables and the HTML report."""

from protofed.analysis.report import write_report
from protofed.analysis.restore import prototypes
from protofed.runs.loading import load_run, load_runs
from protofed.runs.rules import main_rule
from protofed.runs.run import Run

__all__ = ["Run", "load_run", "load_runs", "main_rule", "prototypes", "write_report"]
