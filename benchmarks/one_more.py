"""One more site or workflow beside a plan, and which of many workflows are served; one process for each."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.harness.registry import benchmark
from benchmarks.harness.result import Result, Table, Topic

ADDED = (("sites", "100", "0"), ("sites", "1000", "0"), ("workflows", "20", "2000"), ("workflows", "100", "10000"))
MORE, SEEDS = "5", ("0",)
CHOSEN, LIMIT_S = (("100", "8000"),), "120"  # workflows, workers


@benchmark
def one_more(smoke: bool) -> Result:
    """Seconds to add a site or workflow without moving the others; worth, gap and seconds of choosing who is served."""
    added, chosen = ((("sites", "8", "0"),), (("6", "300"),)) if smoke else (ADDED, CHOSEN)
    more = [
        (kind, count, seed, _run("one_more", kind, seed, count, workers, MORE))
        for kind, count, workers in added
        for seed in SEEDS
    ]
    served = [
        (count, workers, seed, _run("who_is_served", seed, count, workers, LIMIT_S))
        for count, workers in chosen
        for seed in SEEDS
    ]
    complaints = sum(run["complaints"] for *_, run in (*more, *served))
    return Result(
        title="One more site or workflow, and who is served",
        topic=Topic.PLANNING,
        method="The problems are those of [unlike sites and many workflows](#many_workflows). The last "
        f"{MORE} are added to a plan of the others one after another (`plan --add`): seconds of `add_workflows`, which "
        "reads no documents. Who is served: serving all would take 120 % of the workers, and each workflow has a worth "
        "of its own. `tests/plan_check.py`, which shares no code with the solver, checks each plan.",
        reference="a second for one more; for who is served the bound that the solver proves.",
        tables=(
            Table.of(
                ("beside", "seed", "seconds of each", "USD/h before", "USD/h after"),
                [[f"{int(count):,} {kind}", seed, *_added(run)] for kind, count, seed, run in more],
                "One more",
            ),
            Table.of(
                ("workflows", "workers", "seed", "served", "worth served", "worth left out", "cost", "gap %", "s"),
                [[f"{int(count):,}", f"{int(workers):,}", seed, *_served(run)] for count, workers, seed, run in served],
                "Who is served (USD/h)",
            ),
        ),
        notes=(f"The checker has {complaints} complaints about these plans.",),
    )


def _run(module: str, *arguments: str) -> Mapping[str, Any]:
    command = [sys.executable, "-m", f"benchmarks.unlike.{module}", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    print(module, *arguments, done.stdout.strip(), file=sys.stderr, flush=True)
    found: Mapping[str, Any] = json.loads(done.stdout)
    return found


def _added(run: Mapping[str, Any]) -> list[str]:
    seconds = ", ".join(f"{one:.2f}" for one in run["seconds"])
    refused = " (the last did not fit)" if run["refused"] else ""
    return [seconds + refused, f"{run['before_usd_per_h']:.2f}", f"{run['after_usd_per_h']:.2f}"]


def _served(run: Mapping[str, Any]) -> list[str]:
    amounts = (run["worth_usd_per_h"], run["forgone_usd_per_h"], run["cost_usd_per_h"])
    return [str(run["served"]), *(f"{one:,.0f}" for one in amounts), f"{100 * run['gap']:.2f}", f"{run['seconds']:.0f}"]
