"""kubernetes.yaml of a plan in several clusters: what runs in each of them, and the relay that joins them."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator

from jellybean.documents.kubernetes_names import Cores, ObjectName
from jellybean.documents.kubernetes_pods import PodsSpec, ServiceSpec
from jellybean.documents.schema.fields import DocumentModel, Name, Size
from jellybean.quantities import InvalidValueError
from jellybean_k8s import MIB, ClusterPlace, DeployError, RelaySettings, ServiceType
from jellybean_protos.addresses import parse_address

_EXAMPLE = "for example relay.example:7443, where agents of other clusters reach the relay's Service"


def _address(text: str) -> str:
    try:
        parse_address(text)
    except ValueError as error:
        raise InvalidValueError(str(error), _EXAMPLE) from error
    return text


RelayAddress = Annotated[
    str, AfterValidator(_address), WithJsonSchema({"type": "string", "pattern": r"^\S+:[0-9]{1,5}$"})
]


class ClusterSpec(DocumentModel):
    """One of several clusters. Without tiers and sites nothing of the plan stays in it."""

    context: str | None = Field(
        default=None, min_length=1, description="Context of the kubeconfig; the cluster's name by default."
    )
    namespace: ObjectName | None = Field(default=None, description="Namespace; the context's by default.")
    tiers: Annotated[tuple[Name, ...], Field(strict=False)] = Field(
        default=(), description="Tiers whose workers run here."
    )
    sites: Annotated[tuple[Name, ...], Field(strict=False)] = Field(
        default=(), description="Single sites (store-17) of tiers with several; they go before tiers."
    )

    @property
    def place(self) -> ClusterPlace:
        """As rendering takes it."""
        return ClusterPlace(self.tiers, self.sites)


class RelayServiceSpec(ServiceSpec):
    """The Service that agents of other clusters dial."""

    type: ServiceType = Field(
        default="LoadBalancer", description="LoadBalancer, NodePort (whose port the address has) or ClusterIP."
    )


class RelaySpec(PodsSpec):
    """The relay in the gateway's cluster, which agents of other clusters dial."""

    address: RelayAddress = Field(description="HOST:PORT at which other clusters reach it.")
    service: RelayServiceSpec = Field(default=RelayServiceSpec(), description="Its Service.")
    cpu: Cores = 0.5
    memory_bytes: Size = Field(default=256.0 * MIB, gt=0, alias="memory")

    @model_validator(mode="after")
    def _check(self) -> RelaySpec:
        self.check_limit(self.cpu)
        try:
            _ = self.relay_settings
        except DeployError as error:
            raise InvalidValueError(str(error).partition(": ")[2], _EXAMPLE, keys=("address",)) from error
        return self

    @property
    def relay_settings(self) -> RelaySettings:
        """As rendering takes them."""
        return RelaySettings(
            self.address, self.service.service_settings, self.cpu, self.memory_bytes, self.pod_settings
        )
