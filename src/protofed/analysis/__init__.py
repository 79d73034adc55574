"""Results of runs: figures, tables and the HTML report."""

from protofed.analysis.report import write_report
from protofed.analysis.restore import prototypes
from protofed.runs import Run, load_run, load_runs, main_rule

__all__ = ["Run", "load_run", "load_runs", "main_rule", "prototypes", "write_report"]
