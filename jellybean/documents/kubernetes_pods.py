"""The part of kubernetes.yaml that is said of pods: of all, of the gateway's, of a pool's."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from jellybean.documents.kubernetes_names import (
    AnnotationKey,
    Cores,
    EnvName,
    LabelKey,
    LabelValue,
    LongText,
    ObjectName,
    OtherLabelKey,
)
from jellybean.documents.schema.fields import DocumentModel
from jellybean.quantities import InvalidValueError
from jellybean_k8s import PodSettings, ServiceSettings, ServiceType, patch_problems


class TolerationSpec(DocumentModel):
    """A toleration of nodes' taints, with Kubernetes' keys."""

    key: LabelKey | None = Field(default=None, description="Key of the taint; without one every taint, with Exists.")
    operator: Literal["Equal", "Exists"] = "Equal"
    value: LabelValue = Field(default="", description="Value of the taint, with Equal.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Effect of the taint; every effect by default."
    )
    toleration_seconds: int | None = Field(
        default=None,
        alias="tolerationSeconds",
        ge=0,
        description="How long NoExecute is tolerated; for ever by default.",
    )

    @model_validator(mode="after")
    def _check(self) -> TolerationSpec:
        if self.operator == "Exists" and self.value:
            raise InvalidValueError("operator Exists takes no value", "remove value, or write operator: Equal")
        if self.key is None and self.operator == "Equal":
            raise InvalidValueError("a toleration without a key is for every taint", "write a key, or operator: Exists")
        if self.toleration_seconds is not None and self.effect != "NoExecute":
            raise InvalidValueError("tolerationSeconds is for NoExecute alone", "write effect: NoExecute")
        return self


def _patch(value: dict[str, Any]) -> dict[str, Any]:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        hint = "use numbers, text, true, false, null, lists and maps"
        raise InvalidValueError(f"it cannot be written as JSON: {error}", hint) from error
    if problem := next(patch_problems(value), None):
        at, reason = problem
        raise InvalidValueError(f"{at}: {reason}")
    return value


class PodsSpec(DocumentModel):
    """Settings of pods that the plan does not decide."""

    cpu_limit: Cores | None = Field(
        default=None, description="CPU limit of each container in cores; none by default, as throttling adds latency."
    )
    priority: ObjectName | None = Field(default=None, description="PriorityClass.")
    labels: dict[OtherLabelKey, LabelValue] = Field(default={}, description="Labels beside ours.")
    annotations: dict[AnnotationKey, LongText] = Field(default={}, description="Annotations.")
    tolerations: Annotated[tuple[TolerationSpec, ...], Field(strict=False)] = Field(
        default=(), description="Taints that are tolerated, beside those of tiers and GPUs."
    )
    env: dict[EnvName, LongText] = Field(default={}, description="Environment variables of all containers.")
    runtime_class: ObjectName | None = Field(default=None, description="RuntimeClass.")
    patch: Annotated[dict[str, Any], AfterValidator(_patch)] = Field(
        default={},
        description="Merged into the pod template (metadata, spec): maps by key, lists of named items by name; null "
        "removes.",
    )

    @property
    def pod_settings(self) -> PodSettings:
        """As rendering takes them."""
        return PodSettings(
            cpu_limit=self.cpu_limit,
            priority=self.priority,
            labels=self.labels,
            annotations=self.annotations,
            tolerations=tuple(
                one.model_dump(by_alias=True, exclude_none=True, exclude=set() if one.value else {"value"})
                for one in self.tolerations
            ),
            env=self.env,
            runtime_class=self.runtime_class,
            patch=self.patch,
        )

    def check_limit(self, cpu: float) -> None:
        """InvalidValueError if the component requests more CPU than its own limit."""
        if self.cpu_limit is not None and self.cpu_limit < cpu:
            raise InvalidValueError(
                f"cpu_limit {self.cpu_limit:g} is below the request, cpu {cpu:g}",
                f"write cpu_limit: {cpu:g} or more, or a smaller cpu",
                keys=("cpu", "cpu_limit"),
            )


class ServiceSpec(DocumentModel):
    """A Service: the one by which clients reach the gateway, unless said otherwise."""

    type: ServiceType = Field(default="ClusterIP", description="ClusterIP, NodePort or LoadBalancer.")
    annotations: dict[LabelKey, LongText] = Field(default={}, description="For what makes load balancers.")

    @property
    def service_settings(self) -> ServiceSettings:
        """As rendering takes them."""
        return ServiceSettings(self.type, self.annotations)
