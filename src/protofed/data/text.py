"""Free text as vectors: the mean of its tokens' rows in the static table of the package wordllama.

The table (32,000 tokens of 256 numbers) and its tokenizer are read from the installed package. Its own code is not
run, because it looks for the tokenizer on the Hugging Face hub and sets up logging for the whole process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import load
from torch import Tensor

from protofed.data.tables import RawColumn
from protofed.errors import ConfigError, DataError
from protofed.untrusted import limits

WIDTH = 256
"""Numbers per text."""
_FILES = ("weights/l2_supercat_256.safetensors", "tokenizers/l2_supercat_tokenizer_config.json")
_MOST = 2**17
"""Most vectors that a process remembers, 128 MiB: every method and seed of a comparison reads the same texts."""
_known: dict[bytes, Tensor] = {}


class _Static(NamedTuple):
    tokenizer: Any
    rows: Tensor
    digest: str


@cache
def _static() -> _Static:
    spec = find_spec("wordllama")  # finds a package without importing it
    homes = (spec and spec.submodule_search_locations) or ()
    try:
        from tokenizers import Tokenizer

        home = Path(next(iter(homes)))
        weights, vocabulary = ((home / name).read_bytes() for name in _FILES)
    except (ImportError, StopIteration, OSError):
        raise ConfigError("text needs the package wordllama: pip install 'protofed[text]'") from None
    digest = blake2b(weights + vocabulary, digest_size=4).hexdigest()
    return _Static(Tokenizer.from_str(vocabulary.decode()), load(weights)["embedding.weight"].float(), digest)


def embed(
    texts: Sequence[str | None], at: Callable[[int], str] = "text {}".format, *, empty: bool = True
) -> Tensor:
    """Return texts as vectors, each the mean of its tokens' rows: equal to ``WordLlamaInference.embed``.

    Args:
        at: Describes the place of a text, by its number.
        empty: Texts may be absent (None, NaN) or empty; their vectors are 0.

    Returns:
        ``(n, 256)`` float32.
    """
    tokenizer, rows, _ = _static()
    vectors, first = torch.zeros(len(texts), WIDTH), torch.zeros(1, dtype=torch.int64)
    for number, text in enumerate(texts):
        if text is None or text != text or text == "":
            if not empty:
                raise DataError(f"{at(number)} has no text: fill it in, or set data.missing=mean for {WIDTH} zeros")
            continue
        if not isinstance(text, str):
            raise DataError(f"{at(number)} is no text but of type {type(text).__name__}")
        if len(text) > limits.TEXT:
            raise DataError(f"{at(number)} has {len(text):,} characters: expected at most {limits.TEXT:,}")
        if "\0" in text:
            raise DataError(f"{at(number)} holds a NUL character: expected text in UTF-8")
        try:
            key = blake2b(text.encode(), digest_size=16).digest()
        except UnicodeEncodeError:
            raise DataError(f"{at(number)} holds half of a surrogate pair: expected text in UTF-8") from None
        if (vector := _known.get(key)) is None:
            tokens = torch.tensor(tokenizer.encode(text, add_special_tokens=False).ids, dtype=torch.int64)
            vector = F.embedding_bag(tokens, rows, first, mode="mean")[0]
            if len(_known) < _MOST:
                _known[key] = vector
        vectors[number] = vector
    return vectors


def columns(name: str) -> tuple[RawColumn, ...]:
    """Return the columns of numbers that a column of text becomes; their names tell tables apart."""
    return tuple(RawColumn(f"{name} [wordllama {_static().digest} {i}]", "text") for i in range(WIDTH))


def embedded(
    table: Mapping[str, Sequence[Any]], names: Sequence[str], known: Sequence[RawColumn], where: str, *, empty: bool
) -> dict[str, Sequence[Any]]:
    """Return a table with columns of numbers in place of its columns of text."""
    found = {name: values for name, values in table.items() if name not in names}
    for name in names:
        if name not in table:
            raise DataError(f"{where}: lacks the column {name!r}; it has {', '.join(map(str, table))}")
        own = columns(name)
        if not set(own) <= set(known):
            raise ConfigError(f"data.text={name}: the run had another version of wordllama: install that one")
        vectors = embed(table[name], partial("{}: column {!r}, row {}".format, where, name), empty=empty)
        found |= {column.name: values for column, values in zip(own, vectors.double().T.numpy(), strict=True)}
    return found
