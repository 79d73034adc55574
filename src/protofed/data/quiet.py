"""Suppression of other libraries' progress bars and warnings."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings, log messages below level ERROR, and Hugging Face progress bars inside the block."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import datasets as hf

        level = logging.root.manager.disable
        shown = not hf.are_progress_bars_disabled()
        hf.disable_progress_bars()
        logging.disable(max(level, logging.WARNING))
        try:
            yield
        finally:
            logging.disable(level)
            if shown:
                hf.enable_progress_bars()
