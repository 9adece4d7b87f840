"""Names of the relay's Deployment and Services, by which they are found among the objects of all plans."""

from __future__ import annotations

_SUFFIX = "-relay"


def relay_name(prefix: str) -> str:
    """The relay's Deployment and Service of one plan; with the deployment's name as prefix, the Service of all plans.

    The latter is the one that tunnels of other clusters dial.
    """
    return f"{prefix}{_SUFFIX}"


def is_relay(app: str, name: str) -> bool:
    """True if a Deployment or Service of the deployment `app` is a relay's."""
    return name != app and name.endswith(_SUFFIX)
