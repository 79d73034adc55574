"""Does federating help these sites? Closed forms and scikit-learn by folds first, then networks by a split."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import tomli_w
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from protofed.config.schema import Experiment, Recipe, Tree, apply_overrides, load_recipe, recipes, resolve
from protofed.errors import ConfigError, DataError, unknown_name
from protofed.experiments.batch import RunTask, at_once, run_tasks
from protofed.experiments.comparing import Plan
from protofed.experiments.loading import load_data
from protofed.experiments.rundir import place_for
from protofed.experiments.running import Progress
from protofed.models.encoders import EncoderOptions, width_of
from protofed.runs.run import Run
from protofed.samples import FederatedData
from protofed.sites.looking import Survey, inspect_folder
from protofed.sites.page import write_page
from protofed.sites.recipe import Notice
from protofed.sites.results import Arm, Evidence, Hits, SiteAnswer, TryResult, difference
from protofed.storage.files import write_json, write_text
from protofed.trained.folds import FOLDS, Judged, SiteSamples, divide_all, judge, judge_anywhere
from protofed.trained.metrics import Answers, answers
from protofed.trained.paired import same_tests
from protofed.untrusted.reading import parse_toml

TOGETHER, ALONE = "fedlda", "local_lda"
DIM = 512  #: Most features per sample, unless the recipe says otherwise
NETWORKS = ("beacon", "local")  #: What is trained, of that which a recipe compares
WIDEST = 512  #: Most inputs with which gradient boosting is tried
FITS = 500  #: Most classes times fits for that
HALVES = FOLDS // 2  #: Folds by which it is judged, each of two of the others
TREES = 50
"""Trees of boosting per class, at twice the usual rate: as accurate as 100 (eight data sets: −0.1 points)."""
TUNED = 2_000_000  #: Most numbers of all samples together for which the strength of logistic regression is chosen
FEWEST = 20  #: Least samples of a class for that; of fewer, folds choose by chance
NEARLY = 3  #: A mean of so few samples is nearly a sample itself
STRENGTHS = (0.01, 0.1, 1.0, 10.0)


def read_source(
    source: Recipe | Path, label: str = "", site: str = "", overrides: Mapping[str, Any] | None = None
) -> tuple[Survey | None, Tree]:
    """Return the survey of a folder and its recipe with every proposal taken; or a recipe.

    Args:
        source: A folder or file of data, the name or path of a recipe, or what :func:`protofed.federation` returns.
        label: The column to predict, of a folder.
        site: The column of a single table that names the sites.
        overrides: Values by dotted name.

    Raises:
        ProtofedError: If there is no such folder or recipe, or something is open that a person has to settle.
    """
    given = overrides or {}
    if isinstance(source, Mapping):
        return getattr(source, "look", None), apply_overrides(load_recipe(source), given)
    path = Path(source).expanduser()
    if not path.is_dir() and (path.suffix == ".toml" or str(source) in recipes()):
        if label or site:
            raise ConfigError(f"--{'label' if label else 'site'} is for folders: {source} is a recipe")
        return None, apply_overrides(load_recipe(source), given)
    if not path.exists() and path.name == str(source):
        raise ConfigError(f"{unknown_name('folder or recipe', str(source), recipes())}")
    look = inspect_folder(path, label, site, given)
    return look, {**parse_toml(look.recipe(_taken(look))), "recipe": "try"}


def _taken(look: Survey | None) -> list[Notice]:
    return [notice for notice in look.notices if notice.options] if look else []


def try_out(
    source: Recipe | Path,
    seeds: Sequence[int] = (),
    overrides: Mapping[str, Any] | None = None,
    *,
    methods: Sequence[str] | None = None,
    positive: str = "",
    out: str | Path | None = None,
    progress: Progress | None = None,
    jobs: int = 1,
) -> TryResult:
    """Answer whether federating helps the sites of a folder or recipe.

    Args:
        source: As :func:`read_source` takes it.
        seeds: Of trained networks; by default one, which the answer says.
        overrides: Values by dotted name, as for :func:`protofed.run`.
        methods: What is trained beside the closed forms, also variants; by default :data:`NETWORKS`.
        positive: The class whose recall is shown; by default the rarest.
        out: Directory of the answer, ``try.html`` and ``try.json``; by default a new one below ``runs/``. What was
            stopped there goes on.
        jobs: Processes that compute what is compared; 0 for one per core, if memory permits.

    Raises:
        ProtofedError: As :func:`protofed.compare`; DataError if there is nothing to compare.
    """
    look, tree = read_source(source, overrides=overrides)
    place = None if out is None else Path(out)
    return run_trial(tree, look, seeds, place, progress, jobs, methods=methods, positive=positive)


def run_trial(
    tree: Tree,
    look: Survey | None,
    seeds: Sequence[int],
    out: Path | None,
    progress: Progress | None = None,
    jobs: int = 1,
    *,
    methods: Sequence[str] | None = None,
    positive: str = "",
    answered: Callable[[TryResult], None] = lambda trial: None,
) -> TryResult:
    """Return what each site reaches alone and together; see :func:`try_out`.

    Args:
        answered: Called with the answer of the closed forms as soon as there is one.
    """
    progress = progress or Progress()
    experiment = closed_form(tree)
    names = _networks(tree, methods)
    data, plain = load_data(experiment), resolve({**tree, "encoder": {}}, method="local")
    given = _set_aside(plain)
    sites = divide_all(data, experiment.seed, given=given)
    with threadpool_limits(1):  # matrices are small: a second thread gains nothing, and on a busy machine it waits
        found = _checked(data, sites, positive)
        judged = judge(sites, data.num_classes, experiment.method_options)
        anywhere = judge_anywhere(sites, data.num_classes, experiment.method_options)
        trial = _closed(data, sites, found, judged, anywhere, Evidence(0 if given else FOLDS))
    directory = _place(out, tree)
    trial = replace(trial, directory=directory, notices=_taken(look))
    answered(trial)
    write_text(directory / "recipe.toml", tomli_w.dumps(tree))
    numbers = [
        divide_all(_numbers(each), plain.seed, given=given) for each in _units(plain, data.table is not None)
    ]
    kept = [site.name for site in trial.sites]
    rivals = list(_rivals(numbers[0], len(data.class_names)))
    tasks = [_Task(rival.name, partial(rival.judged, numbers)) for rival in rivals]
    first, runs = len(tasks), list(seeds) or [plain.seed]
    if names:
        plan = Plan.of(apply_overrides(tree, {"compare.methods": names, "compare.seeds": runs}))
        planned = plan.tasks(directory / "trained", resume=True)
        tasks += [_Task(cell.method, partial(_trained, task)) for cell, task in planned.items()]
    jobs = jobs or at_once(len(tasks))
    progress.planned(len(tasks) + 1, jobs)
    outcomes: dict[int, Any] = {}
    page = _Task("page", partial(write_page, trial))
    for place, outcome in run_tasks([page, *tasks[::-1]], jobs=jobs):  # the longest first
        outcomes[len(tasks) - place] = outcome
        progress.advanced()
    for place, rival in enumerate(rivals):
        trial = _with(trial, rival, outcomes[place])
    if names:
        bases = [_on_split(experiment, seed) for seed in runs]
        trained = [(tasks[place].label, outcomes[place]) for place in range(first, len(tasks))]
        more = [_network([run for method, run in trained if method == name], bases, kept) for name in names]
        trial = replace(trial, arms=(*trial.arms, *more), seeds=tuple(runs))
    write_page(trial, outcomes[len(tasks)])
    write_json(directory / "try.json", trial.to_dict())
    return trial


def closed_form(tree: Tree) -> Experiment:
    """Return the experiment of the closed form together, on features of an encoder.

    Raises:
        ConfigError: If the recipe asks for what cannot be judged by sums as they are.
    """
    fixed = tree.get("variants", {}).get(f"{TOGETHER}-fixed", {})
    chosen: dict[str, Any] = {"method.name": TOGETHER, "rounds": 1}
    if not tree.get("encoder", {}).get("name"):
        chosen |= {f"encoder.{name}": value for name, value in fixed.get("encoder", {"name": "auto"}).items()}
    experiment = resolve(apply_overrides({**tree, "method": {}}, chosen))
    asked = {"privacy.mode": experiment.privacy.mode != "none"}
    asked |= {f"methods.{TOGETHER}.centre": experiment.method_options.centre}
    if wrong := next((name for name, is_asked in asked.items() if is_asked), ""):
        raise ConfigError(
            f"{wrong}: protofed try judges sums as they are: leave it out, or protofed compare shows it"
        )
    if experiment.encoder.name and not experiment.encoder.dim:
        data = load_data(replace(experiment, encoder=EncoderOptions()))
        table = data.table
        views, texts = (table.views, table.texts) if table else (1, ())
        if width_of(experiment.encoder, data.input_shape, texts, views) > views * DIM:
            experiment = replace(experiment, encoder=replace(experiment.encoder, dim=DIM))
    return experiment


def _networks(tree: Tree, methods: Sequence[str] | None) -> list[str]:
    """Return what is trained: of a recipe's own choice, what this has of the usual."""
    listed = tree.get("compare", {}).get("methods", NETWORKS) if methods is None else methods
    names = [name for name in (NETWORKS if methods is None else methods) if name in listed]
    names = [name for name in names if name not in (TOGETHER, ALONE)]
    for name in names:
        resolve(tree, method=name)  # before anything is computed
    return names


def _set_aside(plain: Experiment) -> bool:
    """Return whether somebody has chosen the test samples: no seed does, or training samples are limited."""
    first, second = (load_data(replace(plain, seed=plain.seed + more)).test_hash() for more in (0, 1))
    return bool(plain.data.train_samples) or (first == second and plain.data.source == "path")


def _place(out: Path | None, tree: Tree) -> Path:
    """Return the directory of an answer: what was stopped there goes on, and what is finished is not touched."""
    text = tomli_w.dumps(tree)

    def same(directory: Path) -> bool:
        recipe = directory / "recipe.toml"
        return recipe.is_file() and recipe.read_text("utf-8") == text

    directory = place_for(out, "try", resume=True)
    if out is None:
        goes_on = same(directory) and not (directory / "try.json").exists()
        return directory if goes_on else place_for(None, "try", resume=False)
    if directory.exists() and any(directory.iterdir()) and not same(directory):
        raise ConfigError(f"--out {directory}: holds something else than this answer: choose another")
    return directory


Fit = Callable[[NDArray[np.float64], NDArray[np.int64]], Any]
"""Returns an estimator of scikit-learn that has learned from ``(n, F)`` samples and their ``(n,)`` classes."""


class _Checked(NamedTuple):
    """What is known of the sites before anything is computed."""

    kept: list[int]  #: Places of those that can be judged
    counts: NDArray[np.int64]  #: ``(M, K)`` samples of which others learn
    positive: int  #: Class whose recall is shown


def _checked(data: FederatedData, sites: Sequence[SiteSamples], positive: str) -> _Checked:
    names, K = data.class_names, data.num_classes
    counts = np.stack([np.bincount(site.y[site.shared].numpy(), minlength=K) for site in sites])
    kept = [p for p, s in enumerate(sites) if (counts[p] > 0).sum() > 1 and bool(s.judged.any())]
    if not kept:
        raise DataError("no site has samples to be judged by and more than one class: nothing can be compared")
    if len(sites) < 2:
        raise DataError(f"{sites[0].name} is the only site: name a column of sites by --site, or add other folders")
    if positive and positive not in names:
        raise ConfigError(f"--positive: {unknown_name('class', positive, names)}")
    total = counts.sum(0)
    rarest = int(np.where(total > 0, total, total.sum()).argmin())
    return _Checked(kept, counts, names.index(positive) if positive else rarest)


def _closed(
    data: FederatedData,
    sites: Sequence[SiteSamples],
    checked: _Checked,
    found: Judged,
    anywhere: Sequence[NDArray[np.float64]],
    evidence: Evidence,
) -> TryResult:
    """Return the answer of the closed forms."""
    K, names, (kept, learnt, positive) = data.num_classes, data.class_names, checked
    hits = [{sites[p].name: list(part[p]) for p in kept} for part in (found.together, found.alone)]
    classes = {sites[p].name: [sites[p].y[sites[p].judged].numpy()] for p in kept}
    arms = tuple(
        Arm(name, place == 0, place == 0, own, classes, hits[0], evidence)
        for place, (name, own) in enumerate(zip((TOGETHER, ALONE), hits, strict=True))
    )
    every = [site.y[site.judged].numpy() for site in sites]
    right = np.sum([np.bincount(y, own.mean(0), K) for y, own in zip(every, anywhere, strict=True)], axis=0)
    judged = np.sum([np.bincount(y, minlength=K) for y in every], axis=0)
    answered = []
    for p in kept:
        site, name, lacks = sites[p], sites[p].name, (learnt[p] == 0) & (learnt.sum(0) > 0)
        new = lacks & (judged > 0)
        answered.append(
            SiteAnswer(
                name,
                samples=len(site.y),
                judged=int(site.judged.sum()),
                classes=int((learnt[p] > 0).sum()),
                lacks=tuple(names[k] for k in np.flatnonzero(lacks)),
                alone=arms[1].accuracy(name),
                together=arms[0].accuracy(name),
                gain=difference(hits[0], hits[1], evidence, name),
                unseen=float(100 * right[new].sum() / judged[new].sum()) if new.any() else float("nan"),
            )
        )
    known, d = [site.unseen for site in answered if not np.isnan(site.unseen)], int(np.prod(data.input_shape))
    own = d // sites[0].views
    return TryResult(
        tuple(answered),
        tuple(site.name for p, site in enumerate(sites) if p not in kept),
        arms,
        evidence,
        draws=len(sites[0].folds),
        unseen=float(np.mean(known)) if known else float("nan"),
        positive=(positive, names[positive]),
        seeds=(),
        sent=4 * float((learnt > 0).sum(1).mean() * d + d * (own + 1) / 2),
        revealed=describe_revealed(learnt),
        directory=Path(),
    )


class _Task(NamedTuple):
    """Something to compute in a process of its own."""

    label: str
    compute: Callable[[], Any]

    def run(self, progress: Progress | None = None, deadline: float | None = None) -> Any:
        """Compute it."""
        return self.compute()


class _Rival(NamedTuple):
    """A classifier of scikit-learn, of each site's samples or of all, and the number of folds that judge it."""

    name: str
    fit: Fit
    folds: int
    pooled: bool

    def judged(self, numbers: Sequence[Sequence[SiteSamples]]) -> Hits:
        """Return its right answers; pooled, by the better of the standardisations of the samples."""
        found = []
        for sites in numbers if self.pooled else numbers[:1]:
            fewer = [s._replace(folds=s.folds.where(s.folds < 0, s.folds % self.folds)) for s in sites]
            with threadpool_limits(1):
                found.append(judge_classifier(self.fit, fewer, self.pooled))
        return max(found, key=lambda hits: np.concatenate([own[0] for own in hits.values()]).mean())


def _trained(task: RunTask) -> tuple[Run, dict[str, Answers]]:
    run = task.run()
    assert run is not None  # there is no deadline
    return run, answers(run, trust_code=True)


def _with(trial: TryResult, rival: _Rival, hits: Hits) -> TryResult:
    """Return an answer with another way of learning, judged by the same samples."""
    first = trial.arms[0]
    own = {site: hits[site] for site in first.hits}
    by = trial.evidence._replace(folds=min(rival.folds, trial.evidence.folds))
    arm = replace(first, name=rival.name, together=rival.pooled, federated=False, hits=own, evidence=by)
    return replace(trial, arms=(*trial.arms, arm))


def describe_revealed(held: NDArray[np.int64]) -> str:
    """Return in one sentence what a site's sums reveal, given ``(M, K)`` samples."""
    few = int(((held > 0) & (held <= NEARLY)).sum())
    near = f"; {few} of the means are of {NEARLY} samples or fewer, and nearly samples" if few else ""
    return f"Revealed: each site's class means, sample counts and second moment of its features, once{near}."


def _units(plain: Experiment, table: bool) -> list[Experiment]:
    """Return the data as one desk would have them: as they are, and standardised by site where units may differ.

    An estimator standardises what it learns from, so that others would be standardised twice.
    """
    if plain.data.ranges:  # which are no matter of the samples
        return [plain]
    kinds: tuple[Literal["none", "site"], ...] = (
        ("none", "site") if plain.data.standardise_by(table) != "none" else ("none",)
    )
    return [replace(plain, data=replace(plain.data, standardise=kind)) for kind in kinds]


def _numbers(experiment: Experiment) -> FederatedData:
    """Return the samples as numbers from which any classifier can learn: of tokens, hashed counts of words."""
    found = load_data(experiment)
    if found.table is None or not found.table.texts:
        return found
    return load_data(replace(experiment, encoder=EncoderOptions("auto")))


def _on_split(experiment: Experiment, seed: int) -> dict[str, NDArray[np.float64]]:
    """Return the right answers of the closed form for the test samples of a seed, by site."""
    data = load_data(replace(experiment, seed=seed))
    sites = divide_all(data, seed, given=True)
    found = judge(sites, data.num_classes, experiment.method_options).together
    return {site.name: right[0] for site, right in zip(sites, found, strict=True)}


def _network(
    found: Sequence[tuple[Run, dict[str, Answers]]],
    bases: Sequence[Mapping[str, NDArray[Any]]],
    kept: Sequence[str],
) -> Arm:
    """Return a trained network, beside the closed form on the same test samples."""
    runs, given = zip(*found, strict=True)
    hits = {name: [each[name].right.astype(np.float64) for each in given] for name in kept}
    classes = {name: [each[name].y for each in given] for name in kept}
    base = {name: [each[name] for each in bases] for name in kept}
    loud = any(record.bytes["up"] for record in runs[0].rounds)
    return Arm(runs[0].method, loud, loud, hits, classes, base, Evidence(same=same_tests(runs)), trained=True)


def _rivals(sites: Sequence[SiteSamples], classes: int) -> Iterator[_Rival]:
    """Yield scikit-learn's classifiers, but those that would take minutes, alone and pooled."""
    fits = sum(len(site.folds[0].unique()) for site in sites)
    quick = int(np.prod(sites[0].x.shape[1:])) <= WIDEST and fits * classes <= FITS
    for pooled in (False, True):
        yield _Rival("logistic regression", _logistic, FOLDS, pooled)
    for pooled in (False, True) if quick else ():
        yield _Rival("gradient boosting", _boosting, HALVES, pooled)


def _boosting(x: NDArray[np.float64], y: NDArray[np.int64]) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(max_iter=TREES, learning_rate=0.2, random_state=0).fit(x, y)


def _logistic(x: NDArray[np.float64], y: NDArray[np.int64]) -> Any:
    """Return logistic regression of standardised samples, its strength chosen by three folds where these can be.

    Of more features than samples, it learns from all principal components, with the same answers.
    """
    from sklearn.decomposition import KernelPCA
    from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    tuned = np.unique(y, return_counts=True)[1].min() >= FEWEST and x.size <= TUNED
    cv = LogisticRegressionCV(Cs=STRENGTHS, cv=3, scoring="neg_log_loss", max_iter=500)
    model = cv if tuned else LogisticRegression(max_iter=500)
    components = [KernelPCA(remove_zero_eig=True)] if x.shape[1] > len(x) else []
    return make_pipeline(StandardScaler(), *components, model).fit(x, y)


def judge_classifier(make: Fit, sites: Sequence[SiteSamples], pooled: bool) -> Hits:
    """Return the right answers of a classifier of scikit-learn in the first draw, of each site's samples or of all.

    Pooled, it is learned once for each fold, of the samples of all sites outside of it.
    """
    flat = [_flat(site) for site in sites]
    right = [np.zeros(len(site.y)) for site in sites]
    groups: Iterable[Sequence[int]] = [range(len(sites))] if pooled else [[place] for place in range(len(sites))]
    for places in groups:
        for fold in sorted({int(f) for p in places for f in sites[p].folds[0] if f >= 0}):
            out = {p: (sites[p].folds[0] == fold).numpy() for p in places}
            rest = {p: ~out[p] & sites[p].shared.numpy() for p in places}
            x, y = (
                np.concatenate([part[p][rest[p]] for p in places]) for part in (flat, [s.y.numpy() for s in sites])
            )
            answer = _fitted(make, x, y)
            for p in places:
                if out[p].any():
                    right[p][out[p]] = answer(flat[p][out[p]]) == sites[p].y.numpy()[out[p]]
    return {site.name: [own[site.judged.numpy()]] for site, own in zip(sites, right, strict=True)}


def _flat(site: SiteSamples) -> NDArray[np.float64]:
    x: NDArray[np.float64] = site.x.flatten(1).double().numpy()
    return x / 255 if site.x.dtype.itemsize == 1 else x


def _fitted(
    make: Fit, x: NDArray[np.float64], y: NDArray[np.int64]
) -> Callable[[NDArray[np.float64]], NDArray[np.int64]]:
    """Return a function that classifies samples; of samples of a single class, it always answers that class."""
    classes = np.unique(y)
    if len(classes) < 2:
        only = classes[0] if len(classes) else -1
        return lambda samples: np.full(len(samples), only)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a limit of iterations was reached
        model = make(x, y)
    return lambda samples: np.asarray(model.predict(samples))
