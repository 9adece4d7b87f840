"""Names and labels that Kubernetes takes, from names that documents may hold.

A name that already fits is kept as it is; one that had to be changed or cut ends in six digits of its hash, so that two
different names never become one.
"""

from __future__ import annotations

import hashlib
import re

APP = "app.kubernetes.io"
OWN = "jellybean.dev"
TIER_LABEL, SITE_LABEL = f"{OWN}/tier", f"{OWN}/site"  # of nodes, unless settings name others
MANAGER = "jellybean"  # the field manager of everything applied, and the value of managed-by
MOST_LABEL = 63
MOST_SET_NAME = 52  # its pods carry NAME-<hash of 10> as a label, whose value may have 63 characters

_OTHER = re.compile(r"[^a-z0-9]+")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_HASH_DIGITS = 6


def dns_name(text: str, most: int = MOST_LABEL) -> str:
    """A DNS label (RFC 1035: letters, digits, '-', a letter first) of at most `most` characters."""
    plain = _OTHER.sub("-", text.lower()).strip("-")
    if not plain[:1].isalpha():
        plain = f"w{plain}"
    if plain == text and len(plain) <= most:
        return plain
    digest = hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]
    return f"{plain[: most - _HASH_DIGITS - 1].rstrip('-')}-{digest}"


def label_value(text: str) -> str:
    """The text where it may be a label's value, else its DNS name."""
    return text if _LABEL_VALUE.fullmatch(text) else dns_name(text)
