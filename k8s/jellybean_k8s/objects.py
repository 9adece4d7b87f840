"""Types of Kubernetes objects, as parsed JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KubeObject = dict[str, Any]
KubeObjectView = Mapping[str, Any]  # read only
