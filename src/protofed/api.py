"""The public functions: run a recipe, or compare methods on it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protofed.analysis.compared import Compared
from protofed.analysis.report import write_report
from protofed.config.schema import Recipe, Tree, apply_overrides, comparison, load_recipe, names_method, resolve
from protofed.errors import CheckpointError, ConfigError, unknown_name
from protofed.experiments.batch import MARK
from protofed.experiments.comparing import Comparison, Plan, read_recipe
from protofed.experiments.rundir import directory_for, place_for
from protofed.experiments.running import Progress, run_experiment
from protofed.experiments.sweeping import MANY, grid, sweep_plan
from protofed.experiments.tuning import Tuned, check_options, space_of
from protofed.experiments.tuning import tune as search
from protofed.runs.files import read_comparison
from protofed.runs.loading import load_run as read_run
from protofed.runs.loading import load_runs
from protofed.runs.metrics import Metrics
from protofed.runs.run import Run
from protofed.text import number
from protofed.trained.run import TrainedRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Overrides = Mapping[str, Any]
DEFAULT_RECIPE = "quickstart"
Engine = Callable[..., Run]
Shown = Run | Compared | str | Path


def run(
    recipe: Recipe = "",
    overrides: Overrides | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    engine: str = "local",
    track: str | Progress | Sequence[str | Progress] = (),
    jobs: int = 1,
) -> TrainedRun | Compared:
    """Run a recipe.

    Args:
        recipe: Name of a built-in recipe (``protofed list recipes``), path of a TOML file, or what such a file
            holds, as :func:`protofed.federation` of a data frame does; by default quickstart, or with ``resume``
            and ``out`` the recipe of what lies there.
        overrides: Values by dotted name, e.g. ``{"method.name": "fedtgp", "rounds": 40}``.
        out: Run directory; by default ``runs/RECIPE-METHOD``, with a number appended if that exists.
        resume: Continue an existing run.
        progress: Receives progress reports; in a notebook, a line is shown by default.
        engine: ``local``, or ``flower`` for Flower's simulation engine (one method at a time).
        track: Trackers that log the rounds: ``tensorboard``, ``wandb``, ``mlflow``, or instances of
            :class:`Progress`.
        jobs: Of a comparison, as for :func:`compare`.

    Returns:
        A :class:`~protofed.analysis.compared.Compared` if the recipe lists methods to compare and neither it nor
        ``overrides`` names one method, otherwise a :class:`~protofed.trained.run.TrainedRun`.

    Raises:
        ProtofedError: If anything is wrong with the recipe, the data or the directory.
    """
    carry_out = _engine(engine)
    progress = _receivers(progress, track)
    tree = apply_overrides(_recipe(recipe, out, resume, DEFAULT_RECIPE), overrides or {})
    if not names_method(tree) and comparison(tree).methods:
        if engine != "local":
            raise ConfigError(f"--engine {engine} runs one method: add method.name=…")
        return _compare(tree, out, resume, progress, jobs)
    experiment = resolve(tree)
    directory = directory_for(out, experiment, resume=resume)
    how: dict[str, Any] = {"resume": resume, "progress": progress, "report": write_report, "measure": _measure}
    return TrainedRun.of(carry_out(experiment, directory, **how))


def load_run(directory: str | Path, trust_code: bool = False) -> TrainedRun:
    """Return a finished run from its directory.

    Args:
        trust_code: Import code that the run's configuration names for its models.

    Raises:
        CheckpointError: If there is no finished run, or one of its files is damaged.
    """
    path = Path(directory)
    if (path / "comparison.json").is_file():
        first = next(iter(read_comparison(path / "comparison.json").runs), None)
        example = f", such as {path / first.directory}" if first else ""
        raise CheckpointError(f"{path}: holds a comparison: load one of its runs{example}")
    run = read_run(path)
    if not run.finished:
        raise CheckpointError(f"{path}: the run has not finished: continue it with --resume")
    return TrainedRun.of(run, trust_code)


def load_comparison(directory: str | Path) -> Compared:
    """Return the finished runs of a comparison from its directory.

    Raises:
        CheckpointError: If it holds no comparison, or one of its files is damaged.
    """
    path = Path(directory)
    if not (path / "comparison.json").is_file():
        raise CheckpointError(
            f"{path}: holds no comparison: expected comparison.json, as protofed compare writes it"
        )
    listed = read_comparison(path / "comparison.json")
    runs: dict[str, list[TrainedRun]] = {}
    for run in load_runs([path]):
        if run.finished:
            runs.setdefault(", ".join((run.arm, *run.values)), []).append(TrainedRun.of(run, trusted=False))
    return Compared(path, runs, {axis: list(names) for axis, names in listed.axes.items()})


def compare(
    recipe: Recipe = "",
    methods: Sequence[str] = (),
    seeds: Sequence[int] = (),
    overrides: Overrides | None = None,
    *,
    vary: Iterable[str] = (),
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    jobs: int = 1,
    budget: float | None = None,
    track: str | Progress | Sequence[str | Progress] = (),
) -> Compared:
    """Run several methods on the same federation, with the same seeds, and every combination of what varies.

    With ``vary`` or ``budget``, and in a folder of such runs, a run is found by its configuration: what is finished
    is never run again, and a run that fails does not stop the others.

    Args:
        recipe: Name of a built-in recipe or path of a TOML file; by default the recipe of what goes on in ``out``.
        methods: By default those that the recipe compares; where something varies, else its own.
        seeds: Every method runs once with each; by default the recipe's. A seed determines the split, the initial
            weights and the order of samples.
        overrides: Values by dotted name, as for :func:`run`; ``methods.NAME.OPTION`` sets an option of one method.
        vary: ``NAME=VALUE,VALUE,…`` for an option that varies, ``NAME=VALUE`` for one that does not.
        out: Directory of the comparison; by default ``runs/RECIPE``, with a number appended if that exists, or
            ``runs/RECIPE-sweep`` for runs that are found by their configuration.
        resume: Continue an existing comparison.
        progress: Receives progress reports.
        jobs: Number of parallel runs, each in a process of its own with its share of the cores; 0 for as many as
            cores and memory permit, if that pays. Results equal those of one job up to the rounding effects of a
            different number of threads.
        budget: Seconds after which no further round begins; the same call goes on later.
        track: Trackers, as for :func:`run`.

    Raises:
        ProtofedError: As :func:`run`; all runs are checked before the first one starts, or, of those that are found
            by their configuration, the first along each axis.
    """
    progress = _receivers(progress, track)
    axes, plain = grid(vary)
    keyed = bool(axes) or budget is not None or (out is not None and (Path(out) / MARK).is_file())
    tree = _choose_arms(_recipe(recipe, out, resume or keyed), methods, seeds, {**(overrides or {}), **plain})
    if not keyed:
        return _compare(tree, out, resume, progress, jobs)
    if not comparison(tree).methods:
        tree = apply_overrides(tree, {"compare.methods": [tree.get("method", {}).get("name", "fedproto")]})
    plan = sweep_plan(tree, axes or tree.get("compare", {}).get("axes", {}))
    directory = Path(out) if out is not None else Path("runs") / f"{plan.recipe}-sweep"
    waiting = sum(not task.finished for task in plan.tasks(directory, resume=True).values())
    if waiting > MANY and budget is None:
        raise ConfigError(f"{number(waiting)} runs: say for how long they may run, e.g. --budget 8h")
    return _carry_out(plan, directory, progress, jobs, budget=budget)


def tune(
    recipe: Recipe,
    items: Iterable[str],
    method: str = "",
    seeds: Sequence[int] = (),
    overrides: Overrides | None = None,
    *,
    out: str | Path | None = None,
    progress: Progress | None = None,
    trials: int = 30,
    jobs: int = 1,
    budget: float | None = None,
) -> Tuned:
    """Search for good values of options by accuracy on validation samples; test samples play no part.

    Args:
        recipe: Name of a built-in recipe or path of a TOML file; ``data.validation_fraction`` must not be 0.
        items: ``NAME=LOW..HIGH``, ``NAME=LOW..HIGH:log`` or ``NAME=VALUE,VALUE,…`` for an option that varies, and
            ``NAME=VALUE`` for one that does not.
        method: Method or variant; by default the recipe's.
        seeds: Seeds of every trial; by default the recipe's.
        overrides: Further values by dotted name, as for :func:`run`.
        out: Directory of the search; by default ``runs/RECIPE-METHOD-tuned``. The same call goes on in it.
        trials: In all.
        jobs: Trials that run at a time.
        budget: Seconds after which no further round begins; None for no limit.

    Raises:
        ProtofedError: If nothing varies, a first trial is invalid, or there are no validation samples.
    """
    space, plain = space_of(items)
    tree = apply_overrides(load_recipe(recipe), {**(overrides or {}), **plain})
    first = resolve(tree, method=method or None)
    name = method or first.method
    check_options(tree, name, space)
    place = Path("runs") / f"{first.recipe}-{name.rpartition(':')[2]}-tuned"
    return search(
        tree,
        space,
        name,
        list(seeds) or [first.seed],
        place if out is None else Path(out),
        trials=trials,
        jobs=jobs,
        deadline=None if budget is None else time.monotonic() + budget,
        progress=progress,
        measure=_measure,
    )


def forget(
    run: Run | str | Path,
    client: str,
    *,
    trust_code: bool = False,
    progress: Progress | None = None,
) -> TrainedRun | None:
    """Take a client's sums out of a finished run of a closed form, which is then as if it had not taken part.

    See :func:`protofed.trained.forgetting.forget`.

    Args:
        trust_code: Import the code that the run's configuration names.

    Returns:
        The run without the client; None if its other clients are at the nodes of a network and have yet to be told.

    Raises:
        ProtofedError: If nothing can be taken out; the run is then as before.
    """
    from protofed.trained.forgetting import forget as take_out

    directory = Path(run.directory if isinstance(run, Run) else run)
    rest = take_out(directory, client, trust_code, progress=_receivers(progress, ()), report=write_report)
    return None if rest is None else TrainedRun.of(rest, trust_code)


def _recipe(recipe: Recipe, out: str | Path | None, resume: bool, default: str = "") -> Tree:
    """Return the named recipe, or the one of the run to resume in ``out``, or the default."""
    if not recipe and resume and out is not None:
        return read_recipe(Path(out))
    if not recipe and not default:
        raise ConfigError("name a recipe, such as quickstart, or what to continue by --out (protofed list recipes)")
    return load_recipe(recipe or default)


def _choose_arms(tree: Tree, methods: Sequence[str], seeds: Sequence[int], overrides: Overrides | None) -> Tree:
    """Return a recipe with overrides, and with the methods and seeds to compare."""
    tree = apply_overrides(tree, overrides or {})
    chosen: Tree = {"methods": list(methods)} if methods else {}
    chosen |= {"seeds": list(seeds)} if seeds else {}
    return apply_overrides(tree, {f"compare.{name}": value for name, value in chosen.items()})


def _receivers(progress: Progress | None, track: str | Progress | Sequence[str | Progress]) -> Progress:
    """Return the receiver of progress reports: the display, and trackers."""
    if progress is None and "IPython" in sys.modules:
        from protofed.experiments.progress import in_notebook

        progress = in_notebook()
    if not track:
        return progress or Progress()
    from protofed.experiments.tracking import trackers

    named = [track] if isinstance(track, str | Progress) else track
    return Progress.share(progress or Progress(), *trackers(named))


def figure(name: str, runs: Shown | Sequence[Shown], **options: Any) -> Figure:
    """Draw a figure."""
    from protofed.analysis.figures import draw_figure

    chosen = [runs] if isinstance(runs, (Run, Comparison, str, Path)) else runs
    places = [Path(each.directory if isinstance(each, (Run, Comparison)) else each) for each in chosen]
    return draw_figure(name, load_runs(places), options)


def _compare(tree: Tree, out: str | Path | None, resume: bool, progress: Progress, jobs: int = 1) -> Compared:
    plan = Plan.of(tree)
    return _carry_out(plan, place_for(out, plan.recipe, resume=resume), progress, jobs, resume)


def _carry_out(
    plan: Plan, directory: Path, progress: Progress, jobs: int, resume: bool = True, budget: float | None = None
) -> Compared:
    found = plan.run(
        directory,
        resume=resume,
        progress=progress,
        jobs=jobs,
        report=write_report,
        measure=_measure,
        budget=budget,
    )
    runs = {label: [TrainedRun.of(run) for run in group] for label, group in found.runs.items()}
    return Compared(found.directory, runs, found.axes, found.waiting, found.failed)


def _engine(name: str) -> Engine:
    """Return the function that runs an experiment on an engine, local or installed."""
    if name == "local":
        return run_experiment
    engines = entry_points(group="protofed.engines")
    if name not in engines.names:
        raise ConfigError(unknown_name("engine", name, ["local", *sorted(engines.names)]))
    try:
        found: Engine = engines[name].load()
    except ImportError as error:
        raise ConfigError(f"--engine {name} needs the package {error.name}") from None
    return found


def _measure(run: Run) -> Metrics:
    """Compute and store the metrics of a run; only then, scikit-learn is imported."""
    from protofed.trained.metrics import measure

    return measure(run)
