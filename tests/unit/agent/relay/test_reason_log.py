"""The log of failures: each reason once, until it changes or there was success."""

from __future__ import annotations

import logging

import pytest

from jellybean_agent.relay.traffic import ReasonLog


def test_a_reason_is_logged_once_until_it_changes_or_there_was_success(caplog: pytest.LogCaptureFixture) -> None:
    log = ReasonLog(logging.getLogger("test.reasons"))
    for who, text in (("a", "x"), ("a", "x"), ("b", "x"), ("a", "y"), ("a", "x")):
        log.failed(who, "dial", text)
    log.failed("a", "offer", "x", logging.ERROR)
    assert [record.getMessage() for record in caplog.records] == ["x", "x", "y", "x", "x"]
    assert caplog.records[-1].levelno == logging.ERROR
    assert (log.succeeded("a"), log.succeeded("a"), log.succeeded("b")) == (True, False, True)
    log.failed("a", "dial", "x")
    assert len(caplog.records) == 6


def test_only_so_many_reasons_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    log = ReasonLog(logging.getLogger("test.reasons"))
    for number in range(1025):
        log.failed(str(number), "dial", "x")
    caplog.clear()
    log.failed("1024", "dial", "x")
    log.failed("1", "dial", "x")
    assert caplog.records == []
    log.failed("0", "dial", "x")
    assert len(caplog.records) == 1, "the oldest was forgotten"
