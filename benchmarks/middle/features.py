"""A problem's features in a few letters, for the rows of the comparison."""

from __future__ import annotations

from jellybean_solver import EdgeKind, Problem, Sharing

LEGEND = (
    "M memory limits, L link limits, B batches, F fan-outs, V fan-outs that depend on variants, S several sources, "
    "R residency, C alike sites, W two workflows, U budget; sharing: s, x or m (mixed); "
    "accuracy: i (independent), p (per operator), e (end to end), w (by workflow), - (no target)"
)


def features(problem: Problem) -> str:
    """Letters of `LEGEND`: what there is, then sharing and accuracy."""
    present = {
        "M": any(pool.memory_bytes is not None for pool in problem.pools),
        "L": any(link.bandwidth_bytes_per_s is not None for link in problem.links),
        "B": any(len(t) > 1 for o in problem.operators for v in o.variants for t in v.service.values()),
        "F": any(edge.kind is EdgeKind.FAN_OUT for edge in problem.edges),
        "V": bool(problem.varying),
        "S": len(problem.sources) > 1,
        "R": any(o.tiers is not None or any(e.tiers is not None for e in o.inputs) for o in problem.operators),
        "C": bool(problem.sites),
        "W": bool(problem.workflows),
        "U": problem.slo.budget_usd_per_h is not None,
    }
    sharing = {pool.sharing for pool in problem.pools}
    mode = "m" if len(sharing) > 1 else "s" if Sharing.SHARED in sharing else "x"
    kinds = {"Independent": "i", "PerOperator": "p", "EndToEnd": "e", "Margins": "w"}
    accuracy = "-" if problem.accuracy_target is None else kinds[type(problem.accuracy).__name__]
    return "".join(letter for letter, is_there in present.items() if is_there) + f" {mode}{accuracy}"
