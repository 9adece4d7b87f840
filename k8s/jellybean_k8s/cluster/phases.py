"""The phases in which one cluster gets a plan; each may be interrupted and repeated.

Compare and begin; remove the running plan first where that is asked for; apply all but the client Service; wait until
it is ready; switch clients over; prune the old plan. Whoever deploys chooses when to go on to the next phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from jellybean_k8s.cluster.cluster import FieldConflictError
from jellybean_k8s.cluster.compare import Changes, ObjectKey, compare_objects, object_key
from jellybean_k8s.cluster.pod_reasons import indented_lines
from jellybean_k8s.cluster.readiness import WORKLOADS, await_gone, await_ready, selector_of
from jellybean_k8s.cluster.revision_content import RevisionContent
from jellybean_k8s.cluster.revisions import (
    APPLYING,
    DEPLOYED,
    FAILED,
    Inventory,
    Revision,
    read_revision,
    revision_name,
    timestamp,
    write_revision,
)
from jellybean_k8s.cluster.rollout import DeployOptions, Rollout, wanted_objects
from jellybean_k8s.errors import DeployError
from jellybean_k8s.manifests.pods.templates import SPOOL_VOLUME
from jellybean_k8s.names import OWN_PREFIX
from jellybean_k8s.objects import KubeObject


@dataclass(frozen=True, slots=True)
class DeployResult:
    """Result of a deployment. `number`: its revision; None if there was nothing to do."""

    number: int | None
    applied: tuple[ObjectKey, ...] = ()
    pruned: tuple[ObjectKey, ...] = ()


@dataclass
class PhasedRollout:
    """The rollout of a revision to a cluster; `compare` makes it. `front`: the client Service, where it has one.

    `stale`: objects of the inventory that the revision does not have.
    """

    rollout: Rollout
    content: RevisionContent
    front: Sequence[KubeObject]
    rest: Sequence[KubeObject]
    changes: Changes
    stale: frozenset[ObjectKey]
    number: int | None = None  # of the revision, once it is begun

    @property
    def current(self) -> Revision | None:
        """The revision that serves."""
        return self.rollout.inventory.current

    @property
    def is_needed(self) -> bool:
        """True unless the cluster has the revision already."""
        current, revisions = self.current, self.rollout.inventory.revisions
        return bool(self.changes.to_apply or self.stale) or current is None or current is not revisions[-1]

    def check(self) -> None:
        """DeployError if the changes are not possible beside what the cluster has. Changes nothing."""
        self._check_single_spool()
        self._check_conflicts()

    def _check_single_spool(self) -> None:
        """DeployError if two gateways would share a volume of spooled requests."""
        beside = any(kind == "Deployment" for kind, _ in self.stale) and not self.rollout.options.in_place
        gateways = [item for item in self.content.objects if item["kind"] == "Deployment"]
        volumes = [volume for item in gateways for volume in item["spec"]["template"]["spec"]["volumes"]]
        if beside and any(volume["name"] == SPOOL_VOLUME for volume in volumes):
            raise DeployError(
                "nothing was applied: two gateways cannot share the volume of kept requests; --in-place lets the "
                "running one go first, and the new one answers what it left"
            )

    def _check_conflicts(self) -> None:
        """DeployError if the change would overwrite fields of other managers; lists them all."""
        if self.rollout.options.force:
            return
        conflicts: list[str] = []
        for item in self.changes.changed:
            try:
                self.rollout.cluster.apply(item, dry_run=True)
            except FieldConflictError as error:
                conflicts.append(str(error))
        if conflicts:
            raise DeployError("nothing was applied:" + indented_lines(conflicts))

    def begin(self, number: int) -> None:
        """Write the revision, and the objects that may exist from now on."""
        self.number, rollout, content = number, self.rollout, self.content
        revision = Revision(
            number,
            content.plan,
            content.served,
            APPLYING,
            timestamp(rollout.options.now()),
            content.cost_usd_per_h,
            content.accuracy,
            content.secrets,
            content.clusters,
        )
        rollout.remember(rollout.inventory.with_new_revision(revision, content.objects))
        write_revision(rollout.cluster, rollout.inventory, number, content.objects)

    def bring_up(self) -> None:
        """Make all but the client Service ready, unless waiting is not asked for. NotReadyError if it is not."""
        rollout, options = self.rollout, self.rollout.options
        if options.in_place and self.stale:
            self._remove_running()
        rollout.apply(self.rest, self.changes.to_apply - set(rollout.applied), self._new)
        if options.wait:
            await_ready(
                rollout.cluster,
                rollout.app,
                [object_key(item) for item in self.rest],
                rollout.wait_s,
                whole_s=options.timeout_s,
                stuck_s=options.stuck_s,
                pulse=rollout.pulse,
                progress=options.progress,
            )

    def _remove_running(self) -> None:
        rollout = self.rollout
        rollout.options.say("the running plan is removed first: requests are refused until the new one is ready")
        rollout.prune(self.stale)
        others = f"{selector_of(rollout.app)},{OWN_PREFIX}/plan!={self.content.served}"
        if left := await_gone(rollout.cluster, others, rollout.wait_s, rollout.pulse):
            raise DeployError(f"{left} pods of the previous plan still exist after {rollout.options.timeout_s:g} s")

    def switch(self) -> None:
        """Switch clients over to this revision."""
        self.rollout.apply(self.front, self.changes.to_apply, self._new)

    def prune_stale(self) -> None:
        """Delete the old plan's objects, but for Secrets, which revisions share."""
        self.rollout.prune(self.stale - frozenset(self.rollout.pruned))

    def finish(self) -> DeployResult:
        """Record that the revision serves, and delete what only forgotten revisions needed."""
        rollout = self.rollout
        done, forgotten = self._finished
        needless = {key for key in done.objects if key[0] == "Secret"} - done.secrets
        rollout.remember(done)
        rollout.prune(needless)
        rollout.remember(replace(done, objects=done.objects - needless))
        rollout.prune(("ConfigMap", revision_name(rollout.app, old)) for old in forgotten)
        return DeployResult(self.number, tuple(rollout.applied), tuple(rollout.pruned))

    @cached_property
    def _finished(self) -> tuple[Inventory, tuple[int, ...]]:
        """The inventory once the revision serves, and the numbers of forgotten revisions, however often it is tried."""
        done, forgotten = self._with_state(DEPLOYED).without_oldest()
        return replace(done, objects=done.objects - self.stale), forgotten

    @property
    def _new(self) -> frozenset[ObjectKey]:
        return frozenset(object_key(item) for item in self.changes.new)

    def fail(self) -> None:
        """Record that the revision did not become ready."""
        self.rollout.lock.renew()
        self.rollout.remember(self._with_state(FAILED))

    def _with_state(self, state: str) -> Inventory:
        if self.number is None:
            raise DeployError("no revision was begun: a fault of JellyBean")
        return self.rollout.inventory.with_state(self.number, state)

    def undo(self) -> str:
        """Delete the failed revision's new objects, restore the changed ones. Returns what serves now, in words."""
        rollout, current = self.rollout, self.current
        if current is None:
            rollout.prune(rollout.inventory.objects)
            rollout.remember(replace(rollout.inventory, objects=frozenset()))
            return "what was applied was deleted again; nothing served before"
        manifests = read_revision(rollout.cluster, rollout.app, current.number)
        before = wanted_objects(manifests, rollout.live(manifests), rollout.app)
        keys = {object_key(item) for item in before}
        again = compare_objects(before, rollout.live(before), rollout.app)
        rollout.apply(before, again.to_apply, frozenset(object_key(item) for item in again.new))
        in_vain = {key for key in rollout.inventory.objects - keys if key[0] != "Secret"}
        rollout.prune(in_vain)
        rollout.remember(replace(rollout.inventory, objects=rollout.inventory.objects - in_vain))
        return f"revision {current.number} serves as before: the new objects were deleted"


def compare(rollout: Rollout, content: RevisionContent, *, has_front: bool = True) -> PhasedRollout:
    """Compare a revision with the cluster. `has_front`: its last object is the client Service. Changes nothing."""
    if has_front and (not content.objects or content.objects[-1]["kind"] != "Service"):
        kind = content.objects[-1]["kind"] if content.objects else "missing"
        raise DeployError(f"the last object is {kind}, not the Service of the clients: a fault of JellyBean")
    live = rollout.live(content.objects)
    wanted = wanted_objects(content.objects, live, rollout.app)
    changes = compare_objects(wanted, live, rollout.app)
    rest = len(wanted) - has_front
    return PhasedRollout(
        rollout, content, wanted[rest:], wanted[:rest], changes, stale_keys(rollout.inventory, content.objects)
    )


def stale_keys(inventory: Inventory, objects: Sequence[KubeObject]) -> frozenset[ObjectKey]:
    """Keys of the inventory that are not among the objects any more, but for Secrets, which revisions share."""
    known = frozenset(key for key in inventory.objects if key[0] != "Secret")
    return known - {object_key(item) for item in objects}


def leaving_sets(inventory: Inventory, objects: Sequence[KubeObject], options: DeployOptions) -> frozenset[str]:
    """Names of the sets that are removed before the objects are applied."""
    leaving = stale_keys(inventory, objects) if options.in_place else frozenset()
    return frozenset(name for kind, name in leaving if kind in WORKLOADS)
