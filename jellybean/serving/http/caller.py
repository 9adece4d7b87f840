"""The caller of an HTTP request, in the form that policies expect of gRPC callers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class HttpCaller:
    """Whom a request is from. `client`: the URI of its identity, else the network of its address.

    `peer`: its address and port.

    `auth`: of the certificate that its connection was made with; empty without TLS.
    """

    def __init__(self, client: str, auth: Mapping[str, Iterable[bytes]], peer: str) -> None:
        self.client, self._auth, self._peer = client, auth, peer

    def invocation_metadata(self) -> None:
        """No metadata: it carries the protocol version of our own processes, which do not use HTTP."""

    def peer(self) -> str:
        return self._peer

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        return self._auth
