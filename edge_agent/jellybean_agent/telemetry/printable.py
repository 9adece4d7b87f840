"""Foreign text for logs and terminals, without control characters.

Names, paths, request ids and reasons come from clients, peers and documents. Written raw, a newline
begins a line that nobody logged, and an escape sequence moves the cursor of whoever reads it.
"""

from __future__ import annotations

import re

# C0 and C1 controls and DEL; marks and overrides of the writing direction; line and paragraph
# separators; surrogates, which no encoding can write.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str, most: int | None = None) -> str:
    """The text as one line, with control characters escaped; at most `most` characters of it."""
    if most is not None and len(text) > most:
        return f"{_UNSAFE.sub(_escaped, text[:most])}... ({len(text) - most} characters more)"
    return _UNSAFE.sub(_escaped, text)


def printable_lines(text: str) -> str:
    """The text with all control characters escaped but newlines, for messages of several lines."""
    return "\n".join(map(printable, text.split("\n")))


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    number = ord(character)
    return _NAMED.get(character) or (f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}")
