"""Other libraries' progress bars and warnings, kept off the user's screen."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings, log messages below errors, and Hugging Face progress bars inside the block."""
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
