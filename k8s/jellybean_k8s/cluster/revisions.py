"""Records of a deployment in the cluster: its inventory of objects, and the manifests of its last revisions.

The inventory is a ConfigMap that is written before objects are created, so that none is ever lost; only objects in it
are pruned. A revision is a ConfigMap with compressed manifests. Secrets are recorded by name only.
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
from jellybean_k8s.cluster.compare import ObjectKey, object_key
from jellybean_k8s.errors import DeployError, NotDeployedError
from jellybean_k8s.names import APP_PREFIX, FIELD_MANAGER
from jellybean_k8s.objects import KubeObject
from jellybean_solver import Plan, to_document

KEPT_REVISIONS = 5  # number of revisions kept
APPLYING, DEPLOYED, FAILED, REPLACED = "applying", "deployed", "failed", "replaced"
_STATE = "inventory.json"
_MANIFESTS = "manifests.json.gz"
_PLAN = "plan.json.gz"
_MOST_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Revision:
    """A deployment that was started. `plan`: hash of plan.json; `served`: short hash in the objects' names.

    `secrets`: names of the Secrets that it brought or mounts; None where an earlier JellyBean did not record them.
    `clusters`: names of all clusters that it has objects in, the gateway's first; empty where the only one has no name.
    """

    number: int
    plan: str
    served: str
    state: str
    began: str  # ISO 8601, UTC
    cost_usd_per_h: float
    accuracy: float | None
    secrets: tuple[str, ...] | None = None
    clusters: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inventory:
    """Every object that this deployment may have created, and its revisions, oldest first."""

    app: str
    objects: frozenset[ObjectKey] = frozenset()
    revisions: tuple[Revision, ...] = field(default=())
    owner: Mapping[str, Any] | None = None  # reference to the custom resource; None: deployed by a person

    @property
    def exists(self) -> bool:
        """True if anything is, or was, deployed."""
        return bool(self.objects or self.revisions)

    @property
    def has_client_service(self) -> bool:
        """True if the Service that clients call may be in this cluster."""
        return ("Service", self.app) in self.objects

    @property
    def highest_number(self) -> int:
        """The number of its newest revision; 0 if there is none."""
        return max((revision.number for revision in self.revisions), default=0)

    @property
    def current(self) -> Revision | None:
        """The revision that serves clients."""
        return next((found for found in reversed(self.revisions) if found.state == DEPLOYED), None)

    @property
    def secrets(self) -> frozenset[ObjectKey]:
        """The Secrets of its revisions, any of which may be rolled back to."""
        if any(revision.secrets is None for revision in self.revisions):
            return frozenset(key for key in self.objects if key[0] == "Secret")
        return frozenset(("Secret", name) for revision in self.revisions for name in revision.secrets or ())

    @property
    def name(self) -> str:
        """Name of its ConfigMap."""
        return f"{self.app}-inventory"

    def with_state(self, number: int, state: str) -> Inventory:
        """Change a revision's state; a deployed revision replaces the previous one."""
        found = []
        for revision in self.revisions:
            if revision.number == number:
                found.append(replace(revision, state=state))
            elif state == DEPLOYED and revision.state == DEPLOYED:
                found.append(replace(revision, state=REPLACED))
            else:
                found.append(revision)
        return replace(self, revisions=tuple(found))

    def with_new_revision(self, revision: Revision, objects: Iterable[KubeObject]) -> Inventory:
        """Add a revision whose objects may be created from now on; an unfinished earlier one has failed.

        It takes the place of one with the same number.
        """
        others = [r for r in self.revisions if r.number != revision.number]
        before = [replace(r, state=FAILED) if r.state == APPLYING else r for r in others]
        wanted = {object_key(item) for item in objects}
        return replace(self, objects=self.objects | wanted, revisions=(*before, revision))

    def without_oldest(self) -> tuple[Inventory, tuple[int, ...]]:
        """Without revisions beyond the last `KEPT_REVISIONS`, and as many that served; and the numbers removed.

        However often a deployment fails, the revision before it can be returned to.
        """
        served = [revision for revision in self.revisions if revision.state in (DEPLOYED, REPLACED)]
        keep = {revision.number for revision in (*self.revisions[-KEPT_REVISIONS:], *served[-KEPT_REVISIONS:])}
        gone = tuple(revision.number for revision in self.revisions if revision.number not in keep)
        return replace(self, revisions=tuple(r for r in self.revisions if r.number in keep)), gone


def read_inventory(cluster: Cluster, app: str) -> Inventory:
    """The inventory in the cluster; empty if nothing was deployed. DeployError if it is damaged."""
    found = cluster.get("ConfigMap", f"{app}-inventory")
    if found is None:
        return Inventory(app)
    try:
        state = json.loads(found["data"][_STATE])
        revisions = tuple(_revision(item) for item in state["revisions"])
        owner = next(iter(found["metadata"].get("ownerReferences") or ()), None)
        return Inventory(app, frozenset((kind, name) for kind, name in state["objects"]), revisions, owner)
    except (KeyError, TypeError, ValueError) as error:
        raise DeployError(
            f"ConfigMap {app}-inventory was changed and cannot be read ({error}): restore it, or delete it and deploy "
            "again; objects that are not of the new plan then stay until you delete them"
        ) from error


def check_owner(inventory: Inventory, owner: Mapping[str, Any] | None) -> None:
    """DeployError if the deployment has another owner; None stands for a person who deploys by command."""
    theirs = inventory.owner
    if not inventory.exists or (theirs or {}).get("uid") == (owner or {}).get("uid"):
        return
    if theirs is None:
        raise DeployError(
            f"{inventory.app} is deployed here already, by hand: `jellybean undeploy` it first, or give this another"
            " `name` in its kubernetes part"
        )
    raise DeployError(
        f"{inventory.app} is deployed for {theirs['kind']} {theirs['name']}: change that, or give this another `name`"
    )


def read_deployed(cluster: Cluster, app: str) -> Inventory:
    """The inventory in the cluster. NotDeployedError if nothing is deployed."""
    inventory = read_inventory(cluster, app)
    if not inventory.exists:
        raise NotDeployedError(f"nothing of {app} is deployed in {cluster.namespace}")
    return inventory


def _revision(item: Mapping[str, Any]) -> Revision:
    secrets = item.get("secrets")
    clusters = tuple(item.get("clusters") or ())  # earlier JellyBeans did not record them
    return Revision(**{**item, "secrets": None if secrets is None else tuple(secrets), "clusters": clusters})


def write_inventory(cluster: Cluster, inventory: Inventory) -> None:
    """Write the inventory."""
    state = {
        "objects": sorted(inventory.objects),
        "revisions": [asdict(revision) for revision in inventory.revisions],
    }
    data = {_STATE: json.dumps(state, separators=(",", ":"))}
    (item,) = with_owner([_config_map(inventory.app, inventory.name, data=data)], inventory.owner)
    cluster.apply(item, force=True)


def write_revision(cluster: Cluster, inventory: Inventory, number: int, objects: Sequence[KubeObject]) -> None:
    """Write the manifests of a revision. DeployError if they are too large even compressed."""
    kept = [item for item in objects if item["kind"] != "Secret"]
    packed = gzip.compress(json.dumps(kept, separators=(",", ":")).encode(), mtime=0)
    if len(packed) > _MOST_BYTES:
        raise DeployError(f"{len(kept):,} objects take {len(packed):,} bytes compressed; {_MOST_BYTES:,} can be kept")
    text = base64.b64encode(packed).decode()
    name = revision_name(inventory.app, number)
    (item,) = with_owner([_config_map(inventory.app, name, binaryData={_MANIFESTS: text})], inventory.owner)
    cluster.apply(item, force=True)


def read_revision(cluster: Cluster, app: str, number: int) -> tuple[KubeObject, ...]:
    """The manifests of a revision. DeployError if they are gone."""
    found = cluster.get("ConfigMap", revision_name(app, number))
    if found is None:
        raise DeployError(f"the manifests of revision {number} of {app} are gone: deploy its plan again")
    return tuple(json.loads(gzip.decompress(base64.b64decode(found["binaryData"][_MANIFESTS]))))


def revision_name(app: str, number: int) -> str:
    """Name of the ConfigMap with a revision's manifests."""
    return f"{app}-revision-{number}"


def plan_record(app: str, served: str, plan: Plan) -> KubeObject:
    """ConfigMap with the complete plan document, as the document that pods mount lacks link speeds and costs."""
    packed = gzip.compress(json.dumps(to_document(plan), separators=(",", ":")).encode(), mtime=0)
    return _config_map(app, _plan_name(app, served), binaryData={_PLAN: base64.b64encode(packed).decode()})


def read_plan_record(cluster: Cluster, app: str, served: str) -> KubeObject | None:
    """The recorded document of a plan; None if there is none."""
    found = cluster.get("ConfigMap", _plan_name(app, served))
    if found is None:
        return None
    return dict(json.loads(gzip.decompress(base64.b64decode(found["binaryData"][_PLAN]))))


def with_owner(objects: Iterable[KubeObject], owner: Mapping[str, Any] | None) -> tuple[KubeObject, ...]:
    """The objects with an owner reference, so that they are garbage-collected with the owner."""
    if owner is None:
        return tuple(objects)
    return tuple(item | {"metadata": {**item["metadata"], "ownerReferences": [dict(owner)]}} for item in objects)


def _plan_name(app: str, served: str) -> str:
    return f"{app}-{served}-plan"


def timestamp(now: datetime.datetime) -> str:
    """Format of times in revisions."""
    return now.astimezone(datetime.UTC).isoformat(timespec="seconds")


def _config_map(app: str, name: str, **content: Any) -> KubeObject:
    own = {
        f"{APP_PREFIX}/name": "jellybean",
        f"{APP_PREFIX}/instance": app,
        f"{APP_PREFIX}/component": "records",
        f"{APP_PREFIX}/managed-by": FIELD_MANAGER,
    }
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": own}, **content}
