"""DNS names of the client Service, which clients call and a certificate of the gateway must therefore have."""

from __future__ import annotations

from collections.abc import Iterable

_TAILS = ("", ".svc", ".svc.cluster.local")


def service_names(app: str, namespace: str = "") -> tuple[str, ...]:
    """Every DNS name of a deployment's client Service; without a namespace only that for clients of the same one."""
    return (app, *(f"{app}.{namespace}{tail}" for tail in _TAILS if namespace))


def service_namespaces(app: str, names: Iterable[str]) -> tuple[str, ...]:
    """The namespaces whose client Service the names are of, as in a certificate made for them before."""
    head, tail = f"{app}.", ".svc"
    found = (name[len(head) : -len(tail)] for name in names if name.startswith(head) and name.endswith(tail))
    return tuple(dict.fromkeys(namespace for namespace in found if namespace and "." not in namespace))
