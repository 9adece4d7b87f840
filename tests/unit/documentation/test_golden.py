"""The README's blocks are excerpts of the files that they name."""

from __future__ import annotations

import re

import pytest

from tests.support.golden import (
    DEMO,
    PLAN,
    README,
    SHOWN,
    FormError,
    Shown,
    block_of,
    excerpt,
    with_block,
)
from tests.support.paths import ROOT

PAGE = README.read_text(encoding="utf-8")


def golden(shown: Shown) -> list[str]:
    return shown.path.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: shown.name)
def test_the_readme_shows_what_the_golden_file_has(shown: Shown) -> None:
    assert block_of(shown, PAGE) == excerpt(shown, golden(shown)), "run: python -m tests.tools.golden"


def test_the_readmes_workflow_is_the_examples() -> None:
    ((name, block),) = re.findall(r"<!-- file: (\S+) -->\n\n((?:    .*\n)+)", PAGE)
    text = (ROOT / name).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert [line.removeprefix("    ") for line in block.splitlines()] == lines


def test_the_readmes_commands_are_those_of_the_golden_files() -> None:
    assert f"`{' && '.join('jellybean ' + ' '.join(words) for words in PLAN.commands)}`" in PAGE
    ((_, folder),) = DEMO.commands
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"DEMO := {folder}\n" in makefile
    assert re.search(r"^demo:.*\n\t.* -m jellybean demo \$\(DEMO\)$", makefile, re.MULTILINE)
    assert "    make demo " in PAGE


def test_a_line_that_is_missing_or_has_another_form_is_named() -> None:
    lines = golden(DEMO)
    assert len(excerpt(DEMO, lines)) >= len(DEMO.patterns)
    with pytest.raises(FormError, match=r"no line after line .* has the form .*Latency p99"):
        excerpt(DEMO, [line for line in lines if not line.startswith("  Latency p99")])
    with pytest.raises(FormError, match=r"has the form '  saves"):
        excerpt(PLAN, [line.replace("saves", "wins") for line in golden(PLAN)])


def test_a_block_is_replaced_and_nothing_else() -> None:
    page = with_block(PLAN, PAGE, ["one", "", "two"])
    assert block_of(PLAN, page) == ["one", "", "two"]
    assert with_block(PLAN, page, block_of(PLAN, PAGE)) == PAGE
    with pytest.raises(FormError, match="the README has no block"):
        block_of(PLAN, "nothing")
