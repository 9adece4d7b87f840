"""Asks the API server whether it would admit the pods of a deployment, by a dry run of one pod of each template.

Quotas, LimitRanges, Pod Security, priorities and webhooks refuse pods, not the sets that make them: a set that was
applied would wait for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jellybean_k8s.cluster.checks.new_pods import DEFAULT_ACCOUNT, NewPods
from jellybean_k8s.cluster.cluster import Cluster, ClusterError
from jellybean_k8s.cluster.pod_reasons import counted_lines, without_set_names
from jellybean_k8s.objects import KubeObject

_NO_RIGHT = 'cannot create resource "pods"'
_NO_DRY_RUN = "does not support dry run"
_HINTS = (  # words of a refusal -> what to do
    ("exceeded quota", "raise the quota, or lower what pods or the plan take"),
    ("must specify limits.cpu", "write pods: {cpu_limit: CORES} into kubernetes.yaml"),
    (
        "hostPath",
        "models.cache.host_path takes the level privileged: kubectl label namespace NAMESPACE "
        "pod-security.kubernetes.io/enforce=privileged --overwrite, or write models.cache.claim instead",
    ),
    ("violates PodSecurity", "remove from the patch what the namespace does not allow, or change its level"),
    ("usage per", "change cpu, cpu_limit or memory in kubernetes.yaml, or the LimitRange"),
    ("PriorityClass", "correct priority in kubernetes.yaml, or create the PriorityClass"),
    ("RuntimeClass", "correct runtime_class in kubernetes.yaml, or create the RuntimeClass"),
    ("", "change the pods' settings in kubernetes.yaml, or what refuses them"),
)


@dataclass
class Admission:
    """Answers of the API server. `pods`: by template, with the server's defaults; `refusals`: text -> sets."""

    pods: dict[str, KubeObject] = field(default_factory=dict)
    refusals: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def problems(self, counted_quotas: Sequence[str]) -> list[str]:
        """A line per refusal; those of quotas that were counted for all pods are left out."""
        told = {
            f"the API server refuses the pods: {text}: {_hint(text)}": names
            for text, names in self.refusals.items()
            if not any(f"exceeded quota: {quota}," in text for quota in counted_quotas)
        }
        return counted_lines(told, "sets")


def admission(cluster: Cluster, app: str, new: Sequence[NewPods]) -> Admission:
    """A dry run of one pod of each template."""
    found = Admission()
    account = app if cluster.get("ServiceAccount", app) is not None else DEFAULT_ACCOUNT
    first: dict[str, NewPods] = {}
    for one in new:
        first.setdefault(one.template, one)
    silent: dict[str, list[str]] = {}
    for one in first.values():
        try:
            found.pods[one.template] = cluster.create(_with_account(one.pod, app, account), dry_run=True)
        except ClusterError as error:
            if error.is_transient:
                raise
            text = without_set_names(str(error), one.name)
            if _NO_RIGHT in text:
                found.notes.append("admission of pods was not checked: this user may not create pods")
                break
            names = silent if _NO_DRY_RUN in text else found.refusals
            names.setdefault(text, []).append(f"{one.kind}/{one.name}")
    found.notes += [f"admission of pods was not checked: {line}" for line in counted_lines(silent, "sets")]
    return found


def _with_account(pod: KubeObject, app: str, account: str) -> KubeObject:
    """The pod with an account that exists: ours is made when the plan is applied."""
    if pod["spec"].get("serviceAccountName") != app:
        return pod
    return {**pod, "spec": {**pod["spec"], "serviceAccountName": account}}


def _hint(text: str) -> str:
    return next(hint for words, hint in _HINTS if words in text)
