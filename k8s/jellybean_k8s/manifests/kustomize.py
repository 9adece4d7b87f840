"""Renders the objects as a kustomize base: one file per kind, for overlays with a namespace and patches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from jellybean_k8s.manifests.yaml_text import to_yaml, yaml_documents
from jellybean_k8s.objects import KubeObject

_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")


def kustomize_base(objects: Iterable[KubeObject]) -> Mapping[str, str]:
    """File name -> text. Sets no namespace and no name prefix, as addresses in the plan's ConfigMap name Services."""
    files: dict[str, list[KubeObject]] = {}
    for item in objects:
        files.setdefault(f"{_WORD.sub('-', item['kind']).lower()}.yaml", []).append(item)
    base = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(files),
    }
    return {"kustomization.yaml": to_yaml(base)} | {name: yaml_documents(items) for name, items in files.items()}
