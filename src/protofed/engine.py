"""What another engine is built of: these names stay where they are, whatever moves below them.

An engine carries visits to clients elsewhere and gives their results to the round loop. It resolves an
:class:`Experiment`, builds a :class:`Federation` around an executor of its own by :class:`Builder` and
:func:`build_federation`, and runs it by :func:`run_federation` in a :class:`RunDirectory`. The entry point
``protofed.engines`` registers it, as in protofed-flower.
"""

from protofed.config.architectures import Architecture, FederationSummary
from protofed.config.schema import Experiment, apply_overrides, load_recipe, parse_overrides, resolve
from protofed.data import DataOptions
from protofed.experiments.assemble import build_federation
from protofed.experiments.builder import Builder
from protofed.experiments.loading import load_data
from protofed.experiments.rundir import RunDirectory
from protofed.experiments.running import Progress, run_federation
from protofed.rounds.loop import Federation
from protofed.rounds.state import ServerState
from protofed.runs.records import RoundRecord
from protofed.runs.run import Run
from protofed.samples import ClientData, FederatedData
from protofed.storage.snapshots import Snapshot, pack, unpack
from protofed.visits.contract import Evaluated, Missing, Trained
from protofed.visits.roster import Roster

__all__ = [
    "Architecture",
    "Builder",
    "ClientData",
    "DataOptions",
    "Evaluated",
    "Experiment",
    "FederatedData",
    "Federation",
    "FederationSummary",
    "Missing",
    "Progress",
    "Roster",
    "RoundRecord",
    "Run",
    "RunDirectory",
    "ServerState",
    "Snapshot",
    "Trained",
    "apply_overrides",
    "build_federation",
    "load_data",
    "load_recipe",
    "pack",
    "parse_overrides",
    "resolve",
    "run_federation",
    "unpack",
]
