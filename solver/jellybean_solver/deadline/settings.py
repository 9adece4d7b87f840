"""Tuned numbers of the search under a p99 latency.

The ablation behind them is docs/adr/0012-one-deadline-search.md: small problems with seeds 500 to 539 and 600 to 629
(benchmarks/deadline), fleets with seeds 600 and 601 (benchmarks/fleet_run.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class DelaySettings:
    """Limits on the linearised delay of a fleet's requests; without them 2 of 7 fleets lost their plan."""

    tilt: float = 20.0  # theta x target: there Chernoff's bound on a fleet's p99 is close to its least
    penalty: float = 3.25  # -ln of the bound that the estimate allows at p99: 4 x 0.01 / 0.99 as odds (estimate.py)
    least_step: float = 0.8  # share of a delay that was too long: the next limit; lower limits skip cheaper plans
    most_step: float = 0.995  # likewise; higher limits need more proposals
    power: float = 1.5  # of the slowness by which a limit is lowered: not all of the latency shrinks with the delay
    links: float = 0.97  # share of the bandwidth of links that may be used: on a full link the queue grows without end


@dataclass(frozen=True, slots=True)
class HeadroomSettings:
    """Headroom on the links of fleets; without it 3 of 7 fleets lost their plan."""

    waits: float = 12.0  # mean waits for a burst on a link that fit into the target: the headroom to begin with
    most: float = 0.5  # share of a link that is left free to begin with; more rules out cheap plans
    raises: int = 2  # times that headroom is raised for one selection; each rounds the selection once more
    power: float = 1.5  # of the slowness by which headroom grows: waits grow faster than utilisation
    least_growth: float = 1.25  # of headroom; less needs more roundings
    most_growth: float = 3.0  # of headroom; more skips cheaper plans
    filled: float = 0.95  # share of what may be used of a link from which on headroom is what a late plan lacks
    last_plan_s: float = 1.5  # of the time limit, kept for the last estimate: 1.2 s with 1,000 sites, 10,000 workers
    last_plan_share: float = 0.1  # of the time limit, that this may be at most
    relaxations: int = 400  # for the lower bound at the end; more take longer and tighten it less and less


@dataclass(frozen=True, slots=True)
class DeadlineSettings:
    """Effort of the search."""

    first_share: float = 0.5  # of the time left, for the cheapest plan: the rest is for plans in time
    proposal_share: float = 0.25  # of the time left, for each plan under a restriction, so that several can be tried
    proposals: int = 60  # plans proposed while none is in time
    improvements: int = 30  # plans proposed after the first one in time
    empty_proposals: int = 3  # restrictions without a plan, which are quickly refuted, that count as one proposal
    least_saving: float = 0.005  # relative: nodes that can save less than this are not worth a simulation
    margin_step: float = 0.8  # share of the present load, of pools or links, that the next plan may use
    largest_step: float = 0.5  # likewise, where a plan is far too slow
    finest_step: float = 0.01  # relative; finer steps between two margins or delays cost proposals
    longer_delay: float = (
        1.015  # relative to a delay within which a plan was in time: the next, where no longer was tried
    )
    busy_link: float = 0.8  # utilisation of a link from which on the next plan may leave a margin on links
    full_link: float = 0.95  # utilisation of a link from which on that margin comes before all else
    judged_above: float = 2.0  # estimated p99, as a multiple of the target, up to which plans are simulated
    simulations: int = 16  # after so many, only plans are simulated that the estimate calls in time
    fleet_proposals: int = 20  # of a fleet, while none is in time
    fleet_improvements: int = 3  # of a fleet, after the first plan in time
    fleet_judgements: tuple[float, ...] = (1.0, 0.8, 0.6)  # shares of the target that fleets are planned for in turn
    delay: DelaySettings = field(default_factory=DelaySettings)
    headroom: HeadroomSettings = field(default_factory=HeadroomSettings)


DEFAULT_SETTINGS = DeadlineSettings()
QUICK_SETTINGS = replace(DEFAULT_SETTINGS, proposals=8, improvements=4)  # for dozens of problems, one after the other
