"""A list of uploads that can be read twice without holding all of them in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from types import TracebackType

from safetensors.torch import load, save

from protofed.methods.contract import Upload


class Spool:
    """A sequence of uploads, kept in memory up to ``memory`` bytes and beyond that in a temporary file."""

    def __init__(self, memory: int = 2**28) -> None:
        self._left = memory
        self._kept: list[Upload] = []
        self._places: list[tuple[str, int]] = []
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def append(self, upload: Upload) -> None:
        """Add an upload at the end."""
        self._left -= sum(t.numel() * t.element_size() for t in upload.payload.values())
        if self._left >= 0:
            self._kept.append(upload)
            return
        data = save({name: tensor.contiguous() for name, tensor in upload.payload.items()})
        self._file.write(data)
        self._places.append((upload.client, len(data)))

    def __len__(self) -> int:
        return len(self._kept) + len(self._places)

    def __iter__(self) -> Iterator[Upload]:
        yield from self._kept
        start = 0
        for client, size in self._places:
            self._file.seek(start)
            start += size
            tensors = load(self._file.read(size))
            yield Upload(client, tensors)
