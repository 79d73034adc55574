"""Text models of Hugging Face's transformers from a local folder, trained by clients or as a frozen encoder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook

from protofed.errors import ConfigError, ModelError
from protofed.models.catalogue import Backbone, TextOptions, architecture
from protofed.models.text import TextBackbone, Texts, average
from protofed.models.weights import find_weights, read_weights
from protofed.options import named, remote
from protofed.untrusted import limits
from protofed.untrusted.reading import parse_json, read_text

_MODULES = 2**12
_BUFFERS = 2**24
_LARGEST = 2**27
"""Of a number in ``config.json``; periods of positions are up to 10⁷."""


@dataclass(frozen=True)
class TransformersOptions(TextOptions):
    """Options of ``transformers``, which takes tokens of the model's own tokenizer."""

    weights: str = named("", "folder of save_pretrained: config.json and model.safetensors", of="weights")
    pooling: Literal["mean", "first"] = remote(
        "mean", "features: the mean over a text's tokens | its first token's"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokens and not self.weights:
            raise ValueError("weights must name a folder with config.json and model.safetensors")


class Pretrained(nn.Module):
    """The last hidden states of a model, pooled; tokens count from 1, and 0 stands for none."""

    def __init__(self, folder: Path, pooling: str) -> None:
        super().__init__()
        self.model, self.pooling = _load(folder), pooling
        self.vocabulary: int = self.model.get_input_embeddings().num_embeddings

    def forward(self, tokens: Tensor) -> Tensor:
        """Return ``(B, width)`` features of tokens ``(B, L)``."""
        ids = (tokens - 1).clamp(0, self.vocabulary - 1)
        # A text without words is one token, so that attention has something to look at.
        present = (tokens > 0) | (torch.arange(tokens.shape[1], device=tokens.device) == 0)
        states: Tensor = self.model(input_ids=ids, attention_mask=present.long()).last_hidden_state
        return states[:, 0] if self.pooling == "first" else average(states, present.long())


def _load(folder: Path) -> Any:
    """Return the model in a folder; the library opens no file itself, so that none can lead it to code."""
    try:
        from transformers import AutoConfig, AutoModel
        from transformers.utils import logging
    except ImportError:
        raise ConfigError(
            "transformers needs the package transformers: pip install 'protofed[transformers]'"
        ) from None
    tensors = read_weights(folder / "model.safetensors")
    verbosity, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        config = AutoConfig.for_model(**_read_settings(folder / "config.json", len(tensors)))
        if not hasattr(type(config)(), "vocab_size") or getattr(config, "sub_configs", None):
            raise ValueError(f"{config.model_type} takes not only texts")  # images' parts may be downloaded
        with torch.device("meta"), _few_modules():
            kind = AutoModel.from_config(config, attn_implementation="eager", trust_remote_code=False)
        claimed = sum(tensor.numel() for tensor in (*kind.parameters(), *kind.buffers()))
        if claimed > 2 * sum(tensor.numel() for tensor in tensors.values()) + _BUFFERS:
            raise ValueError(f"its config.json means a model of {claimed} numbers, more than its weights")
        with torch.device("cpu"):  # weights are loaded, also where a model is only measured on the device meta
            model, told = type(kind).from_pretrained(
                None, config=config, state_dict=tensors, attn_implementation="eager", output_loading_info=True
            )
    except Exception as error:  # the library raises almost anything
        why = " ".join(str(error).split())[:200]
        raise ModelError(f"transformers: {folder}: holds no model of save_pretrained ({why})") from None
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()
    if missing := sorted(name for name in told["missing_keys"] if not name.startswith("pooler.")):
        raise ModelError(f"transformers: {folder}: its file of weights lacks {missing[0]}")
    if getattr(model, "pooler", None) is not None:
        model.pooler = None  # nothing here uses it, and some files lack it
    return model


def _read_settings(path: Path, tensors: int) -> dict[str, Any]:
    """Return the settings of a model of texts without those that name code; ValueError for unlikely ones."""
    found = parse_json(read_text(path, limits.TOML_BYTES))
    if not isinstance(found, dict):
        raise ValueError("its config.json is not an object")
    for name, value in found.items():
        if name.endswith("_config") and value:
            raise ValueError(f"its config.json has {name}: a plain model of texts has none")
        if isinstance(value, int) and value > (tensors if "layer" in name else _LARGEST):
            raise ValueError(f"its config.json says {name} = {value}, for {tensors} tensors of weights")
    kept = {name: value for name, value in found.items() if not name.endswith(("_implementation", "auto_map"))}
    return {"model_type": "none", **kept}


@contextmanager
def _few_modules() -> Iterator[None]:
    """Raise ValueError when many modules are made."""
    left = _MODULES

    def count(*_: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise ValueError(f"its config.json means a model of more than {_MODULES} modules")

    handle = register_module_module_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()


def build_pretrained(options: TransformersOptions, input_shape: tuple[int, ...]) -> TextBackbone:
    """Return a model for samples of a shape."""
    if not options.weights:
        raise ConfigError("transformers: set weights to a folder with config.json and model.safetensors")
    texts = Texts(options.places, input_shape, "transformers")
    body = Pretrained(find_weights("transformers", options.weights), options.pooling)
    most = getattr(body.model.config, "max_position_embeddings", texts.length)
    if texts.length > most:
        raise ConfigError(
            f"transformers: the model takes {most} tokens, not {texts.length}: set data.text_length={most}"
        )
    return TextBackbone(texts, body)


@architecture(
    "transformers",
    "a text model of Hugging Face from a local folder: texts as tokens of its tokenizer (data.tokenizer)",
    TransformersOptions,
    images=False,
)
def _transformers(input_shape: tuple[int, ...], d: int, options: TransformersOptions) -> Backbone:
    """The model without a head; all of it is trained."""
    return Backbone(build_pretrained(options, input_shape))
