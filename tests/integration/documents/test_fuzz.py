"""Whatever stands in the files or options, the answer is a project or a DocumentError."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jellybean.documents import build_problem, load_project
from jellybean.documents.schema.reader import MAX_BYTES, read_text
from jellybean.errors import DocumentError, DocumentProblem
from tests.support.paths import EXAMPLES

EXAMPLE = EXAMPLES / "vqa"
FILES = ("workflow.yaml", "infrastructure.yaml", "profiles.yaml")
TEXTS = {file: (EXAMPLE / file).read_text(encoding="utf-8") for file in FILES}
# Parts of the example's own language and of YAML's, so that mutations reach beyond the parser.
SIGNS = " \t\n:,-[]{}#&*!|>'\"%@`?~.0"
WORDS = [
    "null",
    "true",
    "no",
    "-1",
    "1e999",
    ".nan",
    "0x7f",
    "\\U",
    "<<: ",
    "edge",
    "image",
    "answer",
    "variants",
    "40/s",
]
PIECES = st.sampled_from([*SIGNS, *WORDS, "ratio: 4", "1 KiB", "3 %", "gather: true", "---\n", "\x00", "\ufeff"])
PATHS = [
    *("slo", "sources", "operators", "operators.answer.inputs", "operators.answer.variants", "sources.image.rate"),
    *(
        "tiers",
        "workers",
        "workers.cpu-1",
        "links",
        "links.0",
        "limits",
        "labels",
        "metric",
        "name",
        "profiles.machine",
    ),
    *("profiles.accuracy", "profiles.accuracy.end_to_end.0.selection", "profiles.operators", "profiles.hop"),
    *("profiles.operators.answer.default.message", "profiles.operators.answer.default.latency.cpu-1"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("fuzz") / "vqa"
    shutil.copytree(EXAMPLE, path)
    yield path


def outcome(folder: Path, overrides: tuple[str, ...] = ()) -> tuple[DocumentProblem, ...]:
    """The problems, each told in one line at a place that can exist; nothing else may escape."""
    try:
        build_problem(load_project(folder, overrides))
    except DocumentError as error:
        assert error.problems
        for problem in error.problems:
            assert problem.message
            assert "\n" not in str(problem)
            assert problem.line is None or problem.line >= 1
        return error.problems
    return ()


@given(st.sampled_from(FILES), st.binary(max_size=200))
def test_random_bytes(folder: Path, file: str, content: bytes) -> None:
    try:
        (folder / file).write_bytes(content)
        assert outcome(folder)
    finally:
        (folder / file).write_text(TEXTS[file], encoding="utf-8")


@st.composite
def mutations(draw: st.DrawFn) -> tuple[str, str]:
    """A document of the example with a few places cut, doubled or replaced."""
    file = draw(st.sampled_from(FILES))
    text = TEXTS[file][:3000] if file == "profiles.yaml" else TEXTS[file]
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = start + draw(st.integers(0, 30))
        text = text[:start] + draw(PIECES | st.text(max_size=5) | st.just(text[start:end] * 2)) + text[end:]
    return file, text


@pytest.mark.slow
@given(mutations())
def test_mutated_examples(folder: Path, mutation: tuple[str, str]) -> None:
    file, text = mutation
    try:
        (folder / file).write_bytes(text.encode("utf-8", "surrogatepass"))
        outcome(folder)
    finally:
        (folder / file).write_text(TEXTS[file], encoding="utf-8")


@given(st.text(max_size=60) | st.tuples(st.lists(PIECES, max_size=4), PIECES).map(lambda x: f"{'.'.join(x[0])}={x[1]}"))
def test_random_overrides(folder: Path, override: str) -> None:
    outcome(folder, (override,))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | PIECES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PIECES | st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.slow
@given(st.sampled_from(PATHS), VALUES)
def test_wrong_values_everywhere(folder: Path, path: str, value: object) -> None:
    outcome(folder, (f"{path}={json.dumps(value)}",))


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    tree = read_text(text, "x.yaml")
    assert tree.data is not None or tree.problems


@pytest.mark.parametrize("opening", ["[", "{", "- ", "? ", "a: {", "[{", "!!x [", "&a ["])
def test_depth_costs_nothing(opening: str) -> None:
    assert read_text(opening * 20_000, "x.yaml").problems


def test_a_large_file_is_not_read(folder: Path) -> None:
    try:
        (folder / "profiles.yaml").write_text("a: [" + "x, " * MAX_BYTES, encoding="utf-8")
        assert "larger than" in outcome(folder)[0].message
    finally:
        (folder / "profiles.yaml").write_text(TEXTS["profiles.yaml"], encoding="utf-8")
