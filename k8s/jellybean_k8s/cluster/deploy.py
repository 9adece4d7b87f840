"""Deploys a plan to a cluster, rolls it back, removes it. Every step may be interrupted and repeated.

A plan's objects have its hash in their names, so a new plan starts beside the running one. The client Service is
switched to the new plan once it is ready; only then is the old plan pruned. A failure before that leaves the running
plan untouched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jellybean_k8s.cluster.cluster import Cluster, FieldConflictError, UnreachableError
from jellybean_k8s.cluster.compare import Changes, ObjectKey, compare_objects, object_key
from jellybean_k8s.cluster.lock import DeployLock, LockedError
from jellybean_k8s.cluster.pod_reasons import indented_lines
from jellybean_k8s.cluster.preflight import check, check_manifests
from jellybean_k8s.cluster.readiness import WORKLOADS, await_gone, await_ready, selector_of
from jellybean_k8s.cluster.revisions import (
    APPLYING,
    DEPLOYED,
    FAILED,
    REPLACED,
    Inventory,
    Revision,
    read_inventory,
    read_revision,
    revision_name,
    timestamp,
    with_owner,
    write_revision,
)
from jellybean_k8s.cluster.rollout import DeployOptions, DeployStoppedError, Rollout, wanted_objects
from jellybean_k8s.cluster.secrets import secret_names
from jellybean_k8s.errors import DeployError
from jellybean_k8s.manifests.deployed_plan import DeployedPlan
from jellybean_k8s.manifests.pods import SPOOL_VOLUME
from jellybean_k8s.names import APP_PREFIX, OWN_PREFIX
from jellybean_k8s.objects import KubeObject
from jellybean_solver import to_document


@dataclass(frozen=True, slots=True)
class DeployResult:
    """Result of a deployment. `number`: its revision; None if there was nothing to do."""

    number: int | None
    applied: tuple[ObjectKey, ...] = ()
    pruned: tuple[ObjectKey, ...] = ()


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
    gone = _stale_keys(inventory, objects)
    return pairs + [(live[key], None) for key in sorted(gone) if key in live]


def deploy(
    cluster: Cluster, deployed: DeployedPlan, objects: Sequence[KubeObject], options: DeployOptions | None = None
) -> DeployResult:
    """Make the cluster serve the plan; does nothing if it does already.

    DeployError: what is missing, before anything is applied (`PreflightError`); fields of other managers
    (`FieldConflictError`); why pods are not ready (`NotReadyError`).
    """
    options, plan = options or DeployOptions(), deployed.plan
    before = read_inventory(cluster, deployed.app)
    _check_owner(before, options.owner)
    objects = with_owner(objects, options.owner)
    for note in check(cluster, deployed, objects, leaving=_leaving(before, objects, options), now=options.now):
        options.say(note)
    with DeployLock(cluster, deployed.app, now=options.now, say=options.say) as lock:
        inventory = read_inventory(cluster, deployed.app)
        _check_owner(inventory, options.owner)
        rollout = Rollout(cluster, deployed.app, lock, options, replace(inventory, owner=options.owner))
        summary = (str(to_document(plan)["hash"]), plan.cost.total_usd_per_h, plan.accuracy)
        return _roll_out(rollout, objects, deployed.id, summary, secret_names(objects))


def rollback(
    cluster: Cluster, app: str, number: int | None = None, options: DeployOptions | None = None
) -> DeployResult:
    """Serve an earlier revision again: revision `number`, or the last one that served before the current one."""
    options = options or DeployOptions()
    _check_deployed(cluster, app)
    with DeployLock(cluster, app, now=options.now, say=options.say) as lock:
        rollout = Rollout(cluster, app, lock, options, read_inventory(cluster, app))
        target = _rollback_target(rollout.inventory, number)
        manifests = read_revision(cluster, app, target.number)
        leaving = _leaving(rollout.inventory, manifests, options)
        for note in check_manifests(cluster, app, manifests, leaving=leaving, now=options.now):
            options.say(note)
        summary = (target.plan, target.cost_usd_per_h, target.accuracy)
        return _roll_out(rollout, manifests, target.served, summary, target.secrets)


def undeploy(cluster: Cluster, app: str, options: DeployOptions | None = None) -> tuple[ObjectKey, ...]:
    """Delete everything that this deployment created, the gateway first so that requests in flight are answered."""
    options = options or DeployOptions()
    _check_deployed(cluster, app)
    with DeployLock(cluster, app, now=options.now, say=options.say) as lock:
        rollout = Rollout(cluster, app, lock, options, read_inventory(cluster, app))
        inventory = rollout.inventory
        gateway = [key for key in inventory.objects if key[0] in ("Deployment", "Service")]
        rollout.prune(gateway)
        if options.wait:
            selector = f"{selector_of(app)},{APP_PREFIX}/component=gateway"
            await_gone(cluster, selector, options.timeout_s, lock.renew)
        rollout.prune(set(inventory.objects) - set(gateway))
        if options.wait and (left := await_gone(cluster, selector_of(app), options.timeout_s, lock.renew)):
            raise DeployError(f"{left} pods of {app} are still there after {options.timeout_s:g} s; run it again")
        rollout.prune(("ConfigMap", revision_name(app, revision.number)) for revision in inventory.revisions)
        rollout.prune([("ConfigMap", inventory.name), ("Lease", lock.name)])
        return tuple(rollout.pruned)


def _check_owner(inventory: Inventory, owner: Mapping[str, Any] | None) -> None:
    """DeployError if the deployment has another owner; None stands for a person who deploys by command."""
    theirs = inventory.owner
    if not (inventory.objects or inventory.revisions) or (theirs or {}).get("uid") == (owner or {}).get("uid"):
        return
    if theirs is None:
        raise DeployError(
            f"{inventory.app} is deployed here already, by hand: `jellybean undeploy` it first, or give this another"
            " `name` in its kubernetes part"
        )
    raise DeployError(
        f"{inventory.app} is deployed for {theirs['kind']} {theirs['name']}: change that, or give this another `name`"
    )


def _check_deployed(cluster: Cluster, app: str) -> None:
    """DeployError if nothing is deployed, before a lock is created."""
    inventory = read_inventory(cluster, app)
    if not inventory.objects and not inventory.revisions:
        raise DeployError(f"nothing of {app} is deployed in {cluster.namespace}")


def _roll_out(
    rollout: Rollout,
    objects: Sequence[KubeObject],
    served: str,
    summary: tuple[str, float, float | None],
    secrets: tuple[str, ...] | None,
) -> DeployResult:
    """Apply, wait, switch clients over, prune. `secrets`: those that the objects bring or mount."""
    options = rollout.options
    live = rollout.live(objects)
    wanted = wanted_objects(objects, live, rollout.app)
    changes = compare_objects(wanted, live, rollout.app)
    stale = _stale_keys(rollout.inventory, objects)
    current = rollout.inventory.current
    if not changes.to_apply and not stale and current is not None and current is rollout.inventory.revisions[-1]:
        return DeployResult(None)
    _check_single_spool(rollout, objects, stale)
    _check_conflicts(rollout, changes)
    number = max((revision.number for revision in rollout.inventory.revisions), default=0) + 1
    plan, cost, accuracy = summary
    revision = Revision(number, plan, served, APPLYING, timestamp(options.now()), cost, accuracy, secrets)
    rollout.remember(rollout.inventory.with_new_revision(revision, objects))
    write_revision(rollout.cluster, rollout.inventory, number, objects)
    try:
        _switch_over(rollout, wanted, changes, stale)
    except (UnreachableError, LockedError, DeployStoppedError):
        raise  # the cluster cannot, or must not, be changed now; the next run continues
    except DeployError as error:
        rollout.lock.renew()
        rollout.remember(rollout.inventory.with_state(number, FAILED))
        if not options.undo_failed:
            raise
        raise _undo(rollout, error) from error
    done, gone = rollout.inventory.with_state(number, DEPLOYED).without_oldest()
    done = replace(done, objects=done.objects - stale)
    needless = {key for key in done.objects if key[0] == "Secret"} - done.secrets
    rollout.remember(done)
    rollout.prune(needless)
    rollout.remember(replace(done, objects=done.objects - needless))
    rollout.prune(("ConfigMap", revision_name(rollout.app, old)) for old in gone)
    return DeployResult(number, tuple(rollout.applied), tuple(rollout.pruned))


def _check_single_spool(rollout: Rollout, objects: Sequence[KubeObject], stale: frozenset[ObjectKey]) -> None:
    """DeployError if two gateways would share a volume of spooled requests."""
    beside = any(kind == "Deployment" for kind, _ in stale) and not rollout.options.in_place
    volumes = [v for o in objects if o["kind"] == "Deployment" for v in o["spec"]["template"]["spec"]["volumes"]]
    if beside and any(volume["name"] == SPOOL_VOLUME for volume in volumes):
        raise DeployError(
            "nothing was applied: two gateways cannot share the volume of kept requests; --in-place lets the running "
            "one go first, and the new one answers what it left"
        )


def _check_conflicts(rollout: Rollout, changes: Changes) -> None:
    """DeployError if the change would overwrite fields of other managers; lists them all. Changes nothing."""
    if rollout.options.force:
        return
    conflicts: list[str] = []
    for item in changes.changed:
        try:
            rollout.cluster.apply(item, dry_run=True)
        except FieldConflictError as error:
            conflicts.append(str(error))
    if conflicts:
        raise DeployError("nothing was applied:" + indented_lines(conflicts))


def _switch_over(rollout: Rollout, wanted: Sequence[KubeObject], changes: Changes, stale: frozenset[ObjectKey]) -> None:
    options = rollout.options
    new = frozenset(object_key(item) for item in changes.new)
    front, rest = wanted[-1:], wanted[:-1]
    if front[0]["kind"] != "Service":
        raise DeployError(
            f"the last object is {front[0]['kind']}, not the Service of the clients: a fault of JellyBean"
        )
    if options.in_place and stale:
        options.say("the running plan is removed first: requests are refused until the new one is ready")
        rollout.prune(stale)
        served = front[0]["spec"]["selector"][f"{OWN_PREFIX}/plan"]
        gone = await_gone(
            rollout.cluster,
            f"{selector_of(rollout.app)},{OWN_PREFIX}/plan!={served}",
            options.timeout_s,
            rollout.lock.renew,
        )
        if gone:
            raise DeployError(f"{gone} pods of the previous plan still exist after {options.timeout_s:g} s")
    rollout.apply(rest, changes.to_apply, new)
    if options.wait:
        keys = [object_key(item) for item in rest]
        await_ready(
            rollout.cluster,
            rollout.app,
            keys,
            options.timeout_s,
            stuck_s=options.stuck_s,
            pulse=rollout.lock.renew,
            progress=options.progress,
        )
    rollout.apply(front, changes.to_apply, new)
    rollout.prune(stale - frozenset(rollout.pruned))


def _undo(rollout: Rollout, error: DeployError) -> DeployError:
    """Undo a failed deployment: delete its new objects, restore the changed ones. Returns the error to raise."""
    current = rollout.inventory.current
    if current is None:
        rollout.prune(rollout.inventory.objects)
        rollout.remember(replace(rollout.inventory, objects=frozenset()))
        return DeployError(f"{error}\nwhat was applied was deleted again; nothing served before")
    manifests = read_revision(rollout.cluster, rollout.app, current.number)
    before = wanted_objects(manifests, rollout.live(manifests), rollout.app)
    keys = {object_key(item) for item in before}
    again = compare_objects(before, rollout.live(before), rollout.app)
    rollout.apply(before, again.to_apply, frozenset(object_key(item) for item in again.new))
    in_vain = {key for key in rollout.inventory.objects - keys if key[0] != "Secret"}
    rollout.prune(in_vain)
    rollout.remember(replace(rollout.inventory, objects=rollout.inventory.objects - in_vain))
    return DeployError(f"{error}\nrevision {current.number} serves as before: the new objects were deleted")


def _leaving(inventory: Inventory, objects: Sequence[KubeObject], options: DeployOptions) -> frozenset[str]:
    """Names of the sets that are removed before the objects are applied."""
    leaving = _stale_keys(inventory, objects) if options.in_place else frozenset()
    return frozenset(name for kind, name in leaving if kind in WORKLOADS)


def _stale_keys(inventory: Inventory, objects: Sequence[KubeObject]) -> frozenset[ObjectKey]:
    """Keys of the inventory that are not among the objects any more, but for Secrets, which revisions share."""
    known = frozenset(key for key in inventory.objects if key[0] != "Secret")
    return known - {object_key(item) for item in objects}


def _rollback_target(inventory: Inventory, number: int | None) -> Revision:
    current = inventory.current
    if number is None:
        replaced = [
            r for r in inventory.revisions if r.state == REPLACED and (current is None or r.number < current.number)
        ]
        last = inventory.revisions[-1] if inventory.revisions else None
        if last is not None and current is not None and last.number > current.number:
            return current  # the newest revision never served: return to the one that does
        if not replaced:
            raise DeployError(f"{inventory.app} has no revision before the current one")
        return replaced[-1]
    for revision in inventory.revisions:
        if revision.number == number:
            return revision
    known = ", ".join(str(revision.number) for revision in inventory.revisions) or "none"
    raise DeployError(f"{inventory.app} has no revision {number}; there are: {known}")
