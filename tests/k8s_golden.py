"""Golden files of rendered objects."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from jellybean_k8s import DeployedPlan, yaml_documents
from jellybean_k8s.objects import KubeObject

GOLDEN = Path(__file__).parent / "unit" / "k8s" / "golden"


def assert_golden(name: str, objects: Iterable[KubeObject], deployed: DeployedPlan) -> None:
    """Compare to a file in which names and hashes do not depend on a plan document's version, nor on our scripts."""
    path = GOLDEN / name
    text = yaml_documents({**item, "data": sorted(item["data"])} if "data" in item else item for item in objects)
    text = text.replace(deployed.config, "digits-PLAN-files-HASH").replace(deployed.document["hash"], "HASH")
    text = re.sub(r'"(PLAN|HASH)"', r"\1", text.replace(deployed.id, "PLAN"))  # some hashes look like numbers
    if os.environ.get("JELLYBEAN_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    hint = "JELLYBEAN_UPDATE_GOLDEN=1 pytest tests/unit/k8s writes it anew; look at the difference"
    assert path.read_text(encoding="utf-8") == text, hint
