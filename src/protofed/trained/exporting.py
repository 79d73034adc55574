"""Trained models as files for other programs: ONNX, torch.export, and safetensors."""

from __future__ import annotations

import copy
import io
import json
import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

import protofed
from protofed.compute.seeding import generator
from protofed.data import DataOptions
from protofed.data.dates import DAY
from protofed.data.tables import Table
from protofed.errors import ConfigError, ModelError, ProtofedError, unknown_name
from protofed.models import SplitModel
from protofed.runs.run import Run
from protofed.storage.files import write_bytes, write_text
from protofed.trained import cards
from protofed.trained.inputs import from_files
from protofed.trained.metrics import data_of
from protofed.trained.opening import BATCH, Ruled, TrainedClient

SUFFIXES = {".onnx": "onnx", ".pt2": "torch_export", ".safetensors": "safetensors"}
TOLERANCE = 1e-5
"""Largest difference of a probability between an exported model and the original, beside rounding of the scores."""
SAMPLES = 200  #: Random samples on which both are compared
OUTPUTS = ("logits", "probabilities", "features")


class Exported(nn.Module):
    """The exported module: samples as they are in; scores, probabilities and features out.

    Features are those of the first network on which the scores depend.
    """

    def __init__(self, ruled: Ruled, samples: Tensor) -> None:
        super().__init__()
        self.ruled = ruled
        with torch.enable_grad():
            scores, features = self._run(ruled.stored(samples).clone().requires_grad_())
            slopes = torch.autograd.grad(scores.sum(), features, allow_unused=True) if scores.requires_grad else ()
        self.used = next((place for place, slope in enumerate(slopes) if slope is not None), 0)

    def _run(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the scores of prepared samples, and the features by each network that was run."""
        found: list[Tensor] = []
        networks = [module for module in self.ruled.modules() if isinstance(module, SplitModel)]
        hooks = [each.register_forward_hook(lambda *call: found.append(call[-1].features)) for each in networks]
        try:
            return self.ruled.scores(x)[self.ruled.rule], found or [self.ruled.model(x).features]
        finally:
            for hook in hooks:
                hook.remove()

    def forward(self, samples: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return ``(n, K)`` scores and probabilities and ``(n, d)`` features."""
        scores, features = self._run(self.ruled.stored(samples))
        return scores, scores.softmax(-1), features[self.used]


class Written(NamedTuple):
    """An exported file."""

    path: Path
    rule: str
    checked: str
    card: Path


def export(
    run: Run,
    trained: TrainedClient,
    path: Path,
    file_format: str = "",
    rule: str = "",
    files: Sequence[Path] = (),
    trust_code: bool = False,
) -> Written:
    """Write a client's model with its preprocessing, an inference rule and the names of the classes.

    The file is read back and compared with the client's predictions of real samples and of random ones. A model
    card is written beside it.

    Args:
        run: If its data are at hand, the real samples are the client's own test samples.
        file_format: ``onnx``, ``torch_export`` or ``safetensors``; "" to tell by the file's suffix.
        rule: As :meth:`TrainedClient.rule` takes it.
        files: Samples to take instead, as :func:`~protofed.trained.inputs.from_files` reads them.

    Raises:
        ModelError: If the rule cannot be exported, or the file gives other probabilities or classes.
    """
    chosen = file_format or SUFFIXES.get(path.suffix, "")
    if chosen not in WRITERS:
        raise ConfigError(unknown_name("format", chosen or path.suffix, WRITERS))
    rule, random = trained.rule(rule), _samples(trained)
    real, name = _real(run, trained, files, trust_code)
    try:
        facts = describe_model(trained, rule)
        content, open_file = _write(chosen, _trace(trained, rule, random[:2]), random[:2], facts)
    except ModelError as error:
        others = []
        for each in trained.rules:
            with suppress(ModelError):
                if each != rule and _trace(trained, each, random[:2]):
                    others.append(each)
        raise ModelError(
            f"the model cannot be exported as {chosen} by the rule {rule!r} of {trained.method.name} ({error}); "
            f"rules that can be: {', '.join(others) or 'none'}"
        ) from None
    read = open_file(content)
    for samples in (real, random):
        if read is not None and len(samples):
            _compare(trained, rule, path, read, samples)
    told = (
        f"{len(real)} {name} and {SAMPLES} random samples"
        if len(real)
        else f"{SAMPLES} random samples alone ({name})"
    )
    checked = f"equal to predict on {told}" if read else "not checked without onnxruntime"
    text = cards.model_card(run, trained, path.name, facts, checked)
    beside = path.with_name(path.name + cards.SUFFIX)
    write_bytes(path, content)
    write_text(beside, text)
    return Written(path, rule, checked, beside)


def _real(run: Run, trained: TrainedClient, files: Sequence[Path], trust_code: bool) -> tuple[Tensor, str]:
    """Return stored real samples and their description, or none and the reason."""
    if files:
        name = f"samples of {', '.join(map(str, files))}"
        found = torch.cat([samples for _, samples in from_files(files, trained, trained.resize)])
    else:
        name = f"test samples of {trained.name}"
        try:
            found = {c.name: c.test.x.cpu() for c in data_of(run, trust_code).clients}[trained.name]
        except ProtofedError as error:
            return torch.zeros(0), f"the run's data are not at hand: {error}"
    return trained.stored(found), name if len(found) else f"there are no {name}"


def _compare(trained: TrainedClient, rule: str, path: Path, read: Read, samples: Tensor) -> None:
    """Compare a file's probabilities and classes of stored samples with the client's predictions."""
    labels, scores = trained.classify(samples if trained.table is None else trained.table.apply(samples), rule)
    expected = scores.softmax(-1)
    # Scores such as squared distances may be large: what their rounding does to a probability is no difference.
    precision = torch.finfo(trained.classifier.model.head.weight.dtype)
    largest = scores.where(scores > precision.min, 0).abs().amax(-1, keepdim=True)
    allowed = TOLERANCE + 8 * precision.eps * largest.nan_to_num()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        found = torch.cat([read(part) for part in samples.split(BATCH)]).double()
    apart = (found - expected).abs().where(~(found.isnan() & expected.isnan()), 0)
    if bool((~(apart <= allowed)).any()):
        worst = float(apart.nan_to_num(torch.inf).max())
        raise ModelError(f"{path}: the exported model differs from the original by {worst:.2g}: not written")
    short = found.amax(-1, keepdim=True) - found.gather(-1, labels.clamp(min=0)[:, None])
    if bool(((short > 2 * allowed)[:, 0] & (labels >= 0)).any()):
        raise ModelError(f"{path}: its largest probability is not that of the rule {rule!r}'s class: not written")


def describe_model(trained: TrainedClient, rule: str) -> dict[str, str]:
    """Return the facts about a model that every exported file carries, as texts; lists are JSON."""
    classifier, table = trained.classifier, trained.table
    scale = classifier.model.scale
    normalisation = getattr(scale, "normalisation", None)
    first = "x / 127.5 - 1" if classifier.eight_bit else "table" if table else "none"
    first = first if classifier.encoder is None else "encoder"
    return {
        "producer": f"protofed {protofed.__version__}",
        "client": trained.name,
        "method": trained.method.name,
        "rule": rule,
        "class_names": json.dumps(list(classifier.class_names), ensure_ascii=False),
        "input_shape": json.dumps(find_stored_shape(trained)),
        "input_type": str(classifier.input_dtype).removeprefix("torch."),
        "preprocessing": json.dumps(
            {
                "first": first,
                "then_mean": list(normalisation.mean) if normalisation else None,
                "then_std": list(normalisation.std) if normalisation else None,
            }
        ),
        **({"input_columns": json.dumps([c.name for c in table.columns], ensure_ascii=False)} if table else {}),
        **({"input_values": json.dumps(values_meant(table, trained.data), ensure_ascii=False)} if table else {}),
        **({"table": json.dumps(table.to_dict(), ensure_ascii=False)} if table else {}),
        "outputs": json.dumps(list(OUTPUTS)),
    }


def values_meant(table: Table, data: DataOptions) -> dict[str, str | dict[int, str]]:
    """Return the meaning of the numbers in columns of dates and categories."""
    categories = {c.name: dict(enumerate(c.categories)) for c in table.columns if c.kind == "category"}
    dates = {
        name: "days since 2000-01-01" if other == DAY else f"days from this date to that of {other!r}"
        for name, other in data.dates.items()
    }
    return {**categories, **dates}


def find_stored_shape(trained: TrainedClient) -> list[int]:
    """Return the shape of a sample as it is stored: of tables, one number per column."""
    shape = trained.classifier.input_shape
    return list(shape) if trained.table is None else [len(trained.table.columns), *shape[1:]]


def _samples(trained: TrainedClient) -> Tensor:
    """Return random samples as they are stored; of tables, some values are missing if the run filled them in."""
    source = generator(0, "export")
    shape = (SAMPLES, *find_stored_shape(trained))
    if trained.classifier.eight_bit:
        return torch.randint(0, 256, shape, generator=source, dtype=torch.uint8)
    samples = torch.randn(shape, generator=source, dtype=trained.classifier.input_dtype)
    if trained.table is None:
        return samples
    for i, c in enumerate(trained.table.columns):
        part = samples[:, i]
        codes = torch.randint(0, max(1, len(c.categories)), part.shape, generator=source)
        samples[:, i] = codes if c.kind == "category" else part * c.scale + c.mean
    if trained.data.missing != "refuse":
        samples[torch.rand(shape, generator=source) < 0.1] = torch.nan
    return samples


class _FixedPool(nn.Module):
    """Adaptive average pooling of vectors of one width, as the matrix product that other programs know."""

    matrix: Tensor

    def __init__(self, pool: nn.Module, width: int, like: Tensor) -> None:
        super().__init__()
        self.register_buffer("matrix", pool(torch.eye(width, dtype=like.dtype)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.matrix


def _trace(trained: TrainedClient, rule: str, samples: Tensor) -> nn.Module:
    """Return a module of only those operations and tensors on which the outputs by a rule depend."""
    try:
        own = replace(trained, classifier=copy.deepcopy(trained.classifier))
        model = Exported(own.model(rule), samples)
        with torch.no_grad():
            _fix_pools(model, samples)
            first, second = (model(samples)[0].nan_to_num() for _ in range(2))
        module = _program(model, samples).module()
    except Exception as error:  # tracing raises many types
        raise ModelError(_first_line(error)) from None
    if not torch.equal(first, second):
        raise ModelError("its scores differ from one call to the next")
    module.graph.eliminate_dead_code()
    needed = {node.target for node in module.graph.nodes if node.op == "get_attr"}
    for name in {name for name, _ in (*module.named_parameters(), *module.named_buffers())} - needed:
        owner, _, last = name.rpartition(".")
        delattr(module.get_submodule(owner), last)
    module.recompile()
    return module


def _program(module: nn.Module, samples: Tensor) -> torch.export.ExportedProgram:
    return torch.export.export(module, (samples,), dynamic_shapes=({0: torch.export.Dim("n")},), strict=False)


def _fix_pools(model: Exported, samples: Tensor) -> None:
    """Replace the pooling that maps to ``d`` features, of every network, by a matrix product."""
    for network in [module for module in model.modules() if isinstance(module, SplitModel)]:
        pool = getattr(network.extractor, "map", None)
        if isinstance(pool, nn.AdaptiveAvgPool1d):
            widths: list[int] = []
            hook = pool.register_forward_pre_hook(lambda _, inputs, to=widths: to.append(inputs[0].shape[-1]))
            model(samples)
            hook.remove()
            if widths:
                network.extractor.map = _FixedPool(pool, widths[0], network.head.weight)


def _first_line(error: Exception) -> str:
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__)[:200]


Read = Callable[[Tensor], Tensor]  #: Returns the probabilities of stored samples by a file
Open = Callable[[bytes], Read | None]  #: Opens the content of a file; None if its reader is not installed


def _write(file_format: str, module: nn.Module, samples: Tensor, facts: dict[str, str]) -> tuple[bytes, Open]:
    """Return the content of a file, and its reader."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            written: tuple[bytes, Open] = WRITERS[file_format](module, samples, facts)
            return written
    except ImportError as error:
        raise ConfigError(f"--format {file_format} needs {error.name}: pip install 'protofed[onnx]'") from None
    except Exception as error:  # as tracing does
        raise ModelError(_first_line(error)) from None


class _Plain(nn.Module):
    """A module that is hidden from the exporter, which would put it in eval mode."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.hidden = (module,)

    def forward(self, samples: Tensor) -> tuple[Tensor, ...]:
        result: tuple[Tensor, ...] = self.hidden[0](samples)
        return result


def _onnx(module: nn.Module, samples: Tensor, facts: dict[str, str]) -> tuple[bytes, Open]:
    import onnx

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        torch.onnx.export(
            _Plain(module),
            (samples,),
            path,
            input_names=["samples"],
            output_names=list(OUTPUTS),
            dynamic_axes={name: {0: "n"} for name in ("samples", *OUTPUTS)},
            dynamo=False,
        )
        made = onnx.load(str(path))
    for name, text in facts.items():
        made.metadata_props.add(key=name, value=text)
    return made.SerializeToString(), _open_onnx


def _open_onnx(content: bytes) -> Read | None:
    try:
        import onnxruntime
    except ImportError:
        return None
    onnxruntime.set_default_logger_severity(3)
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return lambda samples: torch.from_numpy(session.run(["probabilities"], {"samples": samples.numpy()})[0])


def _torch_export(module: nn.Module, samples: Tensor, facts: dict[str, str]) -> tuple[bytes, Open]:
    buffer = io.BytesIO()
    extra = {"protofed.json": json.dumps(facts, ensure_ascii=False)}
    torch.export.save(_program(module, samples), buffer, extra_files=extra)
    return buffer.getvalue(), _open_torch_export


def _open_torch_export(content: bytes) -> Read:
    module = torch.export.load(io.BytesIO(content)).module()
    return lambda samples: module(samples)[1]


def _safetensors(module: nn.Module, samples: Tensor, facts: dict[str, str]) -> tuple[bytes, Open]:
    """Write a traced module: a network's weights under their names, others as received.… and state.…."""
    state = module.state_dict()
    names = {
        name.removeprefix("ruled.").removeprefix("model."): name for name in state if name.startswith("ruled.")
    }
    names = {own.replace("./", ".").replace("/", "."): name for own, name in names.items()}

    def opened(content: bytes) -> Read:
        empty = copy.deepcopy(module)
        for name in names.values():
            empty.state_dict()[name].zero_()
        empty.load_state_dict({names[own]: tensor for own, tensor in load(content).items()}, strict=False)
        return lambda samples: empty(samples)[1]

    weights = {own: state[name].detach().clone().contiguous() for own, name in names.items()}
    # One entry, because safetensors does not keep the order of several.
    return save(weights, {"protofed": json.dumps(facts, ensure_ascii=False)}), opened


WRITERS: dict[str, Any] = {"onnx": _onnx, "torch_export": _torch_export, "safetensors": _safetensors}
