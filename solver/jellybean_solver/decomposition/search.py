"""The cheapest plan of many workflows on one fleet, by prices for what they have in common.

Each workflow alone is a small program. At given prices of the common workers and links all of them are solved apart
(pricing.py); the sum of their bounds less what the capacities earn is a lower bound for the whole problem. The relaxed
master (master.py) combines their local plans and gives the next prices (rounds.py). As it has few rows besides one per
workflow, nearly every workflow gets a single local plan there. Then common workers become whole (whole_workers.py).

The first prices are those of the linear relaxation of all workflows together, or of a sample of them, each of which
stands for several. On the sample prices are improved, too, so that all workflows are solved once only, for the bound.
"""

from __future__ import annotations

import math
from concurrent.futures import Executor
from dataclasses import dataclass, replace

import numpy as np

from jellybean_solver.decomposition.assembly import assembled
from jellybean_solver.decomposition.local_program import LocalProgram
from jellybean_solver.decomposition.prices import Prices
from jellybean_solver.decomposition.rounds import Effort, Rounds
from jellybean_solver.decomposition.settings import DEFAULT_DECOMPOSITION, DecompositionSettings, is_small
from jellybean_solver.decomposition.split import Split
from jellybean_solver.decomposition.union import Relaxation, relaxation
from jellybean_solver.decomposition.whole_workers import WholeWorkers
from jellybean_solver.decomposition.work import Tell, Work
from jellybean_solver.milp.interruptible_run import solver_threads
from jellybean_solver.model.plan import Certificate, Plan
from jellybean_solver.outcome import Clock, termination_of


@dataclass(frozen=True)
class Decomposed:
    """What the search found. `plan`: None without one; its cost is a placeholder, `cost` has it. `bound`: lower bound.

    `cost` and `bound` include what the parts are worth that are `left_out` (numbers). `prices`: those of the best
    bound. `impossible`: numbers of parts that have no plan of their own. `unserved`: about how many parts the common
    workers and links did not suffice for. `priced`: local plans. `late`: time was up.
    """

    plan: Plan | None
    cost: float
    bound: float
    prices: Prices
    priced: int
    impossible: tuple[int, ...] = ()
    unserved: float = 0.0
    late: bool = False
    left_out: tuple[int, ...] = ()


def decompose(
    split: Split,
    gap: float,
    clock: Clock,
    settings: DecompositionSettings = DEFAULT_DECOMPOSITION,
    tell: Tell = lambda share, known: None,
) -> Decomposed:
    """Find prices, then a plan for every workflow, to a relative `gap`. `tell`: hears how far that is."""
    effort = Effort(split, gap, clock, settings, Work(_expected(len(split.parts), settings), tell))
    every = range(len(split.parts))
    sample = every if len(every) <= settings.few else _sample(split, settings.sample)
    programs = {number: LocalProgram(split, number, effort.local_gap) for number in sample}
    lacking = tuple(number for number, program in programs.items() if not program.possible)
    if impossible := tuple(number for number in lacking if math.isinf(split.worths[number])):
        return Decomposed(None, math.inf, math.inf, Prices.listed(split), 0, impossible)
    programs = {number: program for number, program in programs.items() if program.possible}
    if not programs and len(sample) == len(every):
        forgone = float(split.worths.sum())
        return Decomposed(None, forgone, forgone, Prices.listed(split), 0, left_out=tuple(every))
    weight = len(every) / len(sample)
    relaxed = relaxation(split, tuple(programs.values()), weight)
    with solver_threads(settings.threads) as pool:
        if len(sample) == len(every):
            return _few(effort, pool, programs, relaxed)
        return _many(effort, pool, programs, weight, relaxed.prices)


def _expected(parts: int, settings: DecompositionSettings) -> int:
    """About how many times a workflow is solved: usual numbers of rounds."""
    if parts <= settings.few:
        return 4 * parts
    return 4 * settings.sample + parts + 2 * settings.share


def _sample(split: Split, size: int) -> list[int]:
    """Workflows evenly spaced among all, ordered by their rate."""
    rates = [sum(source.rate_per_s for source in part.sources) for part in split.parts]
    order = np.argsort(rates, kind="stable")
    return [int(order[at]) for at in np.linspace(0, len(order) - 1, size).round().astype(int)]


def _few(effort: Effort, pool: Executor, programs: dict[int, LocalProgram], relaxed: Relaxation) -> Decomposed:
    """All workflows are in every round. A plan may follow from the relaxation at once; if not, from many rounds."""
    rounds = Rounds(effort, pool, range(len(effort.split.parts)), 1.0, programs)
    rounds.run(relaxed.prices, 1)
    if rounds.impossible:
        return _impossible(rounds)
    whole = WholeWorkers(effort, rounds, programs)
    if effort.split.problem.may_leave_out and is_small(effort.split.problem):
        rounds.bound = max(rounds.bound, whole.together(None))
    else:
        whole.together(dict(zip(programs, relaxed.variants, strict=True)))
    if not whole.is_near and (whole.best is None or effort.clock.left() != 0.0):
        rounds.run(rounds.next_prices, effort.settings.rounds)
        whole.run()
    return _decomposed(effort, rounds, whole)


def _many(
    effort: Effort, pool: Executor, programs: dict[int, LocalProgram], weight: float, prices: Prices
) -> Decomposed:
    """Prices are improved on a sample, whose programs are given; then all workflows are solved, once for the bound."""
    every = range(len(effort.split.parts))
    first = replace(effort, clock=effort.clock.share(effort.settings.sample_part))
    sample = Rounds(first, pool, tuple(programs), weight, programs)
    sample.run(prices, effort.settings.sample_rounds)
    if sample.impossible:
        return _impossible(sample)
    rounds = Rounds(effort, pool, every, 1.0, programs)
    rounds.master.add(sample.master.plans, 0.0)
    rounds.run(sample.center, 1)
    if rounds.impossible:
        return _impossible(rounds)
    whole = WholeWorkers(effort, rounds, None)
    whole.run()
    return _decomposed(effort, rounds, whole)


def _impossible(rounds: Rounds) -> Decomposed:
    return Decomposed(None, math.inf, math.inf, rounds.center, rounds.priced, tuple(rounds.impossible))


def _decomposed(effort: Effort, rounds: Rounds, whole: WholeWorkers) -> Decomposed:
    bound, late = max(rounds.bound, 0.0), effort.clock.left() == 0.0
    if whole.best is None:
        unserved = rounds.master.relaxed().unserved
        return Decomposed(None, math.inf, bound, rounds.center, rounds.priced, (), unserved, late)
    cost, plans, packing = whole.best
    bound = min(bound, cost)
    certificate = Certificate.of(cost, bound, termination_of(cost, bound, out_of_time=late, gap=effort.gap))
    plan = assembled(effort.split, plans, packing, certificate) if plans else None
    served = {plan.part for plan in plans}
    left_out = tuple(number for number in rounds.numbers if number not in served)
    return Decomposed(plan, cost, bound, rounds.center, rounds.priced, late=late, left_out=left_out)
