"""A plan's document names the same plan whichever way it went."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from jellybean_protos import plan_format
from jellybean_solver import Deliver, PlanDocumentError, from_document, to_document
from tests.report_plans import digits, vqa


def test_reading_and_writing_keeps_the_hash() -> None:
    for plan in (vqa(), digits()):
        whole_numbers = dataclasses.replace(plan, utilisation=1, hop_s=0)
        document = to_document(whole_numbers)
        assert to_document(from_document(json.loads(json.dumps(document)))) == document


def test_a_changed_document_is_refused() -> None:
    document = to_document(vqa())
    with pytest.raises(PlanDocumentError, match="changed by hand"):
        from_document({**document, "hop_s": 9.0})
    with pytest.raises(PlanDocumentError, match="version"):
        from_document({**document, "version": 99})
    with pytest.raises(PlanDocumentError, match="kind"):
        from_document({})


def test_a_plan_that_version_2_wrote_is_read() -> None:
    document = json.loads((Path(__file__).parent / "plans" / "version-2.json").read_text(encoding="utf-8"))
    assert document["version"] == 2
    plan = from_document(document)
    assert (plan.sites, plan.workflows) == ({}, ())
    assert plan.operator_by_name["read"].batch == {"server": 8}
    written = to_document(plan)
    assert written["version"] == plan_format.VERSION
    assert written["hash"] != document["hash"]  # it also states sites and workflows
    assert from_document(written) == plan


def test_each_readable_version_is_read() -> None:
    document = to_document(vqa())
    for version in plan_format.READABLE_VERSIONS:
        assert from_document({**document, "version": version}) == from_document(document)
    assert plan_format.VERSION in plan_format.READABLE_VERSIONS


def test_delivery_is_said_only_where_it_is_not_the_default() -> None:
    plan = vqa()
    document = to_document(plan)
    assert all("deliver" not in source for source in document["sources"])  # plans from before it keep their hash
    kept = tuple(dataclasses.replace(source, deliver=Deliver.EVENTUALLY) for source in plan.sources)
    other = to_document(dataclasses.replace(plan, sources=kept))
    assert [source["deliver"] for source in other["sources"]] == ["eventually"] * len(kept)
    assert other["hash"] != document["hash"]
    assert from_document(other).sources == kept
