"""A plan's document names the same plan whichever way it went."""

from __future__ import annotations

import dataclasses
import json

import pytest

from jellybean_solver.plan_document import PlanDocumentError, from_document, to_document
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
