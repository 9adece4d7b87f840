"""Text files are read and written with a stated encoding: the default is the platform's, not UTF-8 everywhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.support.paths import ROOT

FOLDERS = ("jellybean", "solver", "edge_agent", "protos", "k8s", "benchmarks", "examples", "tests")
MODE = re.compile(r"[rwxa][bt+]*")
TEXT_KEYWORDS = {"newline", "errors"}  # of no other method `open`


def without_encoding(tree: ast.AST) -> Iterator[int]:
    """Lines of calls that open a file as text, or read or write one as text, without an encoding."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        keywords = {keyword.arg for keyword in call.keywords}
        if not {"encoding", None} & keywords and opens_text(call, keywords):
            yield call.lineno


def opens_text(call: ast.Call, keywords: set[str | None]) -> bool:
    """True for `open(...)` and methods of paths. `X.open()` without a mode is not judged: X may be no path."""
    modes = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    texts = [node.value for node in modes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    match call.func:
        case ast.Attribute(attr="read_text"):
            return not call.args
        case ast.Attribute(attr="write_text"):
            return len(call.args) == 1
        case ast.Name(id="open"):
            return not any(MODE.fullmatch(text) and "b" in text for text in texts)
        case ast.Attribute(attr="open"):
            given = [text for text in texts if MODE.fullmatch(text)]
            return any("b" not in text for text in given) or (not given and bool(TEXT_KEYWORDS & keywords))
    return False


@pytest.mark.slow
def test_text_files_have_an_encoding() -> None:
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py") if "node_modules" not in file.parts]
    assert len(files) > 500
    places = [
        f"{file.relative_to(ROOT)}:{line}"
        for file in files
        for line in without_encoding(ast.parse(file.read_text(encoding="utf-8")))
    ]
    assert places == []


def test_calls_without_an_encoding() -> None:
    wrong = "open(p)\nopen(p, 'w')\np.open('r')\np.open(newline='')\np.read_text()\np.write_text(t)\nopen(p, mode='a')"
    right = "open(p, 'rb')\np.open('ab')\ntimer.open()\np.read_text(encoding='utf-8')\np.write_text(t, encoding=e)"
    assert list(without_encoding(ast.parse(wrong))) == [1, 2, 3, 4, 5, 6, 7]
    assert list(without_encoding(ast.parse(right))) == []
