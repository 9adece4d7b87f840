"""The audit of a plan document: what a gateway sends a second time, to whom, and how the two answers are compared.

The operators and sources of an audit are called audit.NAME. To workers they are operators like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jellybean_agent.brain.wiring import EdgeKind
from jellybean_protos.plan_format import WORKFLOW_SEPARATOR

AUDIT_PREFIX = "audit."

SourceOutputs = Mapping[str, tuple[tuple[str, EdgeKind], ...]]  # source -> (operator, kind)


@dataclass(frozen=True, slots=True)
class AuditView:
    """The audit of a plan. `share`: of the requests; `answer`: operator whose answers are compared, by `metric`.

    `source_outputs`: of the audit's sources, which have the tensors of the sources of their names without the prefix.
    `yields`: the plan bears losses, and has no capacity for audits after one.
    """

    share: float
    metric: str
    answer: str
    source_outputs: SourceOutputs
    yields: bool = False

    @property
    def reference(self) -> str:
        """The operator of the audit that answers in place of `answer`."""
        return f"{AUDIT_PREFIX}{self.answer}"


def served_sources(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The sources of a plan document that clients send: all but those of audits."""
    by_workflow = {item["name"]: item.get("audit") for item in document.get("workflows", ())}
    audits = by_workflow or {"": document.get("audit")}

    def is_of_audit(name: str) -> bool:
        workflow, _, local = name.rpartition(WORKFLOW_SEPARATOR)
        return local.startswith(AUDIT_PREFIX) and audits.get(workflow) is not None

    return [source for source in document["sources"] if not is_of_audit(source["name"])]


def read_audit(document: Mapping[str, Any], outputs: SourceOutputs) -> AuditView | None:
    """The audit of a plan document, if it has one. `outputs`: of all its sources. ValueError if it is not right."""
    item = document.get("audit")
    if item is None:
        return None
    share = float(item["share"])
    own = {source: readers for source, readers in outputs.items() if source.startswith(AUDIT_PREFIX)}
    names = {source["name"] for source in served_sources(document)}
    if not 0 < share <= 1 or not own or not own.keys() <= {f"{AUDIT_PREFIX}{name}" for name in names}:
        raise ValueError(f"an audit of {share} of the requests, with sources {', '.join(own) or 'none'}")
    yields = bool(document.get("slo", {}).get("survives"))
    audit = AuditView(share, str(item["metric"]), str(item["answer"]), own, yields)
    if {audit.answer, audit.reference} - {operator["name"] for operator in document["operators"]}:
        raise ValueError(f"an audit of the answers of {audit.answer}")
    return audit
