"""Bringing a plan to a cluster, back, and away. Every step may be interrupted and run again.

A plan's objects carry its hash, so a new plan comes up beside the running one; the Service of the clients is led over
when the new one runs, and only then is the old one pruned. What goes wrong before that leaves the running plan as it
is.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jellybean_k8s.cluster.cluster import Cluster, FieldConflictError, UnreachableError
from jellybean_k8s.cluster.compare import Changes, Key, by_key, changes, is_ours, key_of, stamped
from jellybean_k8s.cluster.lock import Lock, LockedError
from jellybean_k8s.cluster.preflight import check
from jellybean_k8s.cluster.reasons import summary
from jellybean_k8s.cluster.records import (
    APPLYING,
    DEPLOYED,
    FAILED,
    REPLACED,
    Inventory,
    Revision,
    owned,
    read_inventory,
    read_revision,
    revision_name,
    timestamp,
    write_inventory,
    write_revision,
)
from jellybean_k8s.cluster.wait import WORKLOADS, await_gone, await_ready, selector_of
from jellybean_k8s.errors import DeployError
from jellybean_k8s.manifests.commands import tls_secret
from jellybean_k8s.manifests.pods import SPOOL_VOLUME
from jellybean_k8s.manifests.served import Deployed
from jellybean_k8s.names import APP, OWN
from jellybean_solver import to_document

Object = dict[str, Any]
Say = Callable[[str], None]
Progress = Callable[[float, float, str], None]
_LATE = {"Service": 0, "Deployment": 1, "StatefulSet": 2}  # pruned in this order, then all else


class StoppedError(DeployError):
    """Told to stop in the middle; `progress` may raise it. The next run goes on."""


@dataclass(frozen=True)
class Options:
    """How to deploy. `wait`: until it runs, and only then lead clients over; without, all at once.

    `back`: what did not come to run is taken away again. `in_place`: the running plan goes first. `owner`: reference to
    the resource that this is done for, which all objects get.
    """

    wait: bool = True
    timeout_s: float = 600.0
    force: bool = False
    back: bool = False
    in_place: bool = False
    owner: Mapping[str, Any] | None = None
    now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC)
    say: Say = lambda text: None
    progress: Progress = lambda done, total, label: None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a deployment did. `number`: of its revision, None where nothing was to do."""

    number: int | None
    applied: tuple[Key, ...] = ()
    pruned: tuple[Key, ...] = ()


@dataclass
class _Work:
    """One deployment under way, inside the lock."""

    cluster: Cluster
    app: str
    lock: Lock
    options: Options
    inventory: Inventory
    applied: list[Key] = field(default_factory=list)
    pruned: list[Key] = field(default_factory=list)

    def live(self, wanted: Iterable[Object]) -> dict[Key, Object]:
        """What there is under names of the inventory and of what is wanted, whoever made it."""
        keys = self.inventory.objects | {key_of(item) for item in wanted}
        found: dict[Key, Object] = {}
        for kind in sorted({kind for kind, _ in keys} - {"Secret"}):
            found |= by_key(self.cluster.list(kind), kind)
        for kind, name in keys:
            if kind == "Secret" and (there := self.cluster.get(kind, name)) is not None:  # no right to list them needed
                found[kind, name] = there
        return {key: item for key, item in found.items() if key in keys}

    def remember(self, inventory: Inventory) -> None:
        self.inventory = inventory
        write_inventory(self.cluster, inventory)

    def apply(self, objects: Iterable[Object], wanted: frozenset[Key], new: frozenset[Key]) -> None:
        """Apply those that have to be; what an autoscaler will scale starts with all of its workers."""
        scaled = {}
        objects = tuple(objects)
        for item in objects:
            if item["kind"] == "HorizontalPodAutoscaler":
                scaled[item["spec"]["scaleTargetRef"]["name"]] = item["spec"]["maxReplicas"]
        for done, item in enumerate(objects):
            key = key_of(item)
            if key not in wanted:
                continue
            self.lock.renew()
            self.cluster.apply(item, force=self.options.force)
            self.applied.append(key)
            if key in new and key[0] == "StatefulSet" and key[1] in scaled:
                self.cluster.merge(*key, {"spec": {"replicas": scaled[key[1]]}}, "scale")
            self.options.progress(done + 1, len(objects), "/".join(key))

    def prune(self, keys: Iterable[Key]) -> None:
        """Delete objects of the inventory that are ours; others of these names are left alone."""
        for key in sorted(keys, key=lambda key: (_LATE.get(key[0], len(_LATE)), key)):
            self.lock.renew()
            there = self.cluster.get(*key)
            if there is not None and is_ours(there, self.app):
                if self.cluster.delete(*key, there["metadata"]["uid"]):
                    self.pruned.append(key)
            elif there is not None:
                self.options.say(f"{'/'.join(key)} is not of this deployment any more: it stays")


def dry_run(
    cluster: Cluster, deployed: Deployed, objects: Sequence[Object], *, force: bool = False
) -> list[tuple[Object | None, Object | None]]:
    """What the server would make of the objects: (before, after) of each that would change; None: was or is not there.

    Asks the server for each (server-side dry run), so what it would refuse is refused here.
    """
    app, keep = deployed.app, _certificates(deployed)
    inventory = read_inventory(cluster, app)
    work = _Work(cluster, app, Lock(cluster, app), Options(), inventory)
    wanted = [stamped(item) for item in objects]
    live = work.live(wanted)
    found = changes(wanted, live, app)
    pairs: list[tuple[Object | None, Object | None]] = []
    for item in (*found.new, *found.changed):
        pairs.append((live.get(key_of(item)), cluster.apply(item, dry_run=True, force=force)))
    gone = set(inventory.objects) - {key_of(item) for item in wanted} - keep
    return pairs + [(live[key], None) for key in sorted(gone) if key in live]


def deploy(cluster: Cluster, deployed: Deployed, objects: Sequence[Object], options: Options | None = None) -> Outcome:
    """Make the cluster serve the plan. Does nothing where it does already.

    DeployError names what is missing before anything was applied (`PreflightError`), whose fields those are
    (`FieldConflictError`), or why pods do not run (`NotReadyError`).
    """
    options, plan = options or Options(), deployed.plan
    before = read_inventory(cluster, deployed.app)
    _refuse_other_owner(before, options.owner)
    objects = owned(objects, options.owner)
    leaving = _others(before.objects, objects) if options.in_place else frozenset()
    names = frozenset(name for kind, name in leaving if kind in WORKLOADS)
    for note in check(cluster, deployed, objects, leaving=names):
        options.say(note)
    with Lock(cluster, deployed.app, now=options.now, say=options.say) as lock:
        inventory = read_inventory(cluster, deployed.app)
        _refuse_other_owner(inventory, options.owner)
        work = _Work(cluster, deployed.app, lock, options, replace(inventory, owner=options.owner))
        about = (str(to_document(plan)["hash"]), plan.cost.total_usd_per_h, plan.accuracy)
        return _bring(work, objects, deployed.id, about, keep=_certificates(deployed))


def rollback(cluster: Cluster, app: str, number: int | None = None, options: Options | None = None) -> Outcome:
    """Serve an earlier revision again: the last one that served before the present one, unless one is named."""
    options = options or Options()
    _require(cluster, app)
    with Lock(cluster, app, now=options.now, say=options.say) as lock:
        work = _Work(cluster, app, lock, options, read_inventory(cluster, app))
        target = _earlier(work.inventory, number)
        manifests = read_revision(cluster, app, target.number)
        about = (target.plan, target.cost_usd_per_h, target.accuracy)
        certificates = frozenset(key for key in work.inventory.objects if key[0] == "Secret")
        return _bring(work, manifests, target.served, about, keep=certificates)


def undeploy(cluster: Cluster, app: str, options: Options | None = None) -> tuple[Key, ...]:
    """Take everything away that this deployment made, gateway first so that requests in hand are answered."""
    options = options or Options()
    _require(cluster, app)
    with Lock(cluster, app, now=options.now, say=options.say) as lock:
        work = _Work(cluster, app, lock, options, read_inventory(cluster, app))
        inventory = work.inventory
        gateway = [key for key in inventory.objects if key[0] in ("Deployment", "Service")]
        work.prune(gateway)
        if options.wait:
            selector = f"{selector_of(app)},{APP}/component=gateway"
            await_gone(cluster, selector, options.timeout_s, lock.renew)
        work.prune(set(inventory.objects) - set(gateway))
        if options.wait and (left := await_gone(cluster, selector_of(app), options.timeout_s, lock.renew)):
            raise DeployError(f"{left} pods of {app} are still there after {options.timeout_s:g} s; run it again")
        work.prune(("ConfigMap", revision_name(app, revision.number)) for revision in inventory.revisions)
        work.prune([("ConfigMap", inventory.name), ("Lease", lock.name)])
        return tuple(work.pruned)


def _refuse_other_owner(inventory: Inventory, owner: Mapping[str, Any] | None) -> None:
    """What a resource deployed is changed by that resource, what was deployed by hand by nobody else."""
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


def _require(cluster: Cluster, app: str) -> None:
    """DeployError where nothing was ever deployed: not even a lock is left there."""
    inventory = read_inventory(cluster, app)
    if not inventory.objects and not inventory.revisions:
        raise DeployError(f"nothing of {app} is deployed in {cluster.namespace}")


def _bring(
    work: _Work,
    objects: Sequence[Object],
    served: str,
    about: tuple[str, float, float | None],
    *,
    keep: frozenset[Key] = frozenset(),
) -> Outcome:
    """Apply, wait, lead clients over, prune. `keep`: what is not wanted here, but needed."""
    options = work.options
    wanted = [stamped(item) for item in objects]
    found = changes(wanted, work.live(wanted), work.app)
    stale = frozenset(key for key in _others(work.inventory.objects, objects) if key not in keep)
    current = work.inventory.current
    if not found.to_apply and not stale and current is not None and current is work.inventory.revisions[-1]:
        return Outcome(None)
    _refuse_two_spools(work, objects, stale)
    _refuse_conflicts(work, found)
    number = max((revision.number for revision in work.inventory.revisions), default=0) + 1
    plan, cost, accuracy = about
    revision = Revision(number, plan, served, APPLYING, timestamp(options.now()), cost, accuracy)
    work.remember(work.inventory.begun(revision, objects))
    write_revision(work.cluster, work.inventory, number, objects)
    try:
        _take_over(work, wanted, found, stale)
    except (UnreachableError, LockedError, StoppedError):
        raise  # nothing can, or may, be said to the cluster now: the next run goes on
    except DeployError as error:
        work.lock.renew()
        work.remember(work.inventory.with_state(number, FAILED))
        if not options.back:
            raise
        raise _taken_back(work, error, keep) from error
    done, gone = work.inventory.with_state(number, DEPLOYED).shortened()
    work.remember(replace(done, objects=done.objects - stale))
    work.prune(("ConfigMap", revision_name(work.app, old)) for old in gone)
    return Outcome(number, tuple(work.applied), tuple(work.pruned))


def _refuse_two_spools(work: _Work, objects: Sequence[Object], stale: frozenset[Key]) -> None:
    """One gateway at a time may work on the requests that are kept on a volume."""
    beside = any(kind == "Deployment" for kind, _ in stale) and not work.options.in_place
    volumes = [v for o in objects if o["kind"] == "Deployment" for v in o["spec"]["template"]["spec"]["volumes"]]
    if beside and any(volume["name"] == SPOOL_VOLUME for volume in volumes):
        raise DeployError(
            "nothing was applied: two gateways cannot share the volume of kept requests; --in-place lets the running "
            "one go first, and the new one answers what it left"
        )


def _refuse_conflicts(work: _Work, found: Changes) -> None:
    """All fields that others have set, before any is touched."""
    if work.options.force:
        return
    conflicts: list[str] = []
    for item in found.changed:
        try:
            work.cluster.apply(item, dry_run=True)
        except FieldConflictError as error:
            conflicts.append(str(error))
    if conflicts:
        raise DeployError("nothing was applied:" + summary(conflicts))


def _take_over(work: _Work, wanted: Sequence[Object], found: Changes, stale: frozenset[Key]) -> None:
    options = work.options
    new = frozenset(key_of(item) for item in found.new)
    front, rest = wanted[-1:], wanted[:-1]
    if front[0]["kind"] != "Service":
        raise DeployError(
            f"the last object is {front[0]['kind']}, not the Service of the clients: a fault of JellyBean"
        )
    if options.in_place and stale:
        options.say("the running plan goes first: requests are refused until the new one runs")
        work.prune(stale)
        served = front[0]["spec"]["selector"][f"{OWN}/plan"]
        gone = await_gone(
            work.cluster, f"{selector_of(work.app)},{OWN}/plan!={served}", options.timeout_s, work.lock.renew
        )
        if gone:
            raise DeployError(f"{gone} pods of the plan before are still there after {options.timeout_s:g} s")
    work.apply(rest, found.to_apply, new)
    if options.wait:
        keys = [key_of(item) for item in rest]
        await_ready(work.cluster, work.app, keys, options.timeout_s, pulse=work.lock.renew, progress=options.progress)
    work.apply(front, found.to_apply, new)
    work.prune(stale - frozenset(work.pruned))


def _taken_back(work: _Work, error: DeployError, keep: frozenset[Key]) -> DeployError:
    """What came up in vain goes, what was changed is as before; the error with a word on it."""
    current = work.inventory.current
    if current is None:
        work.prune(work.inventory.objects)
        work.remember(replace(work.inventory, objects=frozenset()))
        return DeployError(f"{error}\nwhat was applied is taken away again; nothing was served before")
    before = [stamped(item) for item in read_revision(work.cluster, work.app, current.number)]
    keys = {key_of(item) for item in before}
    again = changes(before, work.live(before), work.app)
    work.apply(before, again.to_apply, frozenset(key_of(item) for item in again.new))
    in_vain = work.inventory.objects - keys - keep - {key for key in work.inventory.objects if key[0] == "Secret"}
    work.prune(in_vain)
    work.remember(replace(work.inventory, objects=work.inventory.objects - in_vain))
    return DeployError(f"{error}\nrevision {current.number} serves as before: what was applied is taken back")


def _certificates(deployed: Deployed) -> frozenset[Key]:
    """Secrets that the plan's pods mount, whoever made them."""
    return frozenset(("Secret", tls_secret(deployed, group)) for group in (None, *deployed.groups))


def _others(inventory: Iterable[Key], objects: Sequence[Object]) -> frozenset[Key]:
    """Of the inventory, what is not wanted any more."""
    return frozenset(inventory) - {key_of(item) for item in objects}


def _earlier(inventory: Inventory, number: int | None) -> Revision:
    current = inventory.current
    if number is None:
        replaced = [
            r for r in inventory.revisions if r.state == REPLACED and (current is None or r.number < current.number)
        ]
        last = inventory.revisions[-1] if inventory.revisions else None
        if last is not None and current is not None and last.number > current.number:
            return current  # the newest never served: back to what does
        if not replaced:
            raise DeployError(f"{inventory.app} has no revision before the one that serves")
        return replaced[-1]
    for revision in inventory.revisions:
        if revision.number == number:
            return revision
    known = ", ".join(str(revision.number) for revision in inventory.revisions) or "none"
    raise DeployError(f"{inventory.app} has no revision {number}; there are: {known}")
