"""Tuned numbers of the search under a p99 latency."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class DeadlineSettings:
    """Effort of the search; benchmarks/deadline chose the numbers on seeds 500 to 539 and 600 to 629."""

    proposals: int = 60  # plans proposed while none is in time
    improvements: int = 30  # plans proposed after the first one in time
    least_saving: float = 0.005  # relative: nodes that can save less than this are not worth a simulation
    margin_step: float = 0.8  # share of the present load, of pools or links, that the next plan may use
    largest_step: float = 0.5  # likewise, where a plan is far too slow
    busy_link: float = 0.8  # utilisation of a link from which on the next plan may leave a margin on links
    full_link: float = 0.95  # utilisation of a link from which on that margin comes before all else
    judged_above: float = 2.0  # estimated p99, as a multiple of the target, up to which plans are simulated
    simulations: int = 16  # after so many, only plans are simulated that the estimate calls in time
    fleet_proposals: int = 20  # of a fleet, while none is in time
    fleet_improvements: int = 3  # of a fleet, after the first plan in time
    fleet_judgements: tuple[float, ...] = (1.0, 0.8, 0.6)  # shares of the target that fleets are planned for in turn


DEFAULT_SETTINGS = DeadlineSettings()
QUICK_SETTINGS = replace(DEFAULT_SETTINGS, proposals=8, improvements=4)  # for dozens of problems, one after the other
