"""What a deployment needs beside the plan: images, where models come from, how a pool's workers look as pods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jellybean_k8s.errors import DeployError
from jellybean_k8s.names import SITE_LABEL, TIER_LABEL

MIB = 2**20
OWN_STEPS = "jellybean_agent.steps"  # Python functions that every agent runs
GPU_RESOURCES = {  # vendor -> the resource that its device plugin counts
    "nvidia": "nvidia.com/gpu",
    "amd": "amd.com/gpu",
    "intel": "gpu.intel.com/i915",
}


@dataclass(frozen=True, slots=True)
class Models:
    """Where pods get model files: exactly one of the three. Whatever it is, every file is verified by its sha256.

    `url`: fetched by an init container from `url`/path. `image`: an OCI image, mounted as a volume (Kubernetes 1.35; in
    1.33 and 1.34 a feature gate). `claim`: a PersistentVolumeClaim, mounted read-only. `folder`: where in image or
    claim the project's folder is. `secret`: its key `authorization` is sent as that header of each fetch.
    """

    url: str | None = None
    image: str | None = None
    claim: str | None = None
    folder: str = ""
    secret: str | None = None

    def __post_init__(self) -> None:
        """DeployError unless there is exactly one place."""
        given = [name for name in ("url", "image", "claim") if getattr(self, name)]
        if len(given) != 1:
            named = " and ".join(given) or "none"
            raise DeployError(f"models: one of url, image or claim says where the model files are; given: {named}")
        if self.secret and self.url and not self.url.startswith("https://"):
            raise DeployError(f"models: {self.url} with a secret: only https:// keeps it secret")


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """How one worker of a pool looks as a pod.

    `memory_bytes`: requested; unless given, what the plan's models need and the agent itself. `gpu`: a vendor of
    `GPU_RESOURCES` or the name of a resource. `one_per_node`: no two workers on one node; where a worker is a device.
    `autoscale`: let an autoscaler take workers away while there is less to do, where the plan leaves room.
    """

    cpu: float = 1.0
    memory_bytes: float | None = None
    gpu: str | None = None
    gpus: int = 1
    node_labels: Mapping[str, str] = field(default_factory=dict)
    one_per_node: bool | None = None
    autoscale: bool = False

    @property
    def gpu_resource(self) -> str | None:
        """`nvidia.com/gpu`; None without a GPU."""
        return GPU_RESOURCES.get(self.gpu, self.gpu) if self.gpu else None


@dataclass(frozen=True, slots=True)
class Settings:
    """`edge_tiers`: tiers whose nodes may be out of reach for long, and have one worker each; the plan's first if None.

    `gateway_tier`: None puts it where the first source is, or in the last tier of a plan with sites. `unreachable_s`:
    how long pods of edge tiers stay bound to a node that does not answer. `version`: of JellyBean, told in a label.
    `allow_python`: functions in the agent's image that its pods may run, besides the agent's own steps.
    """

    agent_image: str
    gateway_image: str
    models: Models
    name: str | None = None  # of the deployment; the workflow's unless given
    pools: Mapping[str, PoolSettings] = field(default_factory=dict)
    tier_label: str = TIER_LABEL
    site_label: str = SITE_LABEL
    edge_tiers: tuple[str, ...] | None = None
    gateway_tier: str | None = None
    gateway_cpu: float = 1.0
    gateway_memory_bytes: float = 512 * MIB
    gateway_spool: str | None = None  # PersistentVolumeClaim for requests that are kept until they are answered
    image_pull_secrets: tuple[str, ...] = ()
    allow_python: tuple[str, ...] = ()
    drain_s: float = 30.0
    pre_stop_s: int = 5
    start_s: float = 600.0
    unreachable_s: int = 7 * 24 * 3600
    version: str = "0.1.0"

    def of_pool(self, pool: str) -> PoolSettings:
        """The settings of a pool; the defaults where it has none."""
        return self.pools.get(pool, PoolSettings())
