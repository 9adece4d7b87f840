"""SIGTERM is an exception in every block, whatever other blocks and handlers the process has."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack

import pytest

from jellybean.termination import TerminatedError, signals_held, terminated_as_interrupted

pytestmark = pytest.mark.usefixtures("default_sigterm")


def _terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_sigterm_is_an_exception_in_a_block_and_no_longer_after_it() -> None:
    with pytest.raises(TerminatedError), terminated_as_interrupted():
        _terminate()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_overlapping_blocks_share_the_handler_until_the_last_one_ends() -> None:
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(terminated_as_interrupted())
        second.enter_context(terminated_as_interrupted())
        first.close()
        with pytest.raises(TerminatedError):
            _terminate()
        second.close()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_block_that_never_ends_does_not_disarm_a_later_one() -> None:
    with ExitStack() as never_closed:
        never_closed.enter_context(terminated_as_interrupted())
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # by other code of the process
        with pytest.raises(TerminatedError), terminated_as_interrupted():
            assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL, "the next line would end the tests"
            _terminate()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_handler_of_the_process_stays_unless_it_is_replaced() -> None:
    def own(_number: int, _frame: object) -> None:
        raise SystemExit(7)

    signal.signal(signal.SIGTERM, own)
    with pytest.raises(SystemExit), terminated_as_interrupted():
        _terminate()
    with pytest.raises(TerminatedError), terminated_as_interrupted(replaces=True):
        _terminate()
    assert signal.getsignal(signal.SIGTERM) is own


def test_a_signal_in_a_held_block_comes_at_its_end() -> None:
    steps: list[str] = []
    with pytest.raises(TerminatedError), terminated_as_interrupted():
        with signals_held():
            _terminate()
            _terminate()
            steps.append("held")
        steps.append("not reached")
    with pytest.raises(KeyboardInterrupt), signals_held():
        os.kill(os.getpid(), signal.SIGINT)
        steps.append("held too")
    assert steps == ["held", "held too"]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
