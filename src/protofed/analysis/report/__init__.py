"""The HTML report: one file that explains a run, or compares several, with nothing to load from elsewhere."""

from protofed.analysis.report.page import write_report

__all__ = ["write_report"]
