"""`python -m benchmarks.middle [--seeds FIRST:END] [--limit SECONDS] [--json FILE] [--page] [--profile SEED]`.

A comparison of many seeds takes hours: `--json FILE` appends each pair of runs, so that it can be interrupted and gone
on with, and `--json FILE --page` writes what the file has to docs/benchmarks.md. Seeds 0 to 199 are for development;
5000 to 5199 are reserved for the final comparison.
"""

from __future__ import annotations

import argparse
import cProfile
import datetime
import pstats
from pathlib import Path

from benchmarks.harness.files import save
from benchmarks.harness.result import Record
from benchmarks.harness.run import Target, hardware, write_page
from benchmarks.middle.compare import print_comparison, read_pairs, result
from benchmarks.middle.one import run_solver
from benchmarks.middle.problems import middle_problem

SHOWN = 45  # functions of a profile


def seed_range(text: str) -> range:
    """`FIRST:END`, END not included; or one seed."""
    first, _, end = text.partition(":")
    return range(int(first), int(end) if end else int(first) + 1)


def profile(seed: int, limit_s: float) -> None:
    """Where the solver spends its time."""
    profiler = cProfile.Profile()
    print(profiler.runcall(run_solver, middle_problem(seed), limit_s))
    pstats.Stats(profiler).sort_stats("cumulative").print_stats(SHOWN)


def write_result(path: str, limit_s: float) -> None:
    """Write the pairs in a file to docs/benchmarks.md."""
    pairs, target = read_pairs(Path(path)), Target()
    command = f"`python -m benchmarks.middle --seeds {pairs[0].seed}:{pairs[-1].seed + 1} --limit {limit_s:g}`"
    today = datetime.date.today().isoformat()
    save(Record("middle", result(pairs, limit_s), command, today, hardware()), target.results)
    write_page(target)


parser = argparse.ArgumentParser(prog="python -m benchmarks.middle", description=__doc__)
parser.add_argument("--seeds", type=seed_range, default=range(48), help="FIRST:END; 0:48 by default")
parser.add_argument("--limit", type=float, default=60.0, help="seconds for each run; 60 by default")
parser.add_argument("--json", help="append each pair of runs to this file, one line of JSON each")
parser.add_argument("--page", action="store_true", help="run nothing; write the runs in --json to the page")
parser.add_argument("--profile", type=int, metavar="SEED", help="only profile the solver on this seed")
arguments = parser.parse_args()
if arguments.profile is not None:
    profile(arguments.profile, arguments.limit)
elif arguments.page:
    write_result(arguments.json, arguments.limit)
else:
    print_comparison(arguments.seeds, arguments.limit, arguments.json)
