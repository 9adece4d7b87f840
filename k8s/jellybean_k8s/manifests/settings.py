"""Settings of a deployment beside the plan: images, source of model files, pod settings per pool."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field

from jellybean_k8s.errors import DeployError
from jellybean_k8s.manifests.clusters import ClusterPlace, RelaySettings
from jellybean_k8s.manifests.pod_settings import PodSettings, ServiceSettings
from jellybean_k8s.manifests.traces import TraceSettings
from jellybean_k8s.names import SITE_LABEL, TIER_LABEL

MIB = 2**20
OWN_STEPS = "jellybean_agent.steps"  # module of the Python functions that every agent may run
GPU_RESOURCES = {  # vendor -> resource of its device plugin
    "nvidia": "nvidia.com/gpu",
    "amd": "amd.com/gpu",
    "intel": "gpu.intel.com/i915",
}
MAX_GATEWAYS = 16  # of a deployment: half of those that an agent knows at once (`gateway_peers.MAX_GATEWAYS`)
_MAX_PORT = 65535
MODEL_PORTS = {"https": 443, "http": 80}  # scheme of a URL of models -> its default port


def model_port(url: str) -> int:
    """The port of a URL from which models are fetched. ValueError if it names no host, or no port that exists."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in MODEL_PORTS or not parts.hostname:
        raise ValueError(f"{url} has no host that http:// or https:// reaches")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError(f"{url} has no port from 1 to 65535")
    return MODEL_PORTS[parts.scheme] if port is None else port


@dataclass(frozen=True, slots=True)
class ModelCache:
    """Where fetched models are kept for other pods: exactly one of `claim` and `host_path`, at most `size_bytes`.

    `claim`: a PersistentVolumeClaim that all agents mount. `host_path`: a folder of each node, which only namespaces
    with the Pod Security level `privileged` admit.
    """

    claim: str | None = None
    host_path: str | None = None
    size_bytes: float = 20.0 * 2**30

    def __post_init__(self) -> None:
        """DeployError unless exactly one place is given, with room."""
        if (self.claim is None) == (self.host_path is None):
            raise DeployError("models.cache: write one of claim and host_path")
        path = self.host_path
        if path is not None and (not path.startswith("/") or path.strip("/") == "" or ".." in path.split("/")):
            raise DeployError(f"models.cache.host_path: {path} is not the absolute path of a folder")
        if self.size_bytes < 1:
            raise DeployError("models.cache.size: a cache without room keeps nothing")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where pods get model files from: exactly one of `url`, `image` and `claim`. All files are verified by sha256.

    `url`: an init container fetches `url`/path. `image`: an OCI image mounted as a volume (Kubernetes 1.35; in 1.33 and
    1.34 a feature gate). `claim`: a PersistentVolumeClaim, mounted read-only. `folder`: the project's folder in the
    image or claim. `secret`: its key `authorization` is sent as the Authorization header of each fetch. `cache`: of
    what is fetched from `url`.
    """

    url: str | None = None
    image: str | None = None
    claim: str | None = None
    folder: str = ""
    secret: str | None = None
    cache: ModelCache | None = None

    def __post_init__(self) -> None:
        """DeployError unless exactly one source is given, and a URL can be fetched from."""
        given = [name for name in ("url", "image", "claim") if getattr(self, name)]
        if len(given) != 1:
            named = " and ".join(given) or "none"
            raise DeployError(f"models: one of url, image or claim says where the model files are; given: {named}")
        if self.cache is not None and self.url is None:
            raise DeployError("models.cache: only files of a url are fetched: remove cache")
        if self.secret and self.url and not self.url.startswith("https://"):
            raise DeployError(f"models: {self.url} with a secret: only https:// keeps it secret")
        try:
            _ = self.ports
        except ValueError as error:
            raise DeployError(f"models.url: {error}") from error

    @property
    def ports(self) -> tuple[int, ...]:
        """Ports that agents fetch models from: those of both schemes, to which a server may redirect, and the URL's.

        None without a URL.
        """
        if self.url is None:
            return ()
        return tuple(dict.fromkeys((*MODEL_PORTS.values(), model_port(self.url))))


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Pod settings of a pool's workers.

    `memory_bytes`: request; by default what the plan's models and the agent need. `gpu`: a vendor of `GPU_RESOURCES` or
    the name of a resource; by default the vendor of the planned device, if that is a GPU. `one_per_node`: no two
    workers on a node, for workers that are devices. `autoscale`: an autoscaler may remove workers while the load is
    lower than planned, as far as the plan allows. `pods`: beside those of all pods.
    """

    cpu: float = 1.0
    memory_bytes: float | None = None
    gpu: str | None = None
    gpus: int = 1
    node_labels: Mapping[str, str] = field(default_factory=dict)
    one_per_node: bool | None = None
    autoscale: bool = False
    pods: PodSettings = field(default_factory=PodSettings)


@dataclass(frozen=True, slots=True)
class LedgerDatabase:
    """The database in which gateways write what serving costs.

    `url`: with a user, without a password. `secret`: its key `password` is the password.
    """

    url: str
    secret: str | None = None

    @property
    def port(self) -> int:
        """The database's port."""
        _, _, port = self.url.partition("://")[2].partition("/")[0].rpartition("@")[2].rpartition(":")
        return int(port) if port.isdecimal() else 5432

    def __post_init__(self) -> None:
        """DeployError unless pods can use it: a file in a pod would be lost with it."""
        scheme, _, rest = self.url.partition("://")
        if scheme != "postgresql+psycopg" or not rest:
            raise DeployError(f"the ledger of pods is a database, postgresql+psycopg://USER@HOST/NAME, not {self.url}")
        if not 0 < self.port <= _MAX_PORT:
            raise DeployError(f"the ledger's port is {self.port}, not from 1 to {_MAX_PORT}: {self.url}")
        if ":" in rest.partition("/")[0].rpartition("@")[0]:
            raise DeployError("who sees a pod sees a password in the ledger's URL: put it into a Secret, and name that")


@dataclass(frozen=True, slots=True)
class DeploymentSettings:
    """Settings of a deployment.

    `agent_images`: execution provider of workers (`cpu`, `cuda`, ...) -> image of their agents, with that provider.
    `edge_tiers`: tiers whose nodes may be unreachable for long and run one worker each; by default the plan's first.
    `gateway_tier`: by default that of the first source, or the last tier of a plan with sites. `gateway_replicas`:
    gateways beside each other, between which the Service divides its clients. `unreachable_s`: how
    long pods of edge tiers stay bound to an unreachable node. `version`: of JellyBean, for a label. `allow_python`:
    functions in the agent image that its pods may run, besides the agent's own steps. `metrics`: workflow -> by which
    labels that come later judge its answers, of the operator `labelled`, by default the only one that answers. The name
    of a plan's only workflow is empty. `clusters`: name -> what runs there, of a plan over several; `relay`: by which
    the other clusters reach the gateway's.
    """

    agent_images: Mapping[str, str]
    gateway_image: str
    models: ModelSource
    name: str | None = None  # of the deployment; by default the workflow's
    pools: Mapping[str, PoolSettings] = field(default_factory=dict)
    tier_label: str = TIER_LABEL
    site_label: str = SITE_LABEL
    edge_tiers: tuple[str, ...] | None = None
    gateway_tier: str | None = None
    gateway_replicas: int = 1
    gateway_cpu: float = 1.0
    gateway_memory_bytes: float = 512 * MIB
    gateway_spool: str | None = None  # PersistentVolumeClaim for requests that are kept until they are answered
    gateway_ledger: LedgerDatabase | None = None
    gateway_pods: PodSettings = field(default_factory=PodSettings)  # beside `pods`
    gateway_service: ServiceSettings = field(default_factory=ServiceSettings)
    pods: PodSettings = field(default_factory=PodSettings)  # of all pods
    traces: TraceSettings | None = None
    image_pull_secrets: tuple[str, ...] = ()
    allow_python: tuple[str, ...] = ()
    drain_s: float = 30.0
    pre_stop_s: int = 5
    start_s: float = 600.0
    unreachable_s: int = 7 * 24 * 3600
    version: str = "0.1.0"
    metrics: Mapping[str, str] = field(default_factory=dict)
    labelled: Mapping[str, str] = field(default_factory=dict)
    clusters: Mapping[str, ClusterPlace] = field(default_factory=dict)
    relay: RelaySettings | None = None

    def of_pool(self, pool: str) -> PoolSettings:
        """The settings of a pool, or the defaults."""
        return self.pools.get(pool, PoolSettings())
