"""Puts faults into product lines drawn at random, and says which of them the tests catch.

    python -m tests.tools.mutate --measure       # which tests execute which lines: once, and after changes
    python -m tests.tools.mutate --room gateway --count 20 --seed 7

A fault is caught if a test that covers its line fails, or does not end in time. Faults are put into a copy of the
repository.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from tests.tools.mutate.covering import FOLDER, Covering, measure
from tests.tools.mutate.draw import Drawn, Equivalents, draw
from tests.tools.mutate.rooms import room_files
from tests.tools.mutate.tree import copied
from tests.tools.mutate.trial import Trials, Verdict

MAKE_TEST = "not slow and not nightly"  # the tests of `make test`


def main(arguments: list[str] | None = None) -> int:
    """Measure, or try faults; exit status 1 if fewer are caught than `--at-least`."""
    options = _parser().parse_args(arguments)
    root = Path(
        subprocess.run(
            ["git", "rev-parse", "--show-toplevel"], check=True, capture_output=True, text=True
        ).stdout.strip()
    )
    store = root / FOLDER / "lines.sqlite"
    if options.measure:
        with copied(root) as tree:
            count = measure(tree, store, options.tests, options.select, options.processes)
        print(f"{count} tests measured: {store.relative_to(root)}")
        return 0
    faults, equivalents = _drawn(root, options)
    with closing(Covering(store, root, options.tests)) as covering:
        tests = [
            covering.of_lines(each.file, each.fault.line, each.fault.last_line, each.fault.in_function)
            for each in faults
        ]
    with copied(root) as tree:
        trials = Trials(tree, options.timeout, options.test_timeout)
        existing = trials.existing(test for covered in tests for test in covered)
        verdicts = []
        for number, (drawn, covered) in enumerate(zip(faults, tests, strict=True), 1):
            verdict = trials.run(drawn, [test for test in covered if test.name in existing])
            verdicts.append(verdict)
            if not options.json:
                print(f"{number:3}  {_line(drawn, verdict)}", flush=True)
    return _report(options, faults, verdicts, equivalents)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.tools.mutate", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--room", action="append", help="agent, gateway, solver, ..., all, or a path; repeatable (default: all)"
    )
    parser.add_argument("--count", type=int, default=20, help="number of faults (default: 20)")
    parser.add_argument("--seed", type=int, default=1, help="draws the lines and their faults (default: 1)")
    parser.add_argument(
        "--timeout", type=float, default=300.0, metavar="S", help="of the tests of one fault (default: 300 s)"
    )
    parser.add_argument("--test-timeout", type=float, default=60.0, metavar="S", help="of one test (default: 60 s)")
    parser.add_argument("--at-least", type=float, default=0.0, metavar="SHARE", help="share to catch for exit status 0")
    parser.add_argument("--json", action="store_true", help="print one JSON document in place of text")
    parser.add_argument("--list", action="store_true", help="print the drawn faults as diffs and run nothing")
    parser.add_argument("--measure", action="store_true", help="record which lines the tests execute")
    parser.add_argument("--tests", nargs="+", default=[], metavar="PATH", help="only tests below these paths")
    parser.add_argument(
        "--select", default=MAKE_TEST, metavar="MARKERS", help=f"tests to measure (default: {MAKE_TEST})"
    )
    parser.add_argument("--processes", type=int, default=1, help="that measure at a time (default: 1)")
    return parser


def _drawn(root: Path, options: argparse.Namespace) -> tuple[list[Drawn], list[Drawn]]:
    """The faults to try, and the equivalent ones that were drawn before the last of them."""
    faults: list[Drawn] = []
    equivalents: list[Drawn] = []
    stream = draw(root, room_files(root, options.room or ["all"]), options.seed, Equivalents.read())
    for drawn in stream:
        if len(faults) == options.count:
            break
        (faults if drawn.reason is None else equivalents).append(drawn)
    if options.list:
        print("\n".join(drawn.diff() for drawn in faults))
        sys.exit(0)
    return faults, equivalents


def _line(drawn: Drawn, verdict: Verdict) -> str:
    return f"{verdict.outcome:9} {drawn.name}" + (
        f"\n     by {verdict.by}" if verdict.by else f" ({verdict.tests} tests)"
    )


def _report(options: argparse.Namespace, faults: list[Drawn], verdicts: list[Verdict], equivalents: list[Drawn]) -> int:
    """Print the rate and what survived; returns the exit status."""
    caught = sum(verdict.outcome == "caught" for verdict in verdicts)
    share = caught / len(faults) if faults else 1.0
    if options.json:
        entries = [
            {
                "file": each.file,
                "line": each.fault.line,
                "mutation": each.fault.mutation,
                "text": each.text,
                "diff": each.diff(),
            }
            | asdict(verdict)
            for each, verdict in zip(faults, verdicts, strict=True)
        ]
        taken_out = [{"file": each.file, "line": each.fault.line, "reason": each.reason} for each in equivalents]
        document = {
            "seed": options.seed,
            "room": options.room,
            "caught": caught,
            "faults": entries,
            "equivalent": taken_out,
        }
        print(json.dumps(document, indent=2))
        return int(share < options.at_least)
    for drawn, verdict in zip(faults, verdicts, strict=True):
        if verdict.outcome != "caught":
            print(f"\n{verdict.outcome}: {drawn.name}\n{drawn.diff()}", end="")
    for drawn in equivalents:
        print(f"\ntaken out, the program does the same: {drawn.name}: {drawn.reason}", end="")
    print(
        f"\n{caught} of {len(faults)} faults caught ({share:.0%}), seed {options.seed}; "
        f"{len(equivalents)} equivalent taken out"
    )
    return int(share < options.at_least)


if __name__ == "__main__":
    sys.exit(main())
