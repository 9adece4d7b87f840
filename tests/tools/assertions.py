"""Counts the assertions of the tests by tier, here and at an earlier revision, and lists those that are gone.

    python -m tests.tools.assertions [REVISION]

An assertion is an `assert` or a `pytest.raises`, told apart by its text: a test that moves keeps its assertions.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TIERS = ("test", "slow", "nightly", "support")


@dataclass(frozen=True)
class Assertion:
    """One assertion: its tier (`support`: outside tests, in fixtures and helpers), its file and its text."""

    tier: str
    path: str
    text: str


def assertions_of(path: str, source: str) -> Iterator[Assertion]:
    """All assertions of a file. The tier is the latest that a mark of the module or the test names."""
    tree = ast.parse(source)
    of_module = "\n".join(
        ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign) and _name(node) == "pytestmark"
    )
    for node, test in _with_tests(tree):
        marks = "" if test is None else of_module + "\n".join(ast.unparse(mark) for mark in test.decorator_list)
        tier = "support" if test is None else next((tier for tier in ("nightly", "slow") if tier in marks), "test")
        if isinstance(node, ast.Assert):
            yield Assertion(tier, path, ast.unparse(node.test))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.raises":
            yield Assertion(tier, path, ast.unparse(node))


def sources(revision: str | None) -> Iterator[tuple[str, str]]:
    """Path and text of each file of the tests, in the working tree or at a revision."""
    listed = ["ls-files", "tests"] if revision is None else ["ls-tree", "-r", "--name-only", revision, "tests"]
    for path in _git(*listed).splitlines():
        if path.endswith(".py") and (revision is not None or Path(path).exists()):
            text = Path(path).read_text(encoding="utf-8") if revision is None else _git("show", f"{revision}:{path}")
            yield path, text


def _with_tests(
    tree: ast.AST, test: ast.FunctionDef | ast.AsyncFunctionDef | None = None
) -> Iterator[tuple[ast.AST, ast.FunctionDef | ast.AsyncFunctionDef | None]]:
    """Each node with the test function around it."""
    for node in ast.iter_child_nodes(tree):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        inner = node if is_function and node.name.startswith("test_") else test
        yield node, inner
        yield from _with_tests(node, inner)


def _name(node: ast.Assign) -> str:
    return getattr(node.targets[0], "id", "")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout


def main(revision: str | None) -> None:
    """Print the counts by tier, and the texts of which there were more at the revision, with the file they stood in."""
    revisions = [None] if revision is None else [revision, None]
    counted = {
        each: [found for path, text in sources(each) for found in assertions_of(path, text)] for each in revisions
    }
    for each, assertions in counted.items():
        tiers = Counter(assertion.tier for assertion in assertions)
        print(each or "here", *(f"{tier} {tiers[tier]:,}" for tier in TIERS), f"all {len(assertions):,}", sep="  ")
    if revision is not None:
        gone = Counter(found.text for found in counted[revision]) - Counter(found.text for found in counted[None])
        places = {found.text: found.path for found in counted[revision]}
        print(f"{sum(gone.values())} are not here as they were:")
        for text, count in sorted(gone.items(), key=lambda item: places[item[0]]):
            print(f"  {places[text]}: {text}" + (f" ({count} times)" if count > 1 else ""))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
