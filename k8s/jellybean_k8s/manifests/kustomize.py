"""The same objects as a kustomize base: one file a kind, to be laid over with a namespace and patches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from jellybean_k8s.manifests.render import Object
from jellybean_k8s.manifests.yaml_text import documents, to_yaml

_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")


def kustomize_base(objects: Iterable[Object]) -> Mapping[str, str]:
    """File name -> text. No namespace is set and no name prefixed: addresses in the plan's ConfigMap name Services."""
    files: dict[str, list[Object]] = {}
    for item in objects:
        files.setdefault(f"{_WORD.sub('-', item['kind']).lower()}.yaml", []).append(item)
    base = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(files),
    }
    return {"kustomization.yaml": to_yaml(base)} | {name: documents(items) for name, items in files.items()}
