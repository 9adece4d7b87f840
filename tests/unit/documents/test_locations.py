"""DocumentLocations of values in documents, and values proposed in a document's own units."""

from __future__ import annotations

from pathlib import Path

import pytest

from jellybean.documents import build_problem, document_locations, load_project
from jellybean.errors import DocumentError
from jellybean.planning.explain import _rounded, parse_questions
from jellybean.quantities import BANDWIDTH, RATE, SIZE, QuantityKind, parse_quantity
from jellybean_solver import Problem

VQA = Path(__file__).parents[3] / "examples" / "vqa"


def test_a_value_is_told_with_its_file_line_and_text() -> None:
    place = document_locations(load_project(VQA)).locate("workflow", "slo", "accuracy")
    line = (VQA / "workflow.yaml").read_text(encoding="utf-8").splitlines().index("slo: {accuracy: 56}") + 1

    assert (place.line, place.path, place.written) == (line, "slo.accuracy", "56")
    assert str(place) == f"workflow.yaml:{line}"


def test_an_override_and_a_default_are_told_as_such() -> None:
    places = document_locations(load_project(VQA), ["slo.accuracy=57", "workers.cpu-1.count=null"])

    assert str(places.locate("workflow", "slo", "accuracy")) == "--set slo.accuracy=57"
    assert places.locate("infrastructure", "limits", "nothing").written is None
    assert places.locate("infrastructure", "workers", "cpu-1", "count").written is None
    assert places.locate("infrastructure", "links", 0, "price").written == "0.10 USD/GiB"


@pytest.mark.parametrize("unit", [RATE, SIZE, BANDWIDTH])
@pytest.mark.parametrize("value", [0.99995, 1.00049, 9.9996, 97.864, 1.23456e6, 4.013049766e6, 2.5e9])
def test_a_rounded_value_still_holds(unit: QuantityKind, value: float) -> None:
    up, down = (parse_quantity(unit, _rounded(unit, value, up=up)) for up in (True, False))

    assert value <= up <= value * 1.0002
    assert value * 0.9998 <= down <= value


@pytest.fixture(scope="module")
def vqa() -> Problem:
    return build_problem(load_project(VQA))


def test_questions_are_read(vqa: Problem) -> None:
    variant, tier, pool, placed = parse_questions(vqa, ["answer=default", "cloud", "gpu-1", "answer@edge"])

    assert (variant.operator, variant.variant) == ("answer", "default")
    assert (tier.place, pool.place) == ("cloud", "gpu-1")
    assert (placed.operator, placed.place) == ("answer", "edge")


def test_wrong_questions_are_all_told_with_what_was_meant(vqa: Problem) -> None:
    wrong = ["image_feature=resnet50", "image_features=resnet5", "clout", "answer@gpu", "answer"]
    with pytest.raises(DocumentError) as raised:
        parse_questions(vqa, wrong)

    text = str(raised.value)
    assert len(raised.value.problems) == len(wrong)
    for meant in ("did you mean 'image_features'", "did you mean 'resnet50'", "did you mean 'cloud'", "answer=VARIANT"):
        assert meant in text
