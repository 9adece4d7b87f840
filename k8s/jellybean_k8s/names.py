"""Names, labels and label values that are valid in Kubernetes, from names in documents.

A valid name is kept; a name that was changed or truncated ends in six digits of its hash, so that different names stay
different.
"""

from __future__ import annotations

import hashlib
import re

APP_PREFIX = "app.kubernetes.io"
OWN_PREFIX = "jellybean.dev"
TIER_LABEL, SITE_LABEL = f"{OWN_PREFIX}/tier", f"{OWN_PREFIX}/site"  # default labels of nodes
FIELD_MANAGER = "jellybean"  # the field manager of everything applied, and the value of managed-by
MAX_LABEL_LENGTH = 63
MAX_SET_NAME_LENGTH = 52  # pods of a StatefulSet have a label NAME-<hash of 10 digits>, of at most 63 characters

# Kubernetes' rules, as patterns of the whole text
LABEL_KEY_PATTERN = r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$"
LABEL_VALUE_PATTERN = r"^([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?$"
OBJECT_NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$"
ENV_NAME_PATTERN = r"^[A-Za-z_.-][A-Za-z0-9_.-]*$"
MAX_OBJECT_NAME_LENGTH = 253

_OTHER = re.compile(r"[^a-z0-9]+")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_HASH_DIGITS = 6


def dns_name(text: str, most: int = MAX_LABEL_LENGTH) -> str:
    """A DNS label (RFC 1035: letters, digits, '-', a letter first) of at most `most` characters."""
    plain = _OTHER.sub("-", text.lower()).strip("-")
    if not plain[:1].isalpha():
        plain = f"w{plain}"
    if plain == text and len(plain) <= most:
        return plain
    digest = hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]
    return f"{plain[: most - _HASH_DIGITS - 1].rstrip('-')}-{digest}"


def label_value(text: str) -> str:
    """The text if it is a valid label value, else its DNS name."""
    return text if _LABEL_VALUE.fullmatch(text) else dns_name(text)
