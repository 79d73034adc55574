"""Free text as vectors or as tokens.

Vectors are the mean of a text's rows in the static table of the package wordllama. The table (32,000 tokens of 256
numbers) and its tokenizer are read from the installed package. Its own code is not run, because it looks for the
tokenizer on the Hugging Face hub and sets up logging for the whole process.

Tokens are numbers of words, for networks that learn their meaning: 0 stands for no word, so that all texts are of
one length. Without a tokenizer they are hashes of the words, on which all parties agree without a vocabulary.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from hashlib import blake2b
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load
from torch import Tensor

from protofed.data.tables import RawColumn, at_row
from protofed.errors import ConfigError, DataError
from protofed.untrusted import limits
from protofed.untrusted.reading import read_bytes, reason

WIDTH = 256  #: Numbers per text
_FILES = ("weights/l2_supercat_256.safetensors", "tokenizers/l2_supercat_tokenizer_config.json")
HASHES = 2**24  #: Numbers of tokens are below it, so that float32 holds them exactly
LENGTH = 4096  #: Most tokens of a text
TOKENIZER = "tokenizer.json"
_PART = re.compile(r"\S{1,4096}")
_WORD = re.compile(r"\w{1,64}|[^\w\s]")
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
        empty: Texts may be absent (None, NaN) or empty; their vectors are 0.

    Returns:
        ``(n, 256)`` float32.
    """
    tokenizer, rows, _ = _static()
    vectors, first = torch.zeros(len(texts), WIDTH), torch.zeros(1, dtype=torch.int64)
    for number, text, raw in _iterate_texts(texts, at, WIDTH, empty):
        key = blake2b(raw, digest_size=16).digest()
        if (vector := _known.get(key)) is None:
            tokens = torch.tensor(tokenizer.encode(text, add_special_tokens=False).ids, dtype=torch.int64)
            vector = F.embedding_bag(tokens, rows, first, mode="mean")[0]
            if len(_known) < _MOST:
                _known[key] = vector
        vectors[number] = vector
    return vectors


def tokenize(
    texts: Sequence[str | None],
    length: int,
    at: Callable[[int], str] = "text {}".format,
    *,
    tokenizer: str = "",
    empty: bool = True,
) -> Tensor:
    """Return the first tokens of texts, counted from 1, and 0 after the last.

    Words are parts of a text in the form NFKC without case: up to 64 letters, digits and underscores, or another
    character that is no space. Each is a hash of its characters from 1 to 2²⁴ - 1, which float32 holds exactly.

    Args:
        tokenizer: A file ``tokenizer.json``, or a folder with it, whose tokens take the place of words.

    Returns:
        ``(n, length)`` float32.
    """
    known = _tokenizer(tokenizer, length).tokenizer if tokenizer else None
    found = np.zeros((len(texts), length), dtype=np.float32)
    for number, text, _ in _iterate_texts(texts, at, length, empty):
        own = list(islice(_words(text), length)) if known is None else known.encode(text).ids
        found[number, : len(own)] = own if known is None else np.array(own) + 1
    return torch.from_numpy(found)


def _iterate_texts(
    texts: Sequence[str | None], at: Callable[[int], str], width: int, empty: bool
) -> Iterator[tuple[int, str, bytes]]:
    """Yield the number of each text that is there, the text, and its characters in UTF-8."""
    for number, text in enumerate(texts):
        if text is None or text != text or text == "":
            if not empty:
                raise DataError(f"{at(number)} has no text: fill it in, or set data.missing=mean for {width} zeros")
            continue
        if not isinstance(text, str):
            raise DataError(f"{at(number)} is not text but of type {type(text).__name__}")
        if len(text) > limits.TEXT:
            raise DataError(f"{at(number)} has {len(text):,} characters: expected at most {limits.TEXT:,}")
        if "\0" in text:
            raise DataError(f"{at(number)} holds a NUL character: expected text in UTF-8")
        try:
            yield number, text, text.encode()
        except UnicodeEncodeError:
            raise DataError(f"{at(number)} holds half of a surrogate pair: expected text in UTF-8") from None


def _words(text: str) -> Iterator[int]:
    for part in _PART.finditer(text):  # so that little of a long text is normalised
        for match in _WORD.finditer(unicodedata.normalize("NFKC", part[0]).casefold()):
            yield _hash(match[0])


@lru_cache(maxsize=2**16)
def _hash(word: str) -> int:
    return 1 + int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "big") % (HASHES - 1)


class _Tokenizer(NamedTuple):
    tokenizer: Any
    digest: str


@cache
def _tokenizer(place: str, length: int) -> _Tokenizer:
    path = Path(place).expanduser()
    path = path / TOKENIZER if path.is_dir() else path
    try:
        from tokenizers import Tokenizer

        raw = read_bytes(path, limits.JSON_BYTES)
        found = Tokenizer.from_str(raw.decode())
        found.no_padding()
        found.enable_truncation(length)
    except ImportError:
        raise ConfigError("data.tokenizer needs the package tokenizers: pip install 'protofed[text]'") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"data.tokenizer: {path}: cannot be read ({reason(error)})") from None
    except Exception as error:  # the package raises plain exceptions
        raise ConfigError(f"data.tokenizer: {path}: not a tokenizer ({str(error)[:200]})") from None
    if found.get_vocab_size() >= HASHES:
        raise ConfigError(f"data.tokenizer: {path}: has {found.get_vocab_size():,} tokens: at most {HASHES:,}")
    return _Tokenizer(found, blake2b(raw, digest_size=4).hexdigest())


@dataclass(frozen=True)
class Form:
    """What becomes of a column of text."""

    kind: Literal["vectors", "tokens"] = "vectors"
    length: int = 0
    tokenizer: str = ""

    @property
    def width(self) -> int:
        """Numbers per text."""
        return self.length if self.kind == "tokens" else WIDTH

    def columns(self, name: str) -> tuple[RawColumn, ...]:
        """Return the columns of numbers that a column of text becomes; their names tell tables apart."""
        if self.kind == "vectors":
            return tuple(RawColumn(f"{name} [wordllama {_static().digest} {i}]", "text") for i in range(WIDTH))
        how = f"tokenizer {_tokenizer(self.tokenizer, self.length).digest}" if self.tokenizer else "word"
        return tuple(RawColumn(f"{name} [{how} {i}]", "token") for i in range(self.length))

    def read(self, texts: Sequence[str | None], at: Callable[[int], str], *, empty: bool) -> Tensor:
        """Return ``(n, width)`` numbers of texts; see :func:`embed` and :func:`tokenize`."""
        if self.kind == "vectors":
            return embed(texts, at, empty=empty)
        return tokenize(texts, self.length, at, tokenizer=self.tokenizer, empty=empty)

    def replace_texts(
        self,
        table: Mapping[str, Sequence[Any]],
        names: Sequence[str],
        known: Sequence[RawColumn],
        where: str,
        *,
        empty: bool,
    ) -> dict[str, Sequence[Any]]:
        """Return a table with columns of numbers in place of its columns of text."""
        found = {name: values for name, values in table.items() if name not in names}
        for name in names:
            if name not in table:
                raise DataError(f"{where}: lacks the column {name!r}; it has {', '.join(map(str, table))}")
            own = self.columns(name)
            if not set(own) <= set(known):
                other = "tokenizer: set data.tokenizer to that one" if self.tokenizer else ""
                other = other or "version of wordllama: install that one"
                raise ConfigError(f"data.text={name}: the run had another {other}")
            numbers = self.read(table[name], partial(at_row, where, name), empty=empty)
            found |= {c.name: values for c, values in zip(own, numbers.double().T.numpy(), strict=True)}
        return found
