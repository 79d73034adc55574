"""What came out of runs: reading them back, figures, tables and the HTML report."""

from protofed.analysis.report import write_report
from protofed.analysis.rundata import RunData, load_run, load_runs, main_rule, prototypes

__all__ = ["RunData", "load_run", "load_runs", "main_rule", "prototypes", "write_report"]
