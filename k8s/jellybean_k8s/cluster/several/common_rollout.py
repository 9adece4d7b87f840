"""The rollout of one revision to several clusters, each ready before clients are switched over.

The phases of `phases`, with a common revision number: all clusters but a few that are away may have it already, and
then those catch up. A cluster that is away is waited for until the deadline, while the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from jellybean_k8s.cluster.compare import ObjectKey
from jellybean_k8s.cluster.phases import DeployResult, PhasedRollout, compare
from jellybean_k8s.cluster.readiness import NotReadyError
from jellybean_k8s.cluster.revision_content import RevisionContent
from jellybean_k8s.cluster.revisions import DEPLOYED, check_owner, read_inventory
from jellybean_k8s.cluster.several.member import Member, StepResults
from jellybean_k8s.cluster.several.members import Members
from jellybean_k8s.errors import DeployError


class PartlyDeployedError(DeployError):
    """Clients are served by the new plan, but a cluster was not finished. `results`: of all others."""

    def __init__(self, message: str, results: Mapping[str, DeployResult]) -> None:
        self.results = results
        super().__init__(message)


class CommonRollout:
    """The rollout of a revision to all clusters, under their locks.

    `command(number)`: what a user runs to continue, given the revision's number, or None before it has one.
    """

    def __init__(
        self, members: Members, contents: Mapping[str, RevisionContent], command: Callable[[int | None], str]
    ) -> None:
        self._members, self._contents, self._command = members, contents, command
        self._phases: dict[str, PhasedRollout] = {}
        self._number: int | None = None  # once the gateway's cluster has it, which chooses what to roll back to
        self._is_catching_up = False  # the gateway's cluster has the revision: clients need no switch

    def run(self) -> dict[str, DeployResult]:
        """Go through all phases; returns the results by cluster. PartlyDeployedError if not all could be finished."""
        self._phases = self._members.run(self._compare, together=True).require(self._continue(self._serving))
        results = {member.name: DeployResult(None) for member in self._members}
        needed = [member for member in self._members if self._of(member).is_needed]
        if not needed:
            return results
        number, taking_part = self._choose_number(needed)
        begun = self._members.run(lambda member: self._of(member).begin(number), taking_part, together=True)
        if self._is_catching_up or self._members.gateway.name in begun.results:
            self._number = number
        self._require(begun)
        self._require(self._members.run(lambda member: self._of(member).bring_up(), taking_part, together=True))
        if not self._is_catching_up:
            switched = self._members.run(lambda member: self._of(member).switch(), [self._members.gateway])
            self._require(switched, "clients were being switched over: all of both plans is there to serve them")
        return results | self._finish(taking_part, results)

    def _of(self, member: Member) -> PhasedRollout:
        return self._phases[member.name]

    def _compare(self, member: Member) -> PhasedRollout:
        inventory = read_inventory(member.cluster, self._members.app)
        check_owner(inventory, None)
        rollout = self._members.rollout(member, inventory)
        phases = compare(rollout, self._contents[member.name], has_front=member.is_gateway)
        if phases.is_needed:
            phases.check()
        return phases

    def _choose_number(self, needed: Sequence[Member]) -> tuple[int, list[Member]]:
        """The revision's number, and the clusters that get it: a new one for all.

        Or the gateway's current one, for those that lack it, where the gateway's cluster needs nothing.
        """
        current = self._of(self._members.gateway).current
        if self._members.gateway not in needed and current is not None:
            self._is_catching_up = all(_lacks(self._of(member), current.number) for member in needed)
            if self._is_catching_up:
                return current.number, list(needed)
        return 1 + max(one.rollout.inventory.highest_number for one in self._phases.values()), list(self._members)

    def _require(self, outcome: StepResults[None], serving: str = "") -> None:
        """Raise what made a step fail, if it did; a failed rollout is undone where asked for."""
        outcome.raise_stop()
        if outcome.errors:
            self._fail(outcome)
        outcome.require(self._continue(serving or self._serving))

    def _continue(self, serving: str) -> str:
        return f"{serving}; run {self._command(self._number)} again when it is back: it continues"

    @property
    def _serving(self) -> str:
        """What serves clients as long as they are not switched, in words."""
        if not self._phases:
            return "nothing was applied"
        current = self._of(self._members.gateway).current
        if current is None:
            return "clients were not switched: no plan serves yet"
        if self._is_catching_up:
            return f"the gateway's cluster has revision {current.number} already, and serves clients"
        if self._members.options.in_place and any(phases.rollout.pruned for phases in self._phases.values()):
            return "clients were not switched, and the running plan was removed first (--in-place)"
        return f"clients were not switched: revision {current.number} serves as before"

    def _fail(self, outcome: StepResults[None]) -> NoReturn:
        """Mark the revision as failed, undo it where asked for, and tell why it failed."""
        undo = self._members.options.undo_failed and not self._is_catching_up
        begun = [member for member in self._members if self._of(member).number is not None]

        def mark(member: Member) -> str:
            self._of(member).fail()
            return self._of(member).undo() if undo else ""

        marked = self._members.run(mark, begun, patient=False)
        lines = outcome.lines
        cause = next(iter(outcome.errors.values()))
        if undo:
            lines += [f"{name}: {text}" for name, text in marked.results.items()]
            lines += [f"{line}: it was not undone, the next deployment prunes it" for line in marked.lines]
            raise DeployError("\n".join(lines)) from cause
        missing = _missing_sets(list(outcome.errors.values()))
        raise (NotReadyError("\n".join(lines), missing) if missing else DeployError("\n".join(lines))) from cause

    def _finish(self, taking_part: Sequence[Member], results: Mapping[str, DeployResult]) -> dict[str, DeployResult]:
        """Prune the old plan and record that the new one serves, in the gateway's cluster first."""

        def finish(member: Member) -> DeployResult:
            self._of(member).prune_stale()
            return self._of(member).finish()

        finished = self._members.run(finish, [member for member in taking_part if member.is_gateway])
        if finished.is_complete:
            others = self._members.run(finish, [member for member in taking_part if not member.is_gateway])
            finished = StepResults({**finished.results, **others.results}, others.away, others.errors)
        finished.raise_stop()
        if finished.is_complete:
            return finished.results
        unfinished = [member.name for member in taking_part if member.name not in finished.results]
        text = (
            f"clients are served by revision {self._number}; objects of the plan before are still in "
            f"{', '.join(unfinished)}: run {self._command(self._number)} again, which removes them"
        )
        done = {name: found for name, found in {**results, **finished.results}.items() if name not in unfinished}
        raise PartlyDeployedError("\n".join([*finished.lines, text]), done)


def _lacks(phases: PhasedRollout, number: int) -> bool:
    """True if a cluster can still get the revision of this number: it has none newer, and this one does not serve."""
    revisions = phases.rollout.inventory.revisions
    return all(found.number < number or (found.number == number and found.state != DEPLOYED) for found in revisions)


def _missing_sets(errors: Sequence[DeployError]) -> list[ObjectKey]:
    """The sets that are not ready; empty if something else failed."""
    if not all(isinstance(error, NotReadyError) for error in errors):
        return []
    return [key for error in errors if isinstance(error, NotReadyError) for key in error.missing]
