"""kubernetes.yaml: the deployment settings of a project on Kubernetes (images, model storage, pod resources)."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    SerializationInfo,
    WithJsonSchema,
    model_validator,
)

from jellybean.documents.kubernetes_clusters import ClusterSpec, RelaySpec
from jellybean.documents.kubernetes_names import Cores, LabelKey, LabelValue, ObjectName
from jellybean.documents.kubernetes_pods import PodsSpec, ServiceSpec
from jellybean.documents.multi_workflow import AnyProject
from jellybean.documents.project import Project
from jellybean.documents.schema.fields import NOT_EMPTY, DocumentModel, Duration, Name, Size, is_long
from jellybean.documents.schema.reader import read_file
from jellybean.documents.schema.validation import validate_tree
from jellybean.documents.schema.workflow import FunctionRef
from jellybean.errors import DocumentError, DocumentProblem
from jellybean.quantities import InvalidValueError, quoted
from jellybean_agent import CPU, DEVICE_NAMES, Device
from jellybean_k8s import (
    GPU_RESOURCES,
    LABEL_KEY_PATTERN,
    MAX_GATEWAYS,
    MIB,
    SITE_LABEL,
    TIER_LABEL,
    DeployError,
    DeploymentSettings,
    LedgerDatabase,
    ModelCache,
    ModelSource,
    PoolSettings,
    TraceSettings,
    cluster_of,
    model_port,
    trace_port,
)

KUBERNETES_FILE = "kubernetes.yaml"
_TEMPLATE = (
    "write it; three lines are enough: `kind: Kubernetes`, `images: {agent: REGISTRY/jellybean-agent:TAG, gateway: "
    "REGISTRY/jellybean-gateway:TAG}`, `models: {url: https://HOST/FOLDER}` (docs/kubernetes.md)"
)


def _reference(text: str) -> str:
    if not text or any(character.isspace() for character in text):
        raise InvalidValueError(
            f"{quoted(text)} does not name an image", "for example registry.example/jellybean-agent:0.1.0"
        )
    return text


def _provider(name: str) -> str:
    hint = f"write {', '.join(DEVICE_NAMES)}, or the full name of an execution provider"
    try:
        numbered = Device(name).name != name.partition(":")[0]
    except ValueError as error:
        raise InvalidValueError(str(error), hint) from error
    if numbered:
        raise InvalidValueError(f"{quoted(name)} has a number, but all devices of a provider have one image", hint)
    return name


def _by_provider(value: Any) -> Any:
    return {CPU.name: value} if isinstance(value, str) else value


def _short_if_cpu(value: dict[str, str], info: SerializationInfo) -> Any:
    return value if is_long(info) or set(value) != {CPU.name} else value[CPU.name]


def _url(text: str) -> str:
    example = "for example https://models.example/digits"
    if not re.fullmatch(r"https?://[^\s]+", text):
        raise InvalidValueError(f"{quoted(text)} is not a URL", example)
    try:
        model_port(text)
    except ValueError as error:
        raise InvalidValueError(str(error), example) from error
    return text


def _gpu(text: str) -> str:
    if text not in GPU_RESOURCES and not ("/" in text and re.fullmatch(LABEL_KEY_PATTERN, text)):
        known = ", ".join(GPU_RESOURCES)
        raise InvalidValueError(
            f"{quoted(text)} is not a known GPU vendor", f"{known}, or a resource such as vendor.example/gpu"
        )
    return text


def _ledger_url(text: str) -> str:
    try:
        LedgerDatabase(text)
    except DeployError as error:
        raise InvalidValueError(str(error), "postgresql+psycopg://USER@HOST/NAME, and secret: NAME") from error
    return text


def _trace_endpoint(text: str) -> str:
    try:
        trace_port(text)
    except DeployError as error:
        raise InvalidValueError(str(error).removeprefix("traces.endpoint: ")) from error
    return text


Image = Annotated[str, AfterValidator(_reference), WithJsonSchema({"type": "string", "pattern": r"^\S+$"})]
ModelsUrl = Annotated[str, AfterValidator(_url), WithJsonSchema({"type": "string", "pattern": r"^https?://\S+$"})]
LedgerUrl = Annotated[
    str, AfterValidator(_ledger_url), WithJsonSchema({"type": "string", "pattern": r"^postgresql\+psycopg://\S+$"})
]
TraceEndpoint = Annotated[
    str,
    AfterValidator(_trace_endpoint),
    WithJsonSchema({"type": "string", "pattern": r"^https?://[^\s/]+:[0-9]+(/\S*)?$"}),
]
Gpu = Annotated[
    str,
    AfterValidator(_gpu),
    WithJsonSchema({"type": "string", "pattern": rf"^({'|'.join(GPU_RESOURCES)}|[^/\s]+/[^/\s]+)$"}),
]
AgentImages = Annotated[
    dict[Annotated[str, AfterValidator(_provider)], Image],
    NOT_EMPTY,
    BeforeValidator(_by_provider, json_schema_input_type=str | dict[str, Image]),
    PlainSerializer(_short_if_cpu),
]


class ImagesSpec(DocumentModel):
    """Container images of agent and gateway."""

    agent: AgentImages = Field(
        description="By execution provider of the workers, as in their `device`: {cpu: IMAGE, cuda: IMAGE}; a text is "
        "the image of workers on the CPU."
    )
    gateway: Image
    pull_secrets: Annotated[tuple[ObjectName, ...], Field(strict=False)] = ()


class CacheSpec(DocumentModel):
    """Where fetched model files are kept for other pods: exactly one of claim and host_path."""

    claim: ObjectName | None = Field(default=None, description="PersistentVolumeClaim that all agents mount.")
    host_path: Annotated[str, WithJsonSchema({"type": "string", "pattern": r"^/[^/]"})] | None = Field(
        default=None, description="Folder of each node; needs the Pod Security level privileged."
    )
    size_bytes: Size = Field(default=20.0 * 2**30, gt=0, alias="size", description="Of all files; 20 GiB by default.")

    @model_validator(mode="after")
    def _check(self) -> CacheSpec:
        try:
            ModelCache(self.claim, self.host_path, self.size_bytes)
        except DeployError as error:
            raise InvalidValueError(
                str(error).partition(": ")[2], "for example cache: {claim: models-cache}"
            ) from error
        return self

    @property
    def model_cache(self) -> ModelCache:
        """As rendering takes it."""
        return ModelCache(self.claim, self.host_path, self.size_bytes)


class ModelsSpec(DocumentModel):
    """Where pods get model files: exactly one of url, image, claim."""

    url: ModelsUrl | None = Field(
        default=None, description="Base URL of the files; an init container downloads URL/PATH of each."
    )
    image: Image | None = Field(default=None, description="OCI image with the files, mounted as a volume.")
    claim: ObjectName | None = Field(
        default=None, description="PersistentVolumeClaim with the files, mounted read-only."
    )
    folder: str = Field(default="", description="Path of the project folder in the image or the claim.")
    secret: ObjectName | None = Field(
        default=None, description="Secret whose key `authorization` is sent as HTTP header with each download."
    )

    cache: CacheSpec | None = Field(default=None, description="Keeps what is fetched from url for other pods.")

    @model_validator(mode="after")
    def _check_one_given(self) -> ModelsSpec:
        given = [name for name in ("url", "image", "claim") if getattr(self, name) is not None]
        if len(given) != 1:
            raise InvalidValueError(
                f"{' and '.join(given) or 'neither url, image nor claim'} given", "write one of the three"
            )
        if self.cache is not None and self.url is None:
            raise InvalidValueError("cache: only files of a url are fetched", "remove cache, or write url")
        return self


class TracesSpec(DocumentModel):
    """Where agents and gateway send traces, by OpenTelemetry's protocol."""

    endpoint: TraceEndpoint = Field(description="https://HOST:4318 (OTLP over HTTP), or another port (gRPC).")
    ratio: Annotated[float, Field(strict=False, ge=0, le=1)] = Field(
        default=1.0, description="Share of the requests that is traced, where their client has not decided."
    )
    secret: ObjectName | None = Field(
        default=None, description="Secret whose key `headers` has the headers of each export, KEY=VALUE,..."
    )

    @model_validator(mode="after")
    def _check_secret(self) -> TracesSpec:
        if self.secret is not None and not self.endpoint.startswith("https://"):
            raise InvalidValueError(
                f"{self.endpoint} with a secret: only https:// keeps it secret", "write https://, or remove secret"
            )
        return self


class PoolSpec(PodsSpec):
    """Pod settings of a pool's workers."""

    cpu: Cores = Field(default=1.0, description="CPU request in cores.")
    memory_bytes: Size | None = Field(
        default=None,
        gt=0,
        alias="memory",
        description="Memory request; by default the memory of its models plus 256 MiB.",
    )
    gpu: Gpu | None = Field(
        default=None,
        description="nvidia, amd, intel, or the name of an extended resource; by default that of the planned device.",
    )
    gpus: int = Field(default=1, ge=1, le=64)
    nodes: dict[LabelKey, LabelValue] = Field(
        default={}, description="Labels that its nodes must have in addition to the tier label."
    )
    one_per_node: bool | None = Field(default=None, description="One worker per node; by default true in edge tiers.")
    autoscale: bool = Field(default=False, description="Scale workers in under low load.")

    @model_validator(mode="after")
    def _check_limit(self) -> PoolSpec:
        self.check_limit(self.cpu)
        return self


class LedgerSpec(DocumentModel):
    """The database in which the gateway writes what serving costs."""

    url: LedgerUrl = Field(description="postgresql+psycopg://USER@HOST/NAME")
    secret: ObjectName | None = Field(default=None, description="Secret with the password under its key `password`.")


class GatewaySpec(PodsSpec):
    """Pod settings of the gateway."""

    tier: Name | None = Field(default=None, description="Tier in which it runs; the first source's tier by default.")
    replicas: int = Field(
        default=1, ge=1, le=MAX_GATEWAYS, description="Gateways beside each other, so that one may be lost."
    )
    cpu: Cores = 1.0
    memory_bytes: Size = Field(default=512.0 * MIB, gt=0, alias="memory")
    spool: ObjectName | None = Field(
        default=None, description="PersistentVolumeClaim for requests of sources with `deliver: eventually`."
    )
    ledger: LedgerSpec | None = Field(default=None, description="Where it writes what serving costs.")
    service: ServiceSpec = Field(default=ServiceSpec(), description="The Service by which clients reach it.")

    @model_validator(mode="after")
    def _check_limit(self) -> GatewaySpec:
        self.check_limit(self.cpu)
        return self


class KubernetesDocument(DocumentModel):
    """kubernetes.yaml."""

    free_paths: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("pods", "patch"),
        ("gateway", "patch"),
        ("pools", "*", "patch"),
        ("relay", "patch"),
    )

    kind: Literal["Kubernetes"]
    description: str = ""
    name: Name | None = Field(default=None, description="Name of the deployment; the workflow's name by default.")
    images: ImagesSpec
    models: ModelsSpec
    pods: PodsSpec = Field(default=PodsSpec(), description="Settings of all pods; those of a pool or the gateway win.")
    pools: dict[Name, PoolSpec] = Field(default={}, description="Pod settings by pool.")
    gateway: GatewaySpec = GatewaySpec()
    traces: TracesSpec | None = Field(default=None, description="Where traces go; nowhere by default.")
    clusters: dict[Name, ClusterSpec] = Field(
        default={}, description="Where the plan runs in several clusters: what runs in which."
    )
    relay: RelaySpec | None = Field(
        default=None, description="The relay that agents in other clusters than the gateway's dial."
    )
    tier_label: LabelKey = TIER_LABEL
    site_label: LabelKey = SITE_LABEL
    edge: Annotated[tuple[Name, ...], Field(strict=False)] | None = Field(
        default=None, description="Tiers whose nodes may be disconnected for a long time; the first tier by default."
    )
    allow_python: Annotated[tuple[FunctionRef, ...], Field(strict=False)] = Field(
        default=(),
        description="Python functions (module:function) in the agent image that pods may run, in addition to "
        "the agent's "
        "built-in steps.",
    )
    drain_s: Duration = Field(
        default=30.0, alias="drain", description="Time to finish in-flight requests when a pod is terminated."
    )
    start_s: Duration = Field(default=600.0, alias="start", gt=0, description="Longest start-up time of a pod.")
    unreachable_s: Duration = Field(
        default=7.0 * 86400,
        alias="unreachable",
        description="How long pods in edge tiers tolerate an unreachable node.",
    )

    @property
    def clusters_by_name(self) -> dict[str, ClusterSpec]:
        """Its clusters, the gateway's first."""
        if not self.clusters:
            return {}
        places = {name: cluster.place for name, cluster in self.clusters.items()}
        first = cluster_of(places, self.gateway.tier or "")
        return {name: self.clusters[name] for name in sorted(self.clusters, key=lambda name: name != first)}

    @model_validator(mode="after")
    def _check_clusters(self) -> KubernetesDocument:
        if self.clusters and not any(self.gateway.tier in cluster.tiers for cluster in self.clusters.values()):
            tiers = ", ".join(tier for cluster in self.clusters.values() for tier in cluster.tiers) or "none"
            no_tier = "gateway: with several clusters, its tier says in which of them it runs"
            other = f"gateway: no cluster has tier {self.gateway.tier}; the clusters have {tiers}"
            raise InvalidValueError(
                no_tier if self.gateway.tier is None else other,
                f"write gateway: {{tier: TIER}}, one of the clusters' tiers: {tiers}",
                keys=("gateway",),
            )
        return self

    @model_validator(mode="after")
    def _check_relay(self) -> KubernetesDocument:
        if self.relay is not None and not self.clusters:
            hint = "write clusters, or remove relay"
            raise InvalidValueError("relay: only agents of other clusters than the gateway's need it", hint)
        return self

    @model_validator(mode="after")
    def _check_limits(self) -> KubernetesDocument:
        most = self.pods.cpu_limit
        components: dict[str, PoolSpec | GatewaySpec | RelaySpec] = {"gateway": self.gateway}
        components |= {f"pools.{name}": pool for name, pool in self.pools.items()}
        components |= {} if self.relay is None else {"relay": self.relay}
        for path, own in components.items():
            if most is not None and own.cpu_limit is None and own.cpu > most:
                raise InvalidValueError(
                    f"{path}: cpu {own.cpu:g} is above pods.cpu_limit, {most:g}",
                    f"write cpu_limit: {own.cpu:g} or more into {path}, or a smaller cpu",
                    keys=("pods.cpu_limit", path),
                )
        return self


def load_settings(directory: Path) -> DeploymentSettings:
    """Load DIR/kubernetes.yaml as deployment settings. DocumentError with all problems, or if the file is missing."""
    return deployment_settings(load_kubernetes(directory))


def with_label_rules(settings: DeploymentSettings, project: AnyProject) -> DeploymentSettings:
    """The settings with how labels that come later judge the project's answers: as its held-out requests are."""
    workflows = (
        {"": project.workflow}
        if isinstance(project, Project)
        else {name: own.workflow for name, own in project.workflows.items()}
    )
    metrics = {name: own.metric for name, own in workflows.items() if own.metric is not None}
    labelled = {name: own.labelled_answer for name, own in workflows.items() if own.labelled_answer is not None}
    return replace(settings, metrics=metrics, labelled=labelled)


def load_kubernetes(directory: Path) -> KubernetesDocument:
    """Load and validate DIR/kubernetes.yaml. DocumentError as for `load_settings`."""
    path = directory / KUBERNETES_FILE
    if not path.exists():
        raise DocumentError([DocumentProblem(str(path), None, None, "", "file not found", _TEMPLATE)])
    tree = read_file(path)
    document = validate_tree(KubernetesDocument, tree).document
    if tree.problems or document is None:
        raise DocumentError(tree.problems)
    return document


def deployment_settings(document: KubernetesDocument) -> DeploymentSettings:
    """Convert the document to the settings that manifest rendering takes."""
    models, gateway, traces = document.models, document.gateway, document.traces
    return DeploymentSettings(
        agent_images=document.images.agent,
        gateway_image=document.images.gateway,
        models=ModelSource(
            models.url,
            models.image,
            models.claim,
            models.folder,
            models.secret,
            None if models.cache is None else models.cache.model_cache,
        ),
        name=document.name,
        pools={
            name: PoolSettings(
                cpu=pool.cpu,
                memory_bytes=pool.memory_bytes,
                gpu=pool.gpu,
                gpus=pool.gpus,
                node_labels=pool.nodes,
                one_per_node=pool.one_per_node,
                autoscale=pool.autoscale,
                pods=pool.pod_settings,
            )
            for name, pool in document.pools.items()
        },
        tier_label=document.tier_label,
        site_label=document.site_label,
        edge_tiers=document.edge,
        gateway_tier=gateway.tier,
        gateway_replicas=gateway.replicas,
        gateway_cpu=gateway.cpu,
        gateway_memory_bytes=gateway.memory_bytes,
        gateway_spool=gateway.spool,
        gateway_ledger=None if gateway.ledger is None else LedgerDatabase(gateway.ledger.url, gateway.ledger.secret),
        gateway_pods=gateway.pod_settings,
        gateway_service=gateway.service.service_settings,
        pods=document.pods.pod_settings,
        traces=None if traces is None else TraceSettings(traces.endpoint, traces.ratio, traces.secret),
        image_pull_secrets=document.images.pull_secrets,
        allow_python=document.allow_python,
        drain_s=document.drain_s,
        start_s=document.start_s,
        unreachable_s=round(document.unreachable_s),
        version=metadata.version("jellybean-serving"),
        clusters={name: cluster.place for name, cluster in document.clusters.items()},
        relay=None if document.relay is None else document.relay.relay_settings,
    )
