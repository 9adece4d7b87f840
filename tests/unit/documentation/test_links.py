"""Every relative link of the documentation leads to a file, and to a heading of it; decisions have unique numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings, and those that it states itself."""
    text = re.sub(r"^ {4}.*$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)">', text))


def targets(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'<img src="([^"]+)"', text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in targets(page):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file), target


def test_decisions_have_one_number_each_which_is_that_of_their_title() -> None:
    decisions = sorted((ROOT / "docs/adr").glob("*.md"))
    numbers = [int(page.name[:4]) for page in decisions]
    assert len(set(numbers)) == len(numbers) > 10
    assert [page.read_text(encoding="utf-8").partition(".")[0] for page in decisions] == [
        f"# {number}" for number in numbers
    ]


def test_links_to_decisions_have_their_numbers() -> None:
    links = [
        link
        for page in PAGES
        for link in re.findall(r"\[ADR (\d+)\]\([^)]*?(\d{4})-[^)]*\)", page.read_text(encoding="utf-8"))
    ]
    assert [int(number) for number, _ in links] == [int(file) for _, file in links] != []


def test_pages_have_links() -> None:
    assert sum(len(targets(page)) for page in PAGES) > 100
