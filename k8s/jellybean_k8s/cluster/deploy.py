"""Deploys a plan to a cluster, rolls it back, removes it. Every step may be interrupted and repeated.

A plan's objects have its hash in their names, so a new plan starts beside the running one. The client Service is
switched to the new plan once it is ready; only then is the old plan pruned. A failure before that leaves the running
plan untouched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jellybean_k8s.cluster.checks.preflight import check, check_manifests
from jellybean_k8s.cluster.cluster import Cluster, UnreachableError
from jellybean_k8s.cluster.compare import ObjectKey, compare_objects, object_key
from jellybean_k8s.cluster.lock import DeployLock, LockedError
from jellybean_k8s.cluster.named_clusters import check_forgotten, check_target, forgotten_beside
from jellybean_k8s.cluster.phases import DeployResult, PhasedRollout, compare, leaving_sets, stale_keys
from jellybean_k8s.cluster.removal import Removal
from jellybean_k8s.cluster.revision_content import RevisionContent
from jellybean_k8s.cluster.revisions import (
    REPLACED,
    Inventory,
    Revision,
    check_owner,
    read_deployed,
    read_inventory,
    read_revision,
    with_owner,
)
from jellybean_k8s.cluster.rollout import DeployOptions, DeployStoppedError, Rollout, wanted_objects
from jellybean_k8s.errors import DeployError
from jellybean_k8s.manifests.deployed_plan import DeployedPlan
from jellybean_k8s.objects import KubeObject


def dry_run(
    cluster: Cluster, deployed: DeployedPlan, objects: Sequence[KubeObject], *, force: bool = False
) -> list[tuple[KubeObject | None, KubeObject | None]]:
    """Server-side dry run: (before, after) of each object that would change; None where it does not exist.

    Every object is sent to the server, so an object that it would refuse raises DeployError.
    """
    app = deployed.app
    inventory = read_inventory(cluster, app)
    rollout = Rollout(cluster, app, DeployLock(cluster, app), DeployOptions(), inventory)
    live = rollout.live(objects)
    wanted = wanted_objects(objects, live, app)
    changes = compare_objects(wanted, live, app)
    pairs: list[tuple[KubeObject | None, KubeObject | None]] = []
    for item in (*changes.new, *changes.changed):
        pairs.append((live.get(object_key(item)), cluster.apply(item, dry_run=True, force=force)))
    gone = stale_keys(inventory, objects)
    return pairs + [(live[key], None) for key in sorted(gone) if key in live]


def deploy(
    cluster: Cluster, deployed: DeployedPlan, objects: Sequence[KubeObject], options: DeployOptions | None = None
) -> DeployResult:
    """Make the cluster serve the plan; does nothing if it does already.

    DeployError: what is missing, before anything is applied (`PreflightError`); fields of other managers
    (`FieldConflictError`); why pods are not ready (`NotReadyError`).
    """
    options = options or DeployOptions()
    before = read_inventory(cluster, deployed.app)
    check_owner(before, options.owner)
    check_forgotten(forgotten_beside(before))
    objects = with_owner(objects, options.owner)
    for note in check(cluster, deployed, objects, leaving=leaving_sets(before, objects, options), now=options.now):
        options.say(note)
    with DeployLock(cluster, deployed.app, now=options.now, say=options.say) as lock:
        inventory = read_inventory(cluster, deployed.app)
        check_owner(inventory, options.owner)
        rollout = Rollout(cluster, deployed.app, lock, options, replace(inventory, owner=options.owner))
        return _roll_out(compare(rollout, RevisionContent.of_plan(deployed, objects)))


def rollback(
    cluster: Cluster, app: str, number: int | None = None, options: DeployOptions | None = None
) -> DeployResult:
    """Serve an earlier revision again: revision `number`, or the last one that served before the current one."""
    options = options or DeployOptions()
    _alone_rollback_target(read_deployed(cluster, app), number)  # before a lock is created
    with DeployLock(cluster, app, now=options.now, say=options.say) as lock:
        rollout = Rollout(cluster, app, lock, options, read_inventory(cluster, app))
        target = _alone_rollback_target(rollout.inventory, number)
        manifests = read_revision(cluster, app, target.number)
        leaving = leaving_sets(rollout.inventory, manifests, options)
        for note in check_manifests(cluster, app, manifests, leaving=leaving, now=options.now):
            options.say(note)
        return _roll_out(compare(rollout, RevisionContent.of_revision(target, manifests)))


def undeploy(cluster: Cluster, app: str, options: DeployOptions | None = None) -> tuple[ObjectKey, ...]:
    """Delete everything that this deployment created, the gateway first so that requests in flight are answered."""
    options = options or DeployOptions()
    check_forgotten(forgotten_beside(read_deployed(cluster, app)), undeploys=True)
    with DeployLock(cluster, app, now=options.now, say=options.say) as lock:
        removal = Removal(Rollout(cluster, app, lock, options, read_inventory(cluster, app)))
        removal.remove_gateway()
        removal.remove_rest()
        return removal.delete_lock()


def _roll_out(phases: PhasedRollout) -> DeployResult:
    """Apply, wait, switch clients over, prune."""
    if not phases.is_needed:
        return DeployResult(None)
    phases.check()
    phases.begin(phases.rollout.inventory.highest_number + 1)
    try:
        phases.bring_up()
        phases.switch()
        phases.prune_stale()
    except (UnreachableError, LockedError, DeployStoppedError):
        raise  # the cluster cannot, or must not, be changed now; the next run continues
    except DeployError as error:
        phases.fail()
        if not phases.rollout.options.undo_failed:
            raise
        raise DeployError(f"{error}\n{phases.undo()}") from error
    return phases.finish()


def _alone_rollback_target(inventory: Inventory, number: int | None) -> Revision:
    """As `rollback_target`, where kubernetes.yaml names no clusters. DeployError if others have, or need, objects."""
    check_forgotten(forgotten_beside(inventory))
    target = rollback_target(inventory, number)
    check_target(target, target.clusters[:1])  # its first is this one, which had the gateway
    return target


def rollback_target(inventory: Inventory, number: int | None) -> Revision:
    """The revision `number`, or the one to return to. DeployError if there is none."""
    current = inventory.current
    if number is None:
        replaced = [
            r for r in inventory.revisions if r.state == REPLACED and (current is None or r.number < current.number)
        ]
        last = inventory.revisions[-1] if inventory.revisions else None
        if last is not None and current is not None and last.number > current.number:
            return current  # the newest revision never served: return to the one that does
        if not replaced:
            raise DeployError(f"{inventory.app} has no revision that served before the current one")
        return replaced[-1]
    for revision in inventory.revisions:
        if revision.number == number:
            return revision
    known = ", ".join(str(revision.number) for revision in inventory.revisions) or "none"
    raise DeployError(f"{inventory.app} has no revision {number}; there are: {known}")
