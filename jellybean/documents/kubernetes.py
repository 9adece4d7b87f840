"""kubernetes.yaml: what a deployment of a project needs beside its plan."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from jellybean.documents.schema.error_words import check_tree
from jellybean.documents.schema.fields import Duration, Name, Size, Strict
from jellybean.documents.schema.models import Function
from jellybean.documents.schema.reader import read_file
from jellybean.documents.schema.units import UnitError, shown
from jellybean.errors import DocumentError, DocumentProblem
from jellybean_k8s import (
    GPU_RESOURCES,
    MIB,
    SITE_LABEL,
    TIER_LABEL,
    Models,
    PoolSettings,
    Settings,
)

KUBERNETES_FILE = "kubernetes.yaml"
_LABEL = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_TEMPLATE = (
    "write it; three lines are enough: `kind: Kubernetes`, `images: {agent: REGISTRY/jellybean-agent:TAG, gateway: "
    "REGISTRY/jellybean-gateway:TAG}`, `models: {url: https://HOST/FOLDER}` (docs/kubernetes.md)"
)


def _label(text: str) -> str:
    if not _LABEL.fullmatch(text):
        raise UnitError(f"{shown(text)} is no label of Kubernetes", "for example jellybean.dev/tier")
    return text


def _reference(text: str) -> str:
    if not text or any(character.isspace() for character in text):
        raise UnitError(f"{shown(text)} names no image", "for example registry.example/jellybean-agent:0.1.0")
    return text


def _url(text: str) -> str:
    if not re.fullmatch(r"https?://[^\s]+", text):
        raise UnitError(f"{shown(text)} is no URL", "for example https://models.example/digits")
    return text


def _gpu(text: str) -> str:
    if text not in GPU_RESOURCES and not ("/" in text and _LABEL.fullmatch(text)):
        known = ", ".join(GPU_RESOURCES)
        raise UnitError(f"{shown(text)} is no vendor of GPUs", f"{known}, or a resource such as vendor.example/gpu")
    return text


Label = Annotated[str, AfterValidator(_label)]
Image = Annotated[str, AfterValidator(_reference)]
Cores = Annotated[float, Field(strict=False, gt=0, le=1024)]


class ImagesSpec(Strict):
    """What pods run."""

    agent: Image
    gateway: Image
    pull_secrets: Annotated[tuple[Name, ...], Field(strict=False)] = ()


class ModelsSpec(Strict):
    """Where pods get model files: one of url, image, claim."""

    url: Annotated[str, AfterValidator(_url)] | None = Field(
        default=None, description="URL/PATH of each file; an init container fetches it."
    )
    image: Image | None = Field(default=None, description="OCI image with the files, mounted as a volume.")
    claim: Name | None = Field(default=None, description="PersistentVolumeClaim with the files, mounted read-only.")
    folder: str = Field(default="", description="Where in image or claim the project's folder is.")
    secret: Name | None = Field(default=None, description="Secret whose `authorization` is sent with each fetch.")

    @model_validator(mode="after")
    def _one(self) -> ModelsSpec:
        given = [name for name in ("url", "image", "claim") if getattr(self, name) is not None]
        if len(given) != 1:
            raise UnitError(f"{' and '.join(given) or 'neither url, image nor claim'} given", "write one of the three")
        return self


class PoolSpec(Strict):
    """How a worker of a pool looks as a pod."""

    cpu: Cores = Field(default=1.0, description="Cores requested; there is no limit.")
    memory_bytes: Size | None = Field(
        default=None, alias="memory", description="Requested; unless given, what its models need and 256 MiB."
    )
    gpu: Annotated[str, AfterValidator(_gpu)] | None = Field(
        default=None, description="nvidia, amd, intel, or the name of a resource."
    )
    gpus: int = Field(default=1, ge=1, le=64)
    nodes: dict[Label, str] = Field(default={}, description="Labels that its nodes must have, beside their tier's.")
    one_per_node: bool | None = Field(
        default=None, description="Every worker on a node of its own; unless given, true in edge tiers."
    )
    autoscale: bool = Field(default=False, description="Take workers away while less is asked, where there is room.")


class GatewaySpec(Strict):
    """The gateway's pod."""

    tier: Name | None = Field(default=None, description="Where it runs; the first source's tier unless given.")
    cpu: Cores = 1.0
    memory_bytes: Size = Field(default=512.0 * MIB, alias="memory")
    spool: Name | None = Field(
        default=None, description="PersistentVolumeClaim for requests of sources with `deliver: eventually`."
    )


class KubernetesDocument(Strict):
    """kubernetes.yaml."""

    kind: Literal["Kubernetes"]
    description: str = ""
    name: Name | None = Field(default=None, description="Of the deployment; the workflow's unless given.")
    images: ImagesSpec
    models: ModelsSpec
    pools: dict[Name, PoolSpec] = Field(default={}, description="How a worker of a pool looks as a pod.")
    gateway: GatewaySpec = GatewaySpec()
    tier_label: Label = TIER_LABEL
    site_label: Label = SITE_LABEL
    edge: Annotated[tuple[Name, ...], Field(strict=False)] | None = Field(
        default=None, description="Tiers whose nodes may be out of reach for long; the first unless given."
    )
    allow_python: Annotated[tuple[Function, ...], Field(strict=False)] = Field(
        default=(),
        description="Python functions, module:function, in the agents' image that their pods may run, besides the "
        "agent's own steps.",
    )
    drain_s: Duration = Field(default=30.0, alias="drain", description="For requests in hand when a pod must leave.")
    start_s: Duration = Field(default=600.0, alias="start", gt=0, description="Longest that a pod may take to start.")
    unreachable_s: Duration = Field(
        default=7.0 * 86400, alias="unreachable", description="How long edge pods wait for a node that is away."
    )


def load_settings(directory: Path) -> Settings:
    """The settings of DIR/kubernetes.yaml. DocumentError with every problem, or what to write where there is none."""
    return settings_of(load_kubernetes(directory))


def load_kubernetes(directory: Path) -> KubernetesDocument:
    """DIR/kubernetes.yaml; DocumentError likewise."""
    path = directory / KUBERNETES_FILE
    if not path.exists():
        raise DocumentError([DocumentProblem(str(path), None, None, "", "there is no such file", _TEMPLATE)])
    tree = read_file(path)
    document = check_tree(KubernetesDocument, tree).document
    if tree.problems or document is None:
        raise DocumentError(tree.problems)
    return document


def settings_of(document: KubernetesDocument) -> Settings:
    """What the document says, as rendering takes it."""
    models, gateway = document.models, document.gateway
    return Settings(
        agent_image=document.images.agent,
        gateway_image=document.images.gateway,
        models=Models(models.url, models.image, models.claim, models.folder, models.secret),
        name=document.name,
        pools={
            name: PoolSettings(
                pool.cpu, pool.memory_bytes, pool.gpu, pool.gpus, pool.nodes, pool.one_per_node, pool.autoscale
            )
            for name, pool in document.pools.items()
        },
        tier_label=document.tier_label,
        site_label=document.site_label,
        edge_tiers=document.edge,
        gateway_tier=gateway.tier,
        gateway_cpu=gateway.cpu,
        gateway_memory_bytes=gateway.memory_bytes,
        gateway_spool=gateway.spool,
        image_pull_secrets=document.images.pull_secrets,
        allow_python=document.allow_python,
        drain_s=document.drain_s,
        start_s=document.start_s,
        unreachable_s=round(document.unreachable_s),
        version=metadata.version("jellybean-serving"),
    )
