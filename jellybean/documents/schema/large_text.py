"""Parser events of large, plain YAML texts by libyaml, which is ten times as fast as the parser in Python.

libyaml follows YAML 1.1 and describes errors in other words. So it parses only what is the same in both: printable
ASCII without the signs of tags, anchors, directives, block scalars and escapes, and without missing values. A profile
of thousands of entries is such a text. The events are those of the parser in Python, with the same positions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

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


def plain_events(text: str) -> Sequence[Event] | None:
    """The events of a plain text; None for one that is left to the parser in Python, also for its errors."""
    is_plain = text.isascii() and text.replace("\n", " ").isprintable() and _PLAIN.fullmatch(text)
    if not yaml.__with_libyaml__ or not is_plain:
        return None
    try:
        found = [_event(event) for event in yaml.parse(text, Loader=yaml.CLoader)]
    except yaml.YAMLError:
        return None
    return None if any(event is None for event in found) else [event for event in found if event is not None]


def _event(event: yaml.Event) -> Event | None:
    """The event of the parser in Python; None for one that has no equal there."""
    start, end, kind = event.start_mark, event.end_mark, type(event)
    if isinstance(event, yaml.ScalarEvent):
        is_missing = event.implicit[0] and not event.value
        return None if is_missing else ScalarEvent(None, None, event.implicit, event.value, start, end)
    if kind in _COLLECTIONS:
        return _COLLECTIONS[kind](None, None, True, start, end)  # type: ignore[call-arg]  # of a NodeEvent
    if kind in _WITHOUT_VALUE:
        return _WITHOUT_VALUE[kind](start, end)
    if isinstance(event, yaml.DocumentStartEvent):
        return DocumentStartEvent(start, end, event.explicit)
    return DocumentEndEvent(start, end, event.explicit) if isinstance(event, yaml.DocumentEndEvent) else None
