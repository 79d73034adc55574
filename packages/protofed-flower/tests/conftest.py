"""What tests of nodes share: folders of three clients, one thread, and nothing remembered of the test before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from support import ordinary


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folders of three ordinary clients."""
    from network import write_folders

    return write_folders(tmp_path / "data", ordinary())


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Compute on one thread, and let a process that has seen visits forget them."""
    with suppress(ImportError):  # tests that need no Flower run without it
        from network import forget

        forget()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
