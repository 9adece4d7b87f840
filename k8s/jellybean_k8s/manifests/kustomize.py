"""Renders the objects as a kustomize base: one file per kind, for overlays with a namespace and patches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from jellybean_k8s.manifests.yaml_text import to_yaml, yaml_documents
from jellybean_k8s.objects import KubeObject

_WAVE = "argocd.argoproj.io/sync-wave"
_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")


def kustomize_base(objects: Iterable[KubeObject]) -> Mapping[str, str]:
    """File name -> text. Sets no namespace and no name prefix, as addresses in the plan's ConfigMap name Services.

    The last object, the Service of the clients, is in a later wave of Argo CD's: it leads to the new pods once they are
    healthy.
    """
    files: dict[str, list[KubeObject]] = {}
    *first, last = objects
    for item in (*first, _in_wave(last, "1")):
        files.setdefault(f"{_WORD.sub('-', item['kind']).lower()}.yaml", []).append(item)
    base = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(files),
    }
    return {"kustomization.yaml": to_yaml(base)} | {name: yaml_documents(items) for name, items in files.items()}


def _in_wave(item: KubeObject, wave: str) -> KubeObject:
    meta = item["metadata"]
    return {**item, "metadata": {**meta, "annotations": {**meta.get("annotations", {}), _WAVE: wave}}}
