from __future__ import annotations

import argparse
import io
import json
import logging
import sys

import pytest

from jellybean_agent import add_log_options, configure_logging, log_fields
from jellybean_agent.telemetry.logs import Json


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
    assert found.endswith("WARNING it is\nso request_id=r 1\n")
    assert "too much" not in found


def test_a_line_for_machines_is_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = logged(monkeypatch, JELLYBEAN_LOG="json").splitlines()
    found = json.loads(line)
    assert found.pop("time").endswith("+00:00")
    assert found == {
        "level": "warning",
        "logger": "test",
        "process": "edge-1",
        "message": "it is\nso",
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
