"""Large documents are parsed by libyaml: the same values, positions and problems as of the parser in Python."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from ruamel.yaml import YAML

from jellybean.documents.schema import large_text, reader
from jellybean.documents.schema.large_text import plain_events
from jellybean.documents.schema.reader import Tree, read_text

ENTRY = "  o{0}: {{fast: {{latency: {{box: {0}.5 ms, gpu: [1, 2.0e-3, true, null]}}, message: 'a b'}}, \"slow\": no}}\n"
BLOCK = "  p{0}:\n    - a: 1\n      b: two words\n      # a comment\n    -  - x\n       - {{y: z:w, q: 'it''s'}}\n"


def document(size: int, *more: str) -> str:
    """A document of many entries, in flow and block style."""
    entries = (ENTRY.format(number) + BLOCK.format(number) for number in range(size))
    return f"kind: Profiles\noperators:\n{''.join(entries)}{''.join(more)}"


def facts(events: Any) -> list[tuple[Any, ...]]:
    """What the reader takes of events."""
    return [
        (
            type(event).__name__,
            getattr(event, "value", None),
            getattr(event, "anchor", None),
            getattr(event, "tag", None),
            event.implicit[0] if type(event).__name__ == "ScalarEvent" else None,
            (event.start_mark.line, event.start_mark.column, event.start_mark.index),
            (event.end_mark.line, event.end_mark.column, event.end_mark.index),
        )
        for event in events
    ]


def parsed(text: str, monkeypatch: pytest.MonkeyPatch, *, large: int) -> Tree:
    monkeypatch.setattr(reader, "LARGE", large)
    return read_text(text, "profiles.yaml")


@pytest.mark.parametrize("more", ["", "last: [a, {b: c}]\n", "multi: line\n  goes on\n", "---\n", "# end\n\n"])
def test_events_are_those_of_the_parser_in_python(more: str) -> None:
    text = document(20, more) if more != "---\n" else more + document(20)
    events = plain_events(text)
    assert events is not None
    assert facts(events) == facts(YAML(typ="safe", pure=True).parse(text))


@pytest.mark.parametrize(
    "more",
    [
        "tag: !!str x\n", "anchor: &a x\n", "alias: *a\n", "when: a > b\n", "share: 5 %\n", "text: |\n  x\n",
        "escape: \"\\n\"\n", "tab:\tx\n", "name: café\n", "empty:\n", "key: {a: , b: 1}\n", "end: x", "line: x\r\n",
        "next: \x85\n", "twice: [1\n", "a: b: c\n", "? complex\n: x\n",
        "...\n...\n", "--- {}\n", "list: ['a':b]\n", 'list: [":--:":~<<-b]\n', "list: [[]:b, {}:c]\n",
    ],
)  # fmt: skip
def test_what_may_differ_is_left_to_the_parser_in_python(more: str) -> None:
    assert plain_events(document(3, more)) is None


@pytest.mark.parametrize(
    "more",
    [
        "",
        "kind: again\n",
        "<<: {a: 1}\n",
        "wrong: {price: 0,05 USD/h}\n",
        "deep: " + "[" * 30 + "]" * 30 + "\n",
        "--- {}\n",
        "...\n...\n",
        'last: ["a":b]\n',
        "last: [{a: 1}:b]\n",
    ],
)
def test_large_documents_are_read_alike(more: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = document(20, more)
    quick, slow = (parsed(text, monkeypatch, large=large) for large in (1, 10**9))
    assert (quick.data, quick.keys, quick.values, quick.unread) == (slow.data, slow.keys, slow.values, slow.unread)
    assert quick.problems == slow.problems


@pytest.mark.parametrize(
    ("more", "problems"), [("deep: " + "[" * 30 + "]" * 30 + "\n", 1), ("kind: again\n" * 150, 100)]
)
def test_events_are_made_until_the_reader_stops(more: str, problems: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two megabytes have more than a million, which took hundreds of megabytes before a limit of the reader applied."""
    made = itertools.count()
    event_of = large_text._event
    monkeypatch.setattr(large_text, "_event", lambda event: (next(made), event_of(event))[1])
    text = f"kind: Profiles\n{more}after: [{'[], ' * 500}[]]\n"
    assert len(parsed(text, monkeypatch, large=1).problems) == problems
    assert next(made) < 500


def test_libyaml_reads_only_large_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = itertools.count()
    monkeypatch.setattr(reader, "_events_of_large_text", lambda text: next(calls) and None)
    read_text("kind: Small\n", "small.yaml")
    assert next(calls) == 0
    read_text(document(400), "large.yaml")
    assert next(calls) == 2
