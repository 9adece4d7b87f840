"""Tuned numbers of the search under a p99 latency.

The ablation behind them is docs/adr/0012-one-deadline-search.md: small problems with seeds 500 to 539 and 600 to 629
(benchmarks/deadline), fleets with seeds 600 and 601 (benchmarks/fleet_run.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from jellybean_solver.latency.estimate import CLOSED_FORM_RATIO


@dataclass(frozen=True, slots=True)
class DelaySettings:
    """Limits on the linearised delay of a fleet's requests. In the ablation, 2 of 7 fleets have no plan without them.

    After a late plan the next limit is delay x slowness ** -power, between `least_step` and `most_step` x delay.
    """

    tilt: float = 20.0  # Chernoff parameter theta x target: the bound on a fleet's p99 is close to its least there
    penalty: float = 3.25  # -ln p of the tail bound p that estimate.py allows at p99; its odds are 4 x 0.01 / 0.99
    least_step: float = 0.8  # a lower value skips cheaper plans
    most_step: float = 0.995  # a higher value needs more proposals
    power: float = 1.5  # above 1, since not all of the latency shrinks with the delay
    links: float = 0.97  # usable share of every link's bandwidth: on a full link the queue grows without end


@dataclass(frozen=True, slots=True)
class HeadroomSettings:
    """Headroom: the share of a fleet's link bandwidths left free. In the ablation, 3 of 7 fleets have no plan without.

    After a late plan it grows by the factor slowness ** power, between `least_growth` and `most_growth`.
    """

    waits: float = 12.0  # the first headroom makes the target this multiple of the mean wait of a burst on a link
    most: float = 0.5  # largest first headroom; more rules out cheap plans
    raises: int = 2  # how often headroom is raised for one selection; each raise rounds the selection once more
    power: float = 1.5  # above 1, since waits grow faster than utilisation
    least_growth: float = 1.25  # less needs more roundings
    most_growth: float = 3.0  # more skips cheaper plans
    filled: float = 0.95  # use of a link, over what headroom allows, from which on a late plan gets more headroom
    last_plan_s: float = 1.5  # kept for the last estimate, which takes 1.2 s with 1,000 sites and 10,000 workers
    last_plan_share: float = 0.1  # largest share of the time limit that is kept for it
    relaxations: int = 400  # solved for the lower bound at the end; more take longer and tighten it less and less


@dataclass(frozen=True, slots=True)
class MixSettings:
    """The descent over batch sizes and utilisations of plans that mix variants."""

    proposals: int = 200  # plans, each with a coarse simulation
    judgements: int = 5  # plans that the judge sees
    judged_below: float = 1.1  # a first plan that is later than this multiple, by the coarse simulation, is not judged
    aim: float = 0.99  # multiple of the target at which the corrected coarse simulation counts as in time
    refinements: int = 4  # plans that the judge sees once the search ends with one in time
    near: float = 1.08  # multiple of the target up to which a corrected coarse figure may be that of a plan in time
    level_step: float = 0.95  # one step of an operator's utilisation
    finer_step: float = 0.98  # the same once a plan is in time
    several: int = 3  # steps down that are tried at once, beside one
    slow_part: float = 0.25  # of the time of the slowest operator, from which on others are slowed down, too
    threads: int = 2  # plans that are sought at the same time
    least_level: float = 0.3  # lowest share of the utilisation cap


@dataclass(frozen=True, slots=True)
class DeadlineSettings:
    """Effort of the search. A plan is in time if its p99 latency meets the target, else late."""

    first_share: float = 0.5  # of the time left, for the cheapest plan: the rest is for plans in time
    proposal_share: float = 0.25  # of the time left, for each plan under a restriction, so that several can be tried
    proposals: int = 60  # plans proposed while none is in time
    improvements: int = 30  # plans proposed after the first one in time
    empty_proposals: int = 3  # infeasible restrictions, which are quickly refuted, that count as one proposal
    least_saving: float = 0.005  # relative: nodes that can save less than this are not worth a simulation
    margin_step: float = 0.8  # the next plan's highest load of the pools or links, as a share of the present load
    largest_step: float = 0.5  # lower limit of that share, for plans that are far too slow
    finest_step: float = 0.01  # relative; finer steps between two margins or delays cost proposals
    longer_delay: float = (
        1.015  # the next delay limit over the one that gave a plan in time, if no longer limit was tried
    )
    busy_link: float = 0.8  # utilisation of a link from which on the next plan may leave a margin on links
    full_link: float = 0.95  # utilisation of a link from which on that margin is tried before other restrictions
    # Only plans with an estimated p99 up to this multiple of the target are simulated: where children fan out, the
    # estimate is high, and a lower value hides plans. Simulations of late plans end early. (docs/design/solver.md)
    judged_above: float = CLOSED_FORM_RATIO[1]
    counted: int = 24  # plans judged for the lower bound, with all batch sizes (late_counts.py): each takes up to 0.2 s
    simulations: int = 16  # after so many, only plans whose estimate meets the target are simulated
    fleet_proposals: int = 20  # `proposals` for fleets
    fleet_improvements: int = 3  # `improvements` for fleets
    fleet_judgements: tuple[float, ...] = (1.0, 0.8, 0.6)  # shares of the target that fleets are planned for in turn
    delay: DelaySettings = field(default_factory=DelaySettings)
    headroom: HeadroomSettings = field(default_factory=HeadroomSettings)
    mix: MixSettings = field(default_factory=MixSettings)


DEFAULT_SETTINGS = DeadlineSettings()
QUICK_SETTINGS = replace(
    DEFAULT_SETTINGS, proposals=8, improvements=4, counted=0
)  # for dozens of problems, one after the other
