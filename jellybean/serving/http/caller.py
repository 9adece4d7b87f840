"""The caller of an HTTP request, in the form that policies expect of gRPC callers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aiohttp import web

from jellybean_agent import tls_auth_context


class HttpCaller:
    """Whom a request is from. `is_tls`: the connection was made with certificates."""

    def __init__(self, request: web.Request, *, is_tls: bool) -> None:
        self._request, self._is_tls = request, is_tls

    def invocation_metadata(self) -> None:
        """No metadata: it carries the protocol version of our own processes, which do not use HTTP."""

    def peer(self) -> str:
        return f"ipv4:{self._request.remote}"

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        if not self._is_tls:
            return {}
        transport = self._request.transport
        certificate = (transport.get_extra_info("peercert") if transport is not None else None) or {}
        return tls_auth_context(name for kind, name in certificate.get("subjectAltName", ()) if kind == "URI")
