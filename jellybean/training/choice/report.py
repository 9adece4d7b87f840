"""Says why a candidate was chosen."""

from __future__ import annotations

from jellybean.display import formats
from jellybean.training.choice.candidates import Candidate
from jellybean.training.choice.search import Search


def choice_note(search: Search, best: Candidate, processes: int) -> str:
    """One line: what is used, its time per batch, and the best with each other number of processes.

    Times are measured in trials, or predicted and corrected by the trials of similar candidates.
    """
    counts = _counted(len(search.candidates), len(search.trials))
    if len({one.processes for one in search.candidates}) == 1 == len({one.sizes for one in search.candidates}):
        return f"{best.schedule} is fastest: {_time(search, best)} a batch ({counts})"
    others = []
    for count in sorted({one.processes for one in search.candidates} - {best.processes}):
        rival = fastest(search, count)
        others.append(f"{_processes(count)} {_time(search, rival)} ({rival})")
    left = processes - best.processes
    lead = "one process is fastest" if best.processes == 1 else f"{_processes(best.processes)} are fastest"
    leaves = f"; {_processes(left)} of {processes} {'end' if left > 1 else 'ends'} now" if left else ""
    rivals = f"; {', '.join(others)}" if others else ""
    return f"{lead}: {best}, {_time(search, best)} a batch{rivals} ({counts}){leaves}"


def fastest(search: Search, processes: int) -> Candidate:
    """The fastest candidate of so many processes."""
    return min((one for one in search.candidates if one.processes == processes), key=search.seconds)


def slower_candidates(search: Search, best: Candidate) -> dict[str, str]:
    """By schedule, and of split layers by the key `tensor`: how much slower its best candidate is."""
    chosen = search.seconds(best)
    slower: dict[str, str] = {}
    for one in sorted(search.candidates, key=search.seconds):
        if one.schedule != best.schedule and one.schedule not in slower:
            slower[one.schedule] = f"{_time(search, one)} a batch in place of {formats.duration(chosen)}"
        if one.tensor > 1 == best.tensor and "tensor" not in slower:
            slower["tensor"] = f"{_time(search, one)} a batch in place of {formats.duration(chosen)} ({one})"
    return slower


def _counted(candidates: int, tried: int) -> str:
    if candidates == 1:
        return "the only candidate"
    return f"{candidates} candidates, {'all' if tried == candidates else tried or 'none'} of them tried"


def _time(search: Search, candidate: Candidate) -> str:
    predicted = "" if candidate in search.trials else "predicted "
    return f"{predicted}{formats.duration(search.seconds(candidate))}"


def _processes(count: int) -> str:
    return f"{count} process{'es' if count != 1 else ''}"
