"""Logging: lines as text or as JSON, on top of the standard library.

The fields of a line (request, operator, worker, ...) are passed as `extra=log_fields(...)`. The content of tensors is
never logged.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
LOG_VARIABLES = ("JELLYBEAN_LOG", "JELLYBEAN_LOG_LEVEL")
_FIELDS = "fields"


def log_fields(**fields: Any) -> dict[str, dict[str, Any]]:
    """The `extra` argument of a log call with these fields; empty ones are left out."""
    return {_FIELDS: {name: value for name, value in fields.items() if value not in (None, "")}}


def add_log_options(parser: argparse.ArgumentParser) -> None:
    """Add --log-format and --log-level."""
    parser.add_argument(
        "--log-format", choices=FORMATS, help=f"lines of the log (default: {LOG_VARIABLES[0]}, or text)"
    )
    parser.add_argument(
        "--log-level", choices=LEVELS, help=f"least that is logged (default: {LOG_VARIABLES[1]}, or info)"
    )


def configure_logging(process: str, log_format: str | None = None, level: str | None = None) -> str:
    """Log to stderr; returns the format. None is taken from its environment variable; without that, text and info."""
    found_format = _chosen(log_format, LOG_VARIABLES[0], FORMATS, "text")
    found_level = _chosen(level, LOG_VARIABLES[1], LEVELS, "info")
    handler = logging.StreamHandler()
    handler.setFormatter(Json(process) if found_format == "json" else Text("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=found_level.upper(), handlers=[handler], force=True)
    for name, known, used in ((LOG_VARIABLES[0], FORMATS, log_format), (LOG_VARIABLES[1], LEVELS, level)):
        given = os.environ.get(name)
        if used is None and given and given not in known:
            logging.getLogger("jellybean.log").warning("%s=%s is none of %s", name, given[:40], ", ".join(known))
    return found_format


def _chosen(given: str | None, variable: str, known: tuple[str, ...], default: str) -> str:
    found = given or os.environ.get(variable) or default
    return found if found in known else default


class Text(logging.Formatter):
    """A line of text, with its fields at the end."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields: Mapping[str, Any] = getattr(record, _FIELDS, {})
        return super().formatMessage(record) + "".join(f" {name}={value}" for name, value in fields.items())


class Json(logging.Formatter):
    """One JSON object per line."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": self._process,
            "message": record.getMessage(),
            **getattr(record, _FIELDS, {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
