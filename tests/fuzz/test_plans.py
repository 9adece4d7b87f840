"""Plan documents: as agents, the gateway and the solver read them. Only the named errors escape, in bounded memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from jellybean_agent import PlanViewError, plan_view, read_plan, workflow_views
from jellybean_protos import plan_format
from jellybean_solver import PlanDocumentError, from_document, to_document
from tests.support.examples import examples
from tests.support.fuzzing import at_most, changed_bytes, changed_json, seeds
from tests.unit.agent.brain.test_plan_view import make_document

PLAIN = make_document({"each": 8})
FULL = plan_format.with_header(
    {
        **{key: value for key, value in PLAIN.items() if key not in plan_format.HEADER_KEYS},
        "sites": {"edge": 3},
        "fallbacks": [{"lost": "x", "closes": [0], "weights": [0.0, 1.0]}],
    }
)


def of_workflows(document: Any) -> Any:
    """A plan of one workflow as one of several workflows, of which there is one."""
    text = json.dumps({key: document[key] for key in document if key not in plan_format.HEADER_KEYS})
    for name in ("x", "split", "each", "sum"):
        text = text.replace(f'"{name}"', f'"a/{name}"')
    text = text.replace('"kind": "a/each"', '"kind": "each"')
    workflow = {"name": "a", **{key: document[key] for key in ("slo", "cost", "accuracy")}}
    return plan_format.with_header({**json.loads(text), "workflows": [workflow]})


SERVED_TOGETHER = of_workflows(PLAIN)
ORIGINALS = [PLAIN, FULL, SERVED_TOGETHER]
many = settings(max_examples=examples(360, nightly=20_000))


def rehashed(document: Any) -> Any:
    """The document with the hash of its content, so that readers look further."""
    try:
        return {**document, "hash": plan_format.content_hash(document)}
    except (TypeError, ValueError, AttributeError, RecursionError):
        return document


def read_by_all(document: Any) -> None:
    """Read a plan as its readers do; what one of them makes of it, the next one can use."""
    try:
        plan_view(document)
        for workflow, view in workflow_views(document).items():
            assert view.workflow in ("", workflow)
    except PlanViewError as error:
        assert "\n" not in str(error)
    try:
        assert isinstance(from_document(document), object)
    except PlanDocumentError as error:
        assert str(error)


@many
@given(st.sampled_from(ORIGINALS).flatmap(changed_json))
def test_documents(document: Mapping[str, Any]) -> None:
    with at_most(24):
        read_by_all(rehashed(document))


@many
@given(
    changed_bytes(
        [json.dumps(PLAIN).encode(), *seeds("plan")],
        [b"[" * 2000, b'{"a":', b"1e999", b"NaN", b"-0", b"9" * 5000, b'"\\ud800"', b"null", b"\xff", b"\xef\xbb\xbf"],
    )
)
def test_files(tmp_path_factory: Any, data: bytes) -> None:
    """A file that is no plan is refused in one line, by its name."""
    path = tmp_path_factory.getbasetemp() / "fuzzed-plan.json"
    path.write_bytes(data)
    with at_most(24):
        try:
            read_plan(path)
        except PlanViewError as error:
            assert "\n" not in str(error)


def test_the_originals_are_plans() -> None:
    for document in (PLAIN, FULL):
        assert plan_view(document).hash == document["hash"]
        assert to_document(from_document(document))["hash"] == document["hash"]
    assert workflow_views(SERVED_TOGETHER)["a"].workflow == "a"
    for path in (Path(__file__).parent / "seeds/plan").glob("*"):
        assert path.suffix == ".json"
