"""Any YAML value in any place of a drafted workflow: `validate` names a problem or none, and never has a traceback."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jellybean.cli import run
from jellybean.documents import write_draft
from jellybean.documents.schema.flow_style import flow_style
from jellybean.documents.schema.reader import DocPath, read_text
from tests.property.documents.test_flow_style import values
from tests.support.examples import examples
from tests.support.paths import EXAMPLES

DIGITS = sorted((EXAMPLES / "digits" / "models").glob("*.onnx"))
ANSWER = (  # of a classifier, which the draft of digits is not
    "# TODO: check that shape answers with p: the first output of the file, label, is the class; to send that, remove "
    "output: p"
)


@pytest.fixture(scope="module")
def drafted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("draft") / "p"
    write_draft(folder, DIGITS)
    return folder, (folder / "workflow.yaml").read_text(encoding="utf-8")


def places(value: Any, path: DocPath = ()) -> Iterator[DocPath]:
    """Paths of all values below the document itself."""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(item, (*path, key))


def replaced(value: Any, path: DocPath, new: Any) -> Any:
    """A copy of the document with another value at a place."""
    if not path:
        return new
    first, *others = path
    items = dict(value) if isinstance(value, dict) else list(value)
    items[first] = replaced(value.get(first) if isinstance(value, dict) else value[first], tuple(others), new)
    return items


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(choice=st.integers(0), new=values, key=st.sampled_from(["", "output", "outputs", "inputs", "sha256", "cuts"]))
@example(choice=-1, new=["p"], key="output")
@example(choice=-1, new={"a": "p"}, key="output")
def test_no_value_ends_in_a_traceback(drafted: tuple[Path, str], choice: int, new: Any, key: str) -> None:
    folder, text = drafted
    document = read_text(text, "").data
    variants = document["operators"]["shape"]["variants"]
    any_place = list(places(document))
    variant = ("operators", "shape", "variants", next(iter(variants)))
    place = (*variant, key) if key else any_place[choice % len(any_place)]
    comments = [line for line in text.splitlines() if line.lstrip().startswith("#")]
    (folder / "workflow.yaml").write_text(
        "\n".join([*comments, ANSWER, flow_style(replaced(document, place, new)), ""]), encoding="utf-8"
    )
    with redirect_stdout(io.StringIO()):
        assert run(["validate", str(folder)]) in {0, 2}
