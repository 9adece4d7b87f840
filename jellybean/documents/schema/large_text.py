"""Parser events of large, plain YAML texts by libyaml, which is ten times as fast as the parser in Python.

libyaml follows YAML 1.1 and describes errors in other words. So it parses only what is the same in both: printable
ASCII without the signs of tags, anchors, directives, block scalars and escapes, and without missing values. A profile
of thousands of entries is such a text. The events are those of the parser in Python, with the same positions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml
from ruamel.yaml.events import (
    DocumentEndEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
    StreamStartEvent,
)

_PLAIN = re.compile(r"[^!%&*>?@\\`|]*\n")  # no tags, anchors, aliases, directives, block scalars, escapes
# libyaml takes documents that end twice, and in a list a value that follows no space after its key: `["a":b, {}:c]`.
_UNLIKE = re.compile(r"""^\.\.\.|\n---|["'\]}]:[^ \n]""", re.MULTILINE)

_WITHOUT_VALUE: dict[type[yaml.Event], type[Event]] = {
    yaml.StreamStartEvent: StreamStartEvent,
    yaml.StreamEndEvent: StreamEndEvent,
    yaml.MappingEndEvent: MappingEndEvent,
    yaml.SequenceEndEvent: SequenceEndEvent,
}
_COLLECTIONS: dict[type[yaml.Event], type[Event]] = {
    yaml.MappingStartEvent: MappingStartEvent,
    yaml.SequenceStartEvent: SequenceStartEvent,
}
_WITH_EQUAL = {*_WITHOUT_VALUE, *_COLLECTIONS, yaml.DocumentStartEvent, yaml.DocumentEndEvent}


def plain_events(text: str) -> Iterator[Event] | None:
    """The events of a plain text; None for one that is left to the parser in Python, also for its errors.

    They are made one by one, as the reader may stop, and those of two megabytes would take hundreds of megabytes. So
    the text is parsed once before, to see that it is plain to its end.
    """
    is_plain = text.isascii() and text.replace("\n", " ").isprintable() and _PLAIN.fullmatch(text)
    if not yaml.__with_libyaml__ or not is_plain or _UNLIKE.search(text):
        return None
    try:
        has_equals = all(map(_has_equal, yaml.parse(text, Loader=yaml.CLoader)))
    except yaml.YAMLError:
        return None
    return map(_event, yaml.parse(text, Loader=yaml.CLoader)) if has_equals else None


def _has_equal(event: yaml.Event) -> bool:
    """True if the parser in Python makes the same event; not for a missing value."""
    if isinstance(event, yaml.ScalarEvent):
        return bool(event.value) or not event.implicit[0]
    return type(event) in _WITH_EQUAL


def _event(event: yaml.Event) -> Event:
    """The event of the parser in Python."""
    start, end, kind = event.start_mark, event.end_mark, type(event)
    if isinstance(event, yaml.ScalarEvent):
        return ScalarEvent(None, None, event.implicit, event.value, start, end)
    if kind in _COLLECTIONS:
        return _COLLECTIONS[kind](None, None, True, start, end)  # type: ignore[call-arg]  # of a NodeEvent
    if isinstance(event, yaml.DocumentStartEvent):
        return DocumentStartEvent(start, end, event.explicit)
    if isinstance(event, yaml.DocumentEndEvent):
        return DocumentEndEvent(start, end, event.explicit)
    return _WITHOUT_VALUE[kind](start, end)
