"""Processor seconds of each test: a table (`--cost FILE`), and with it a limit for unit tests. A plug-in of pytest.

The limit applies with `--cost` alone: on a busy machine a test's processor time grows.

Counted are the seconds of the test's process and of its children that have ended, which other programs on the machine
hardly change. `python -m tests.tools.cost FILE...` prints the summary of such tables.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage

import pytest
from _pytest.runner import runtestprotocol

LIMIT_S = 0.5  # of a unit test's call: 4,000 unit tests must fit a run of minutes
REFERENCE_S = 0.02  # of `_reference_s` on two idle cores where the limit was set
MEASUREMENTS = 3  # of a test above the limit, in a process of its own; the least of all counts
OVERHEAD = "(imports, collection, plug-ins)"  # a table's row: what the processes cost beside their tests
_UNIT_TESTS = "tests/unit/"
_PATIENCE_S = 120.0
_PHASES = ("setup", "call", "teardown")
_COLUMNS = ("test", "tier", "seconds", *(f"{phase}_s" for phase in _PHASES))
_DEAREST = 20


@dataclass(frozen=True)
class TestCost:
    """Processor seconds of a test. A fixture of a module counts for the first test that uses it."""

    __test__ = False  # no class of tests

    test: str
    tier: str
    seconds: float
    phases_s: tuple[float, ...]


def processor_seconds() -> float:
    """Processor seconds of this process and of its children that were waited for."""
    used = [getrusage(which) for which in (RUSAGE_SELF, RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("cost")
    group.addoption("--cost", metavar="FILE", type=Path, help="write each test's processor seconds to a table (TSV)")
    group.addoption(
        "--cost-repeats", metavar="FILE", type=Path, help="run each test repeatedly; write its call's costs"
    )


def pytest_configure(config: pytest.Config) -> None:
    if (file := config.getoption("cost_repeats")) is not None:
        config.pluginmanager.register(_Repeats(file), "cost-repeats")
    config.pluginmanager.register(_Costs(config.getoption("cost")), "cost-of-tests")


@dataclass(eq=False)  # pluggy needs plug-ins that can be hashed
class _Costs:
    """Measures the tests of this process; the main process of a parallel run gathers the reports of all."""

    file: Path | None
    costs: list[TestCost] = field(default_factory=list)
    unrepeated: dict[str, str] = field(default_factory=dict)
    _workers_s: float = 0.0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        return (yield from _measured(item, "setup"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        return (yield from _measured(item, "call"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        return (yield from _measured(item, "teardown"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        report: pytest.TestReport = yield  # type: ignore[assignment,misc]
        if report.when == "call" and report.passed:
            item.user_properties.append(("passed", True))
        if report.when == "teardown":
            report.user_properties.append(("tier", _tier(item)))
            if self.file is not None and report.passed and _is_above_limit(report):
                _measure_again(item, report)
        return report  # type: ignore[return-value]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "teardown":
            return
        known = dict(report.user_properties)
        phases_s = tuple(float(known.get(f"{phase}_s", 0.0)) for phase in _PHASES)
        self.costs.append(TestCost(report.nodeid, str(known["tier"]), sum(phases_s), phases_s))
        if "unrepeated" in known:
            self.unrepeated[report.nodeid] = str(known["unrepeated"])

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """A worker of a parallel run has ended. It leaves no figure if it crashed."""
        self._workers_s += getattr(node, "workeroutput", {}).get("processor_s", 0.0)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if (output := getattr(session.config, "workeroutput", None)) is not None:
            output["processor_s"] = processor_seconds()
        elif self.file is not None:
            # The workers are children that were waited for, or not yet: count them once.
            children = getrusage(RUSAGE_CHILDREN)
            reaped_s = children.ru_utime + children.ru_stime if self._workers_s else 0.0
            beside_s = processor_seconds() - reaped_s + self._workers_s - sum(cost.seconds for cost in self.costs)
            write_table(self.file, [*self.costs, TestCost(OVERHEAD, "", beside_s, (0.0,) * len(_PHASES))])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for test, reason in self.unrepeated.items():
            terminalreporter.write_line(f"above {LIMIT_S} processor seconds, and not measured again: {test}: {reason}")


def _measured(item: pytest.Item, phase: str) -> Iterator[None]:
    before_s = processor_seconds()
    try:
        return (yield)
    finally:
        item.user_properties.append((f"{phase}_s", processor_seconds() - before_s))


def _tier(item: pytest.Item) -> str:
    return next((tier for tier in ("nightly", "slow") if item.get_closest_marker(tier)), "test")


def _is_above_limit(report: pytest.TestReport) -> bool:
    """True for a unit test of the first tier that has passed and cost more than the limit."""
    known = dict(report.user_properties)
    limited = report.nodeid.startswith(_UNIT_TESTS) and known["tier"] == "test"
    return limited and "passed" in known and float(known["call_s"]) > LIMIT_S


def _measure_again(item: pytest.Item, report: pytest.TestReport) -> None:
    """Fail the test if its least cost is above the limit.

    A measurement may hold another test's garbage, an import or a cache that the first test fills, or a busy machine's
    slower memory: one above the limit alone says nothing. The repeats are in a process of their own, as a second run
    here could meet, and leave behind, a changed fixture of its module.
    """
    seconds = [float(dict(report.user_properties)["call_s"])]
    if item.config.pluginmanager.hasplugin("timeout"):
        item.config.hook.pytest_timeout_cancel_timer(item=item)  # the time limit is the test's, which has ended
    repeated = _repeat(item)
    if isinstance(repeated, str):
        report.user_properties.append(("unrepeated", repeated))
        return
    seconds += repeated
    limit_s = LIMIT_S * slowness()
    if min(seconds) > limit_s:
        report.outcome = "failed"
        report.longrepr = (
            f"{item.nodeid} costs {min(seconds):.2f} processor seconds, and a unit test may cost {limit_s:.2f} here "
            f"(measured: {', '.join(f'{each:.2f}' for each in seconds)}): test a smaller case, share what it builds "
            "by a fixture of its module, or mark it slow and leave a short representative behind"
        )


def slowness() -> float:
    """How many times slower this machine is now than the one that the limit is for; at least 1.

    A limit in seconds alone would fail a test by chance on a slower or busier machine.
    """
    return max(1.0, min(_reference_s() for _ in range(MEASUREMENTS)) / REFERENCE_S)


def _reference_s() -> float:
    """Processor seconds of a fixed computation."""
    begun_s = time.process_time()
    table: dict[int, str] = {}
    for number in range(200_000):
        table[number & 1023] = str(number)
    return time.process_time() - begun_s


def _repeat(item: pytest.Item) -> list[float] | str:
    """The costs of the test's call in a process of its own, or the reason why it could not be repeated there."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    with tempfile.TemporaryDirectory(prefix="cost-") as folder:
        result = Path(folder, "result")
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={folder}/tests"]
        command += [f"--rootdir={item.config.rootpath}", f"--cost-repeats={result}", item.nodeid]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=_PATIENCE_S,
                check=False,
                cwd=item.config.rootpath,
                env=environment,
            )
        except subprocess.TimeoutExpired:
            return f"no end after {_PATIENCE_S:g} s"
        if done.returncode != 0 or not result.exists():
            printed = (done.stdout + done.stderr)[-300:]
            return f"it fails in a process of its own (exit status {done.returncode}): {printed}"
        return [float(line) for line in result.read_text(encoding="utf-8").split()]


@dataclass(eq=False)
class _Repeats:
    """Runs each test until its call is below the limit, up to `MEASUREMENTS` times."""

    file: Path

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool:
        for _ in range(MEASUREMENTS):
            item.user_properties.clear()
            reports = runtestprotocol(item, nextitem=None)
            if not all(report.passed for report in reports):
                break
            call_s = float(str(dict(item.user_properties)["call_s"]))
            with self.file.open("a", encoding="utf-8") as file:
                file.write(f"{call_s}\n")
            if call_s <= LIMIT_S:
                break
        return True


def write_table(file: Path, costs: Sequence[TestCost]) -> None:
    """Write the costs as tab-separated values, the dearest first."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, delimiter="\t", lineterminator="\n")
        writer.writerow(_COLUMNS)
        for cost in sorted(costs, key=lambda cost: -cost.seconds):
            figures = (f"{seconds:.3f}" for seconds in (cost.seconds, *cost.phases_s))
            writer.writerow((cost.test, cost.tier, *figures))


def read_table(file: Path) -> list[TestCost]:
    """Read what `write_table` wrote."""
    with file.open(encoding="utf-8", newline="") as stream:
        rows = csv.DictReader(stream, delimiter="\t")
        return [
            TestCost(
                row["test"],
                row["tier"],
                float(row["seconds"]),
                tuple(float(row[f"{phase}_s"]) for phase in _PHASES),
            )
            for row in rows
        ]


def summary(costs: Sequence[TestCost]) -> str:
    """The dearest tests, and the sums of folders and tiers; processor seconds."""
    tests = [cost for cost in costs if cost.test != OVERHEAD]
    lines = [f"{cost.seconds:9.2f}  {cost.test}" for cost in sorted(tests, key=lambda cost: -cost.seconds)[:_DEAREST]]
    folders: Counter[str] = Counter()
    tiers: Counter[str] = Counter()
    for cost in costs:
        folders[str(Path(cost.test.partition("::")[0]).parent) if cost.test != OVERHEAD else OVERHEAD] += cost.seconds
        tiers[cost.tier or OVERHEAD] += cost.seconds
    for title, sums in (("folder", folders), ("tier", tiers)):
        lines += ["", f"processor seconds per {title}"]
        lines += [f"{seconds:9.1f}  {name}" for name, seconds in sums.most_common()]
    total_s = sum(cost.seconds for cost in costs)
    return "\n".join([f"the dearest of {len(tests)} tests, processor seconds", *lines, "", f"{total_s:9.1f}  in all"])


if __name__ == "__main__":
    print(summary([cost for file in sys.argv[1:] for cost in read_table(Path(file))]))
