"""Logging: lines as text or as JSON, on top of the standard library.

The fields of a line (request, operator, worker, ...) are passed as `extra=log_fields(...)`. The
content of tensors is never logged. What is foreign in a line cannot forge another one, nor a field
(`printable`), and who causes lines cannot fill a log with them (`RepeatLimit`).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

from jellybean_agent.telemetry.printable import printable
from jellybean_agent.telemetry.repeats import RepeatLimit

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
LOG_VARIABLES = ("JELLYBEAN_LOG", "JELLYBEAN_LOG_LEVEL")
_FIELDS = "fields"
_PEER = "peer"  # attribute of a record
MAX_FIELD, MAX_MESSAGE, MAX_EXCEPTION = 512, 4096, 16384  # characters of a line; further ones are left out
_AMBIGUOUS = re.compile(r"[\s=\"]")  # in a value: it could be read as further fields


def log_fields(**fields: Any) -> dict[str, Any]:
    """The `extra` argument of a log call with these fields; empty ones are left out."""
    return {_FIELDS: {name: value for name, value in fields.items() if value not in (None, "")}}


def about(peer: str) -> dict[str, Any]:
    """The `extra` argument, beside `log_fields`, of a line that a peer causes, for its own limit."""
    return {_PEER: peer}


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
    handler = LimitedHandler()
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


class LimitedHandler(logging.StreamHandler[TextIO]):
    """Writes lines to stderr, of one place in the code and one peer only so many in a time."""

    def __init__(self, limit: RepeatLimit | None = None) -> None:
        super().__init__()
        self._limit = limit or RepeatLimit()

    def emit(self, record: logging.LogRecord) -> None:
        for summary in self._limit.summaries():
            super().emit(summary)
        try:
            is_admitted = self._limit.admits(record, getattr(record, _PEER, ""))
        except Exception:  # noqa: BLE001  # arguments that do not fit their template: as logging
            self.handleError(record)
            return
        if is_admitted:
            super().emit(record)

    def close(self) -> None:
        for summary in self._limit.summaries(at_end=True):
            super().emit(summary)
        super().close()


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = getattr(record, _FIELDS, {})
    return fields


class Text(logging.Formatter):
    """A line of text, with its fields at the end; the lines of a traceback are indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message, MAX_MESSAGE)
        fields = (f" {name}={_quoted(str(value))}" for name, value in _fields(record).items())
        return super().formatMessage(record) + "".join(fields)

    def formatException(self, ei: Any) -> str:
        return _exception_text(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        return _exception_text(super().formatStack(stack_info))


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
            "message": printable(record.getMessage(), MAX_MESSAGE),
            **{name: _json_value(value) for name, value in _fields(record).items()},
        }
        if record.exc_info:
            line["exception"] = _exception_text(self.formatException(record.exc_info))
        return json.dumps(line)


def _quoted(value: str) -> str:
    """A field's value; in quotes if it could be read as more than one field."""
    text = printable(value, MAX_FIELD)
    if not _AMBIGUOUS.search(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _json_value(value: Any) -> Any:
    return value if isinstance(value, int | float | None) else printable(str(value), MAX_FIELD)


def _exception_text(text: str) -> str:
    """The end of a traceback, with each line indented, so that none looks like a line of the log."""
    shown = text if len(text) <= MAX_EXCEPTION else f"...{text[-MAX_EXCEPTION:]}"
    return "\n".join(f"  {printable(line, MAX_MESSAGE)}" for line in shown.split("\n"))
