"""Log lines as JSON, for programs that collect logs: where ``PROTOFED_LOG=json`` is in the environment."""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime

from protofed.errors import ConfigError

VARIABLE = "PROTOFED_LOG"


class JsonLine(logging.Formatter):
    """One object per line: ``time`` (UTC, ISO 8601), ``level``, ``logger`` and ``message``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def format_as_asked() -> None:
    """Set the format of protofed's and Flower's log handlers that the environment asks for."""
    form = os.environ.get(VARIABLE, "text")
    if form not in ("text", "json"):
        raise ConfigError(f"{VARIABLE}={form!r} in the environment: must be text or json")
    if form == "text":
        return
    own, flower = logging.getLogger("protofed"), logging.getLogger("flwr")
    if not own.handlers:
        own.addHandler(logging.StreamHandler())
        own.propagate = False
    for handler in {*own.handlers, *flower.handlers}:
        handler.setFormatter(JsonLine())
