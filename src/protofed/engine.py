"""What another engine is built of: these names stay where they are, whatever moves below them.

An engine carries visits to clients elsewhere and gives their results to the round loop. It resolves an
:class:`Experiment`, builds a :class:`Federation` around an executor of its own by :class:`Builder` and
:func:`build_federation`, and runs it by :func:`run_federation` in a :class:`RunDirectory`. The entry point
``protofed.engines`` registers it, as in protofed-flower.
"""

from typing import Any

from protofed.config.architectures import Architecture, FederationSummary
from protofed.config.schema import Experiment, apply_overrides, check_device, load_recipe, parse_overrides, resolve
from protofed.data import DataOptions
from protofed.experiments.assemble import build_federation
from protofed.experiments.builder import Builder, check_memory
from protofed.experiments.encoding import encode
from protofed.experiments.executors import bfloat16_kinds, resting_place
from protofed.experiments.hardware import Hardware
from protofed.experiments.loading import load_data
from protofed.experiments.rundir import RunDirectory, directory_for
from protofed.experiments.running import Progress, run_federation, summary_of
from protofed.experiments.stages import secure_stage
from protofed.options import build_options
from protofed.rounds.loop import Federation
from protofed.rounds.state import ServerState
from protofed.runs.loading import load_run
from protofed.runs.records import Accuracy, RoundRecord
from protofed.runs.run import Run
from protofed.samples import ClientData, EncoderKey, Encoding, FederatedData, Samples
from protofed.storage.scratch import folder as scratch_folder
from protofed.storage.snapshots import Snapshot
from protofed.visits.contract import Evaluated, Messages, Missing, Trained
from protofed.visits.executor import Sequential
from protofed.visits.roster import Memory, Roster
from protofed.visits.visit import LocalTrainer

# An experiment, its data and its directory.
__all__ = ["Architecture", "ClientData", "DataOptions", "EncoderKey", "Encoding", "Experiment"]
__all__ += ["FederatedData", "FederationSummary", "RunDirectory", "Samples", "apply_overrides"]
__all__ += ["build_options", "check_device", "directory_for", "encode", "load_data", "load_recipe"]
__all__ += ["parse_overrides", "resolve"]
# Clients, and visits to them.
__all__ += ["Evaluated", "Hardware", "LocalTrainer", "Memory", "Messages", "Missing", "Roster", "Sequential"]
__all__ += ["Snapshot", "Trained", "bfloat16_kinds", "check_memory", "resting_place", "scratch_folder"]
# The federation, its rounds and what is left of them.
__all__ += ["Accuracy", "Builder", "Federation", "Progress", "RoundRecord", "Run", "ServerState"]
__all__ += ["build_federation", "load_run", "reporters", "run_federation", "secure_stage", "summary_of"]


def reporters() -> dict[str, Any]:
    """Return what writes the report and stores the metrics of a run, as :func:`run_federation` takes them."""
    from protofed.analysis.report import write_report
    from protofed.trained.metrics import measure

    return {"report": write_report, "measure": measure}
