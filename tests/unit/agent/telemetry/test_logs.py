from __future__ import annotations

import argparse
import io
import json
import logging
import re
import sys

import pytest

from jellybean_agent import add_log_options, configure_logging, log_fields
from jellybean_agent.telemetry.logs import MAX_EXCEPTION, MAX_FIELD, MAX_MESSAGE, Json


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch):
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


def logged(monkeypatch: pytest.MonkeyPatch, *arguments: str | None, **environment: str) -> str:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    configure_logging("edge-1", *arguments)
    log = logging.getLogger("test")
    log.debug("too much")
    log.warning("it is\n%s", "so", extra=log_fields(request_id="r 1", worker="", trace_id=None))
    return stream.getvalue()


def test_a_line_for_people_says_what_it_is_about_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    found = logged(monkeypatch)
    assert found.endswith('WARNING it is\\nso request_id="r 1"\n')
    assert "too much" not in found


def test_a_line_for_machines_is_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = logged(monkeypatch, JELLYBEAN_LOG="json").splitlines()
    found = json.loads(line)
    assert found.pop("time").endswith("+00:00")
    assert found == {
        "level": "warning",
        "logger": "test",
        "process": "edge-1",
        "message": "it is\\nso",
        "request_id": "r 1",
    }


def test_the_command_line_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    found = logged(monkeypatch, "text", "debug", JELLYBEAN_LOG="json", JELLYBEAN_LOG_LEVEL="error")
    assert "DEBUG too much" in found


def test_a_format_that_is_none_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "JELLYBEAN_LOG=xml is none of text, json" in logged(monkeypatch, JELLYBEAN_LOG="xml")


def test_an_exception_is_part_of_the_object() -> None:
    try:
        raise ZeroDivisionError("by nothing")
    except ZeroDivisionError:
        record = logging.LogRecord("x", logging.ERROR, "file", 1, "it %s", ("failed",), sys.exc_info())
    line = json.loads(Json("edge-1").format(record))
    assert (line["message"], line["level"], line["process"]) == ("it failed", "error", "edge-1")
    assert line["exception"].endswith("ZeroDivisionError: by nothing")
    plain = logging.LogRecord("x", logging.INFO, "file", 1, "fine", (), None)
    assert "exception" not in json.loads(Json("edge-1").format(plain))


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_levels_that_may_be_chosen(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = argparse.ArgumentParser()
    add_log_options(parser)
    given = parser.parse_args([f"--log-level={level}", "--log-format=json"])
    assert logged(monkeypatch, given.log_format, given.log_level).count("\n") == {"debug": 2, "error": 0}.get(level, 1)
    assert parser.parse_args([]).log_level is None


# Line ends, escape sequences of 7 and 8 bits, what removes text, separators of Unicode, overrides of the direction
FORGERIES = [
    "a\n2026-11-28 ERROR forged",
    "a\r\nb",
    "\x1b[2J",
    "\x9b31m",
    "\x7f\x08",
    "a\u2028b\x85c",
    "\u202egnp",
    "\udc9b",
]


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("foreign", FORGERIES)
def test_foreign_text_forges_no_line_and_sends_no_escape_code(
    monkeypatch: pytest.MonkeyPatch, foreign: str, log_format: str
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    configure_logging("edge-1", log_format)
    log = logging.getLogger("test")
    log.warning("refused: %s", foreign, extra=log_fields(request_id=foreign))
    try:
        raise ValueError(foreign)
    except ValueError:
        log.exception("failed: %s", foreign)
    lines = stream.getvalue().split("\n")
    assert all(character.isprintable() for line in lines for character in line)
    if log_format == "text":
        assert [line for line in lines if line[:1].isdigit()] == [lines[0], lines[1]]
        assert all(line.startswith("  ") for line in lines[2:-1])
    else:
        first, second, rest = lines
        assert rest == "" and json.loads(second)["exception"].startswith("  Traceback")
        assert all(character.isprintable() for value in json.loads(first).values() for character in str(value))


@pytest.mark.parametrize("value", ["x status=OK", "x\tstatus=OK", "a=b", 'x" status="OK', "x\u3000status=OK"])
def test_a_value_is_one_field(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    configure_logging("edge-1")
    logging.getLogger("test").warning("m", extra=log_fields(request_id=value))
    _, _, fields = stream.getvalue().rstrip("\n").partition("WARNING m ")
    (name, text), *others = re.findall(r'(\w+)=("(?:[^"\\]|\\.)*"|\S+)', fields)
    assert (name, others) == ("request_id", []) and fields == f"{name}={text}"


def test_what_a_line_takes_of_a_text_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    configure_logging("edge-1")
    try:
        raise ValueError("e" * 2**20)
    except ValueError:
        logging.getLogger("test").exception("m" * 2**20, extra=log_fields(request_id="r" * 2**20))
    assert len(stream.getvalue()) < 2 * (MAX_MESSAGE + MAX_FIELD + MAX_EXCEPTION)
    assert "characters more" in stream.getvalue()
