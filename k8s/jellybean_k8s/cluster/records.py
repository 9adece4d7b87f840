"""What a deployment remembers in the cluster: which objects are its own, and the manifests of its last revisions.

The inventory is a ConfigMap; it is written before objects are made, so that none is ever lost, and objects are pruned
by it alone. A revision is a ConfigMap with its manifests, compressed. Secrets are remembered by name only.
"""

from __future__ import annotations

import base64
import datetime
import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from jellybean_k8s.cluster.cluster import Cluster
from jellybean_k8s.cluster.compare import Key, key_of
from jellybean_k8s.errors import DeployError
from jellybean_k8s.names import APP, MANAGER
from jellybean_solver import Plan, to_document

Object = dict[str, Any]
KEPT = 5  # revisions
APPLYING, DEPLOYED, FAILED, REPLACED = "applying", "deployed", "failed", "replaced"
_STATE = "inventory.json"
_MANIFESTS = "manifests.json.gz"
_PLAN = "plan.json.gz"
_MOST_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Revision:
    """One deployment that was begun. `plan`: the hash of plan.json; `served`: the short one in objects' names."""

    number: int
    plan: str
    served: str
    state: str
    began: str  # ISO 8601, UTC
    cost_usd_per_h: float
    accuracy: float | None


@dataclass(frozen=True)
class Inventory:
    """Every object that this deployment may have made, and its revisions, oldest first."""

    app: str
    objects: frozenset[Key] = frozenset()
    revisions: tuple[Revision, ...] = field(default=())
    owner: Mapping[str, Any] | None = None  # reference to the resource that it is deployed for; None: by hand

    @property
    def current(self) -> Revision | None:
        """The revision that serves."""
        return next((found for found in reversed(self.revisions) if found.state == DEPLOYED), None)

    @property
    def name(self) -> str:
        """Of its ConfigMap."""
        return f"{self.app}-inventory"

    def with_state(self, number: int, state: str) -> Inventory:
        """A revision in another state; one that is deployed replaces the one before."""
        found = []
        for revision in self.revisions:
            if revision.number == number:
                found.append(replace(revision, state=state))
            elif state == DEPLOYED and revision.state == DEPLOYED:
                found.append(replace(revision, state=REPLACED))
            else:
                found.append(revision)
        return replace(self, revisions=tuple(found))

    def begun(self, revision: Revision, objects: Iterable[Object]) -> Inventory:
        """With a revision whose objects may come into being from now on; one that was never finished has failed."""
        before = [replace(r, state=FAILED) if r.state == APPLYING else r for r in self.revisions]
        wanted = {key_of(item) for item in objects}
        return replace(self, objects=self.objects | wanted, revisions=(*before, revision))

    def shortened(self) -> tuple[Inventory, tuple[int, ...]]:
        """Without the oldest revisions beyond `KEPT`, and their numbers; the one that serves stays."""
        keep = {revision.number for revision in self.revisions[-KEPT:]}
        if self.current is not None:
            keep.add(self.current.number)
        gone = tuple(revision.number for revision in self.revisions if revision.number not in keep)
        return replace(self, revisions=tuple(r for r in self.revisions if r.number in keep)), gone


def read_inventory(cluster: Cluster, app: str) -> Inventory:
    """What the cluster remembers; an empty inventory where nothing was deployed. DeployError when it is damaged."""
    found = cluster.get("ConfigMap", f"{app}-inventory")
    if found is None:
        return Inventory(app)
    try:
        state = json.loads(found["data"][_STATE])
        revisions = tuple(Revision(**item) for item in state["revisions"])
        owner = next(iter(found["metadata"].get("ownerReferences") or ()), None)
        return Inventory(app, frozenset((kind, name) for kind, name in state["objects"]), revisions, owner)
    except (KeyError, TypeError, ValueError) as error:
        raise DeployError(
            f"ConfigMap {app}-inventory was changed and cannot be read ({error}): restore it, or delete it and deploy "
            "again; what is not of the new plan then stays until you delete it"
        ) from error


def write_inventory(cluster: Cluster, inventory: Inventory) -> None:
    """Remember it."""
    state = {
        "objects": sorted(inventory.objects),
        "revisions": [asdict(revision) for revision in inventory.revisions],
    }
    data = {_STATE: json.dumps(state, separators=(",", ":"))}
    (item,) = owned([_config_map(inventory.app, inventory.name, data=data)], inventory.owner)
    cluster.apply(item, force=True)


def write_revision(cluster: Cluster, inventory: Inventory, number: int, objects: Sequence[Object]) -> None:
    """Remember the manifests of a revision. DeployError when they are too many even compressed."""
    kept = [item for item in objects if item["kind"] != "Secret"]
    packed = gzip.compress(json.dumps(kept, separators=(",", ":")).encode(), mtime=0)
    if len(packed) > _MOST_BYTES:
        raise DeployError(f"{len(kept):,} objects take {len(packed):,} bytes compressed; {_MOST_BYTES:,} can be kept")
    text = base64.b64encode(packed).decode()
    name = revision_name(inventory.app, number)
    (item,) = owned([_config_map(inventory.app, name, binaryData={_MANIFESTS: text})], inventory.owner)
    cluster.apply(item, force=True)


def read_revision(cluster: Cluster, app: str, number: int) -> tuple[Object, ...]:
    """The manifests of a revision. DeployError when they are gone."""
    found = cluster.get("ConfigMap", revision_name(app, number))
    if found is None:
        raise DeployError(f"the manifests of revision {number} of {app} are gone: deploy its plan again")
    return tuple(json.loads(gzip.decompress(base64.b64decode(found["binaryData"][_MANIFESTS]))))


def revision_name(app: str, number: int) -> str:
    """Of the ConfigMap with a revision's manifests."""
    return f"{app}-revision-{number}"


def plan_record(app: str, served: str, plan: Plan) -> Object:
    """The plan as it was decided, in a ConfigMap: what is served has no links and speeds, so it does not tell."""
    packed = gzip.compress(json.dumps(to_document(plan), separators=(",", ":")).encode(), mtime=0)
    return _config_map(app, _plan_name(app, served), binaryData={_PLAN: base64.b64encode(packed).decode()})


def read_plan_record(cluster: Cluster, app: str, served: str) -> Object | None:
    """The document of a plan that was recorded; None where none was."""
    found = cluster.get("ConfigMap", _plan_name(app, served))
    if found is None:
        return None
    return dict(json.loads(gzip.decompress(base64.b64decode(found["binaryData"][_PLAN]))))


def owned(objects: Iterable[Object], owner: Mapping[str, Any] | None) -> tuple[Object, ...]:
    """The objects, each with a reference to its owner, so that none outlives it."""
    if owner is None:
        return tuple(objects)
    return tuple(item | {"metadata": {**item["metadata"], "ownerReferences": [dict(owner)]}} for item in objects)


def _plan_name(app: str, served: str) -> str:
    return f"{app}-{served}-plan"


def timestamp(now: datetime.datetime) -> str:
    """As revisions have it."""
    return now.astimezone(datetime.UTC).isoformat(timespec="seconds")


def _config_map(app: str, name: str, **content: Any) -> Object:
    own = {
        f"{APP}/name": "jellybean",
        f"{APP}/instance": app,
        f"{APP}/component": "records",
        f"{APP}/managed-by": MANAGER,
    }
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": own}, **content}
