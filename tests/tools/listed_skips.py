"""Fails tests that are skipped for a reason that is not listed in `tests.support.skips`. A plug-in of pytest."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.skips import Absent, NotInstalled

COMPLETE = "JELLYBEAN_TEST_COMPLETE"  # 1: what wheels and Debian packages bring is installed
_PREFIX = "Skipped: "


def pytest_configure(config: pytest.Config) -> None:
    complete = os.environ.get(COMPLETE) == "1"
    config.pluginmanager.register(_ListedSkips((*Absent,) if complete else (*Absent, *NotInstalled)), "listed-skips")


class _ListedSkips:
    def __init__(self, reasons: tuple[str, ...]) -> None:
        self._reasons = reasons

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report: pytest.TestReport = yield  # type: ignore[assignment,misc]
        self._judge(report)
        return report  # type: ignore[return-value]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(self) -> Iterator[None]:
        report: pytest.CollectReport = yield  # type: ignore[assignment,misc]
        self._judge(report)
        return report  # type: ignore[return-value]

    def _judge(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        """Make a failure of a skip for another reason, and of an expected failure, whether it fails or not."""
        if hasattr(report, "wasxfail"):
            del report.wasxfail
            report.outcome = "failed"
            report.longrepr = "an expected failure (xfail) is not allowed: assert what the product does today"
        elif report.skipped and not _reason(report).startswith(self._reasons):
            report.outcome = "failed"
            report.longrepr = (
                f'skipped with a reason that is not allowed here, "{_reason(report)}": tests/support/skips.py lists '
                f"them, and {COMPLETE}=1 excludes those that an installation can take away"
            )


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix(_PREFIX)
