"""How many lines one place in the program, and one peer, may log."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator

import pytest

from jellybean_agent import about
from jellybean_agent.telemetry.logs import LimitedHandler, Text
from jellybean_agent.telemetry.repeats import RepeatLimit, RepeatLimits

LIMITS = RepeatLimits(interval_s=10.0, lines=5, peer_lines=2, peers=4)


class Log:
    """A log with a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.stream = 0.0, io.StringIO()
        monkeypatch.setattr("sys.stderr", self.stream)
        self.handler = LimitedHandler(RepeatLimit(LIMITS, lambda: self.now_s))
        self.handler.setFormatter(Text("%(levelname)s %(message)s"))
        self.log = logging.getLogger("repeats")

    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()


@pytest.fixture
def one(monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    found = Log(monkeypatch)
    found.log.propagate, found.log.level = False, logging.DEBUG
    found.log.addHandler(found.handler)
    yield found
    found.log.removeHandler(found.handler)
    found.log.propagate, found.log.level = True, logging.NOTSET


def test_a_peer_fills_no_log_whatever_texts_it_causes(one: Log) -> None:
    for number in range(1000):
        one.log.warning("refused: %d", number, extra=about("mallory"))
    assert one.lines() == ["WARNING refused: 0", "WARNING refused: 1"]
    one.now_s = 11.0
    one.log.info("ready")
    assert one.lines()[2:] == ["WARNING 998 more lines like this one were left out: refused: 2", "INFO ready"]
    one.log.info("ready")
    assert len(one.lines()) == 5


def test_many_peers_fill_no_log_either(one: Log) -> None:
    for number in range(1000):
        one.log.warning("refused", extra=about(f"10.0.{number // 256}.{number % 256}"))
    assert len(one.lines()) <= LIMITS.lines


def test_one_peer_hides_nothing_of_another_nor_of_another_place(one: Log) -> None:
    def refuse(peer: str) -> None:
        one.log.warning("refused: %s", peer, extra=about(peer))

    for _ in range(100):
        refuse("mallory")
    refuse("alice")
    one.log.warning("failed")
    assert one.lines() == ["WARNING refused: mallory"] * 2 + ["WARNING refused: alice", "WARNING failed"]


def test_tracebacks_are_few(one: Log) -> None:
    for _ in range(100):
        try:
            raise ValueError
        except ValueError:
            one.log.exception("failed")
    assert one.lines().count("ERROR failed") == LIMITS.peer_lines


def test_templates_that_are_made_anew_count_as_one(one: Log) -> None:
    """As those of asyncio, which puts addresses and tasks into its own."""
    for number in range(100):
        one.log.error(f"socket.accept() out of system resource {number}")
    assert len(one.lines()) == LIMITS.lines


def test_what_was_left_out_is_said_at_the_end(one: Log) -> None:
    for _ in range(7):
        one.log.warning("refused")
    one.handler.close()
    assert one.lines()[-1] == "WARNING 2 more lines like this one were left out: refused"


def test_who_asks_for_debug_lines_gets_all(one: Log) -> None:
    for _ in range(100):
        one.log.debug("seen")
    assert len(one.lines()) == 100


def test_the_example_is_one_line_and_short(one: Log) -> None:
    for _ in range(9):
        one.log.warning("refused: %s", "x\n" * 10_000)
    one.now_s = 11.0
    one.log.info("ready")
    assert len(one.lines()) == 7 and len(one.lines()[5]) < 400


def test_lines_of_the_process_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    from jellybean_agent import configure_logging

    root = logging.getLogger()
    before, level, stream = root.handlers[:], root.level, io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    try:
        configure_logging("gateway")
        for number in range(10_000):
            logging.getLogger("aiohttp.server").error("bad request %d", number)
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    assert len(stream.getvalue().splitlines()) == RepeatLimits().lines


def test_arguments_that_do_not_fit_end_nothing(one: Log) -> None:
    for _ in range(10):
        one.handler.handle(logging.LogRecord("x", logging.WARNING, "file", 1, "refused: %d", ("x",), None))
    one.log.warning("goes on")
    assert one.lines()[-1] == "WARNING goes on"
