"""Run directories: what a run leaves behind, as typed records that are written and read by the same classes.

Nothing that a file says is trusted: sizes are limited before anything is reserved, every value is checked, and an
error is one line that names the file. Nothing here needs torch.
"""

from protofed.runs.border import Border, Signature
from protofed.runs.comparison import ComparisonFile, ListedRun
from protofed.runs.description import ClientDescription, FederationDescription
from protofed.runs.files import (
    is_written,
    read_comparison,
    read_config,
    read_federation,
    read_metrics,
    read_record,
    read_rounds,
    read_summary,
    read_text,
)
from protofed.runs.findings import Findings
from protofed.runs.labels import NOT_THE_METHODS, flat, tell_apart
from protofed.runs.loading import DEEPEST, axes_of, check_run, load_description, load_run, load_runs
from protofed.runs.metrics import HEADLINES, METRICS, ClassMetrics, Metrics, SampleMetrics
from protofed.runs.records import SECONDS, WAYS, Absence, Accuracy, Attack, Refusal, RoundRecord
from protofed.runs.rules import (
    COLOURS,
    GLOBAL,
    GLOBAL_MODEL,
    HEAD,
    KNOWN_RULES,
    Rule,
    in_order,
    known,
    main_rule,
    prototype_rule,
)
from protofed.runs.run import Run, by_label, rule_of, rules_of, settled, wanted_rule
from protofed.runs.spent import Spent
from protofed.runs.summary import TOLERANCE, Beyond, Outcome, RuleOutcome, Summary, Traffic

__all__ = [
    "COLOURS",
    "DEEPEST",
    "GLOBAL",
    "GLOBAL_MODEL",
    "HEAD",
    "HEADLINES",
    "KNOWN_RULES",
    "METRICS",
    "NOT_THE_METHODS",
    "SECONDS",
    "TOLERANCE",
    "WAYS",
    "Absence",
    "Accuracy",
    "Attack",
    "Beyond",
    "Border",
    "ClassMetrics",
    "ClientDescription",
    "ComparisonFile",
    "FederationDescription",
    "Findings",
    "ListedRun",
    "Metrics",
    "Outcome",
    "Refusal",
    "RoundRecord",
    "Rule",
    "RuleOutcome",
    "Run",
    "SampleMetrics",
    "Signature",
    "Spent",
    "Summary",
    "Traffic",
    "axes_of",
    "by_label",
    "check_run",
    "flat",
    "in_order",
    "is_written",
    "known",
    "load_description",
    "load_run",
    "load_runs",
    "main_rule",
    "prototype_rule",
    "read_comparison",
    "read_config",
    "read_federation",
    "read_metrics",
    "read_record",
    "read_rounds",
    "read_summary",
    "read_text",
    "rule_of",
    "rules_of",
    "settled",
    "tell_apart",
    "wanted_rule",
]
