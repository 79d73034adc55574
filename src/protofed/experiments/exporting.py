"""Trained models as files for other programs: ONNX, torch.export, and safetensors."""

from __future__ import annotations

import copy
import io
import json
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

import protofed
from protofed.errors import ConfigError, DataError, ModelError, unknown_name
from protofed.experiments.trained import TrainedClient
from protofed.files import write_bytes
from protofed.models import Classifier
from protofed.seeding import generator

SUFFIXES = {".onnx": "onnx", ".pt2": "torch_export", ".safetensors": "safetensors"}
TOLERANCE = 1e-5
"""Largest difference of a probability between an exported model and the original."""
SAMPLES = 200
"""Samples on which both are compared."""


class Exported(nn.Module):
    """What is exported: samples as they are in; logits, probabilities and features out.

    Args:
        classifier: The model with its preprocessing.
    """

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, samples: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return ``(n, K)`` logits and probabilities and ``(n, d)`` features."""
        features, logits = self.classifier.model(self.classifier.stored(samples))
        return logits, logits.softmax(-1), features


OUTPUTS = ("logits", "probabilities", "features")


def export(trained: TrainedClient, path: Path, format: str = "") -> Path:
    """Write a client's model with its preprocessing and the names of the classes.

    The file is read back, and its probabilities of random samples are compared with the original's. It classifies
    by the head.

    Args:
        trained: The client.
        path: The file; replaced whole.
        format: ``onnx``, ``torch_export`` or ``safetensors``; "" to tell by the file's suffix.

    Raises:
        ConfigError: If there is no such format, or a package is not installed.
        ModelError: If the model cannot be exported, or the file gives other probabilities.
        OutputError: If the file cannot be written.
    """
    chosen = format or SUFFIXES.get(path.suffix, "")
    if chosen not in WRITERS:
        raise ConfigError(unknown_name("format", chosen or path.suffix, WRITERS))
    samples = _samples(trained)
    model = Exported(_traceable(trained.classifier, samples[:2])).eval()
    with torch.no_grad():
        expected = model(samples)[1]
    content, read = _written(chosen, model, samples[:2], described(trained))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = read(content, samples)
    if found is not None and not torch.allclose(found, expected, rtol=0, atol=TOLERANCE, equal_nan=True):
        worst = float((found - expected).abs().max())
        raise ModelError(f"{path}: the exported model differs from the original by {worst:.2g}: not written")
    write_bytes(path, content)
    return path


def described(trained: TrainedClient) -> dict[str, str]:
    """Return the facts about a model that every exported file carries, as texts; lists are JSON."""
    classifier, table = trained.classifier, trained.table
    scale = classifier.model.scale
    normalisation = getattr(scale, "normalisation", None)
    return {
        "producer": f"protofed {protofed.__version__}",
        "client": trained.name,
        "method": trained.method.name,
        "class_names": json.dumps(list(classifier.class_names), ensure_ascii=False),
        "input_shape": json.dumps(stored_shape(trained)),
        "input_type": str(classifier.input_dtype).removeprefix("torch."),
        "preprocessing": json.dumps(
            {
                "first": "x / 127.5 - 1" if classifier.eight_bit else "table" if table else "none",
                "then_mean": list(normalisation.mean) if normalisation else None,
                "then_std": list(normalisation.std) if normalisation else None,
            }
        ),
        **({"input_columns": json.dumps([c.name for c in table.columns], ensure_ascii=False)} if table else {}),
        **({"table": json.dumps(table.to_dict(), ensure_ascii=False)} if table else {}),
        "outputs": json.dumps(list(OUTPUTS)),
    }


def stored_shape(trained: TrainedClient) -> list[int]:
    """Return the shape of a sample as it is stored: of tables, one number per column."""
    shape = trained.classifier.input_shape
    return list(shape) if trained.table is None else [len(trained.table.columns), *shape[1:]]


def _samples(trained: TrainedClient) -> Tensor:
    """Return random samples as they are stored; of tables, some values are missing if the run filled them in."""
    source = generator(0, "export")
    shape = (SAMPLES, *stored_shape(trained))
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


def _traceable(classifier: Classifier, samples: Tensor) -> Classifier:
    """Return a copy without the networks of the method, whose map to ``d`` features is a matrix product."""
    copied = copy.deepcopy(classifier)
    model = copied.model
    model.extras = nn.ModuleDict()
    pool = getattr(model.extractor, "map", None)
    if isinstance(pool, nn.AdaptiveAvgPool1d):
        widths: list[int] = []
        hook = pool.register_forward_pre_hook(lambda _, inputs: widths.append(inputs[0].shape[-1]))
        with torch.no_grad():
            copied(samples)
        hook.remove()
        model.extractor.map = _FixedPool(pool, widths[0], model.head.weight)
    with torch.no_grad():  # so that constants of the preprocessing exist before tracing
        copied(samples)
    return copied


Read = Callable[[bytes, Tensor], Tensor | None]


def _written(format: str, model: Exported, samples: Tensor, facts: dict[str, str]) -> tuple[bytes, Read]:
    """Return the content of a file, and what reads it back."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            written: tuple[bytes, Read] = WRITERS[format](model, samples, facts)
            return written
    except (ConfigError, ModelError, DataError):
        raise
    except ImportError as error:
        raise ConfigError(f"--format {format} needs {error.name}: pip install 'protofed[onnx]'") from None
    except Exception as error:  # tracing raises many types
        why = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ModelError(f"the model cannot be exported as {format} ({why[:200]})") from None


def _onnx(model: Exported, samples: Tensor, facts: dict[str, str]) -> tuple[bytes, Read]:
    import onnx

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        torch.onnx.export(
            model,
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
    return made.SerializeToString(), _read_onnx


def _read_onnx(content: bytes, samples: Tensor) -> Tensor | None:
    """Return the probabilities by onnxruntime; None where it is not installed."""
    try:
        import onnxruntime
    except ImportError:
        return None
    onnxruntime.set_default_logger_severity(3)
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(["probabilities"], {"samples": samples.numpy()})[0])


def _torch_export(model: Exported, samples: Tensor, facts: dict[str, str]) -> tuple[bytes, Read]:
    program = torch.export.export(model, (samples,), dynamic_shapes=({0: torch.export.Dim("n")},))
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={"protofed.json": json.dumps(facts, ensure_ascii=False)})
    return buffer.getvalue(), _read_torch_export


def _read_torch_export(content: bytes, samples: Tensor) -> Tensor:
    module = torch.export.load(io.BytesIO(content)).module()
    with torch.no_grad():
        probabilities: Tensor = module(samples)[1]
    return probabilities


def _safetensors(model: Exported, samples: Tensor, facts: dict[str, str]) -> tuple[bytes, Read]:
    weights = {n: t.detach().contiguous() for n, t in model.classifier.model.state_dict().items()}
    # One entry, because safetensors does not keep the order of several.
    return save(weights, {"protofed": json.dumps(facts, ensure_ascii=False)}), lambda content, samples: None


Written = Callable[[Exported, Tensor, dict[str, str]], tuple[bytes, Read]]
WRITERS: dict[str, Any] = {"onnx": _onnx, "torch_export": _torch_export, "safetensors": _safetensors}
