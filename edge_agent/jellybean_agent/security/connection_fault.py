"""Why a process of a workflow cannot be reached, in words with the next step.

gRPC says of a failed connection only what OpenSSL says. So after a failure the connection is made once more here, and
each step (address, TLS or plain text, server's certificate, caller's certificate) has its own sentence.
"""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jellybean_agent.errors import PlanViewError, describe_error
from jellybean_agent.security.certificates import CertificateFolder, Credentials
from jellybean_agent.security.identity import Identity, Role
from jellybean_agent.security.renewal import renewal_advice, utc_minute
from jellybean_agent.security.tls_context import anonymous_client_context, client_context
from jellybean_agent.system.addresses import parse_address

_NOT_CONNECTED = ("failed to connect to all addresses", "errors resolving", "DNS resolution failed")
_CUT_OFF = re.compile(
    r"((ipv[46]|unix):\S+: )?(Socket closed|Stream removed|Connection reset|Broken pipe|GOAWAY|recvmsg|sendmsg)"
)
_CONNECT_S = 3.0
_ANSWER_S = 2.0  # for the server's first bytes after the handshake: its settings, or why it refuses the certificate
_HTTP2_BEGIN = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # preface, empty SETTINGS
_HTTP_REQUEST = b"GET /favicon.ico HTTP/1.0\r\nHost: localhost\r\n\r\n"  # costs a metrics server no metrics
_MAX_HTTP_BYTES = 2**12  # that are read of the answer: an unread one would be an error in the server's log
_EXPIRED, _NOT_YET_VALID, _OTHER_NAME = 10, 9, 62  # OpenSSL's X509_V_ERR_ codes; others: of an unknown authority
_ENROL_PORT = "port for boxes that join (--enrol)"
_COPY = "copy the folder .jellybean/certs/admin/admin from the project on the gateway's machine, and give it as --tls"


@dataclass(frozen=True, slots=True)
class ConnectionFault:
    """Why a connection fails.

    `of_certificate`: a certificate is the reason, that TLS is missing on one side, or that the port is for HTTP.
    """

    reason: str
    of_certificate: bool


def says_not_connected(details: str) -> bool:
    """True for what gRPC says of a call when there is no connection; its words differ between versions."""
    return details.startswith(_NOT_CONNECTED)


def says_cut_off(details: str) -> bool:
    """True for what gRPC says of a call whose connection ended before the answer."""
    return _CUT_OFF.match(details) is not None


def connection_fault(address: str, wanted: Identity | None, folder: CertificateFolder | None) -> ConnectionFault | None:
    """Why `address` (HOST:PORT) cannot be reached; None if it can.

    `wanted`: identity of the process that should answer; `folder`: the caller's certificate. Without them, plain text.
    """

    def check(connection: socket.socket) -> ConnectionFault | None:
        if wanted is None or folder is None:
            return _fault_of_plain_text(connection, address)
        return _Handshake(address, wanted, _Caller(folder.path, folder.current())).fault(connection)

    return _fault_of_connection(address, _who(wanted), "port", check)


def enrolment_fault(address: str, wanted: Identity, ca: bytes) -> ConnectionFault | None:
    """Why the gateway's enrolment service at `address` cannot be reached; None if it can. `ca`: of the token (PEM)."""
    handshake = _Handshake(address, wanted, ca)
    return _fault_of_connection(address, _who(wanted), _ENROL_PORT, handshake.fault)


def _fault_of_connection(
    address: str, who: str, port_words: str, check: Callable[[socket.socket], ConnectionFault | None]
) -> ConnectionFault | None:
    """The fault of a new connection, which `check` inspects. `who` should listen there, on its port `port_words`."""
    try:
        host, port = parse_address(address)
    except PlanViewError as error:
        return ConnectionFault(str(error), of_certificate=False)
    try:
        connection = socket.create_connection((host, port), _CONNECT_S)
    except (OSError, UnicodeError) as error:  # UnicodeError: a host name that cannot be encoded (IDNA)
        return ConnectionFault(_connect_failure(address, host, who, port_words, error), of_certificate=False)
    with connection:
        try:
            return check(connection)
        except TimeoutError:
            reason = f"{address} takes connections, but does not answer: is this the {port_words} of {who}?"
            return ConnectionFault(reason, of_certificate=False)
        except OSError as error:
            return ConnectionFault(f"{address}: {describe_error(error)}", of_certificate=False)


def _who(wanted: Identity | None) -> str:
    """The process that should answer, in words."""
    return "the gateway" if wanted is None or wanted.role is Role.GATEWAY else f"the agent of {wanted.name}"


def _connect_failure(address: str, host: str, who: str, port_words: str, error: Exception) -> str:
    """Why there is no TCP connection to `who`."""
    if isinstance(error, socket.gaierror | UnicodeError):
        return f"{address}: the host name {host} is unknown"
    if isinstance(error, TimeoutError):
        return f"{address} does not answer: is the host up, and the port open?"
    if isinstance(error, ConnectionRefusedError):
        return f"nothing listens at {address}: is {who} up, and is this its {port_words}?"
    return f"{address}: {describe_error(error)}"


def _fault_of_plain_text(connection: socket.socket, address: str) -> ConnectionFault | None:
    """The fault if the server speaks TLS: it closes other connections without a word, so a handshake is tried.

    TimeoutError if the server says nothing.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        context.wrap_socket(connection).close()
    except TimeoutError:
        raise
    except OSError:
        return _fault_of_http(address)
    reason = f"{address} takes TLS only: give the folder of a certificate (--tls FOLDER)"
    return ConnectionFault(reason, of_certificate=True)


def _fault_of_http(address: str) -> ConnectionFault | None:
    """The fault if the server answers HTTP without TLS; None if it does not."""
    with (
        contextlib.suppress(OSError),
        socket.create_connection(parse_address(address), _CONNECT_S) as connection,
    ):
        connection.sendall(_HTTP_REQUEST)
        if connection.recv(_MAX_HTTP_BYTES).startswith(b"HTTP/"):
            reason = (
                f"{address} speaks HTTP, not gRPC: this may be the gateway's port for metrics (--metrics-port) or "
                "HTTP (--http-port); use its port for clients (--port)"
            )
            return ConnectionFault(reason, of_certificate=True)
    return None


@dataclass(frozen=True, slots=True)
class _Caller:
    """The credentials of a caller, and their folder."""

    folder: Path
    credentials: Credentials


@dataclass(frozen=True, slots=True)
class _Handshake:
    """A handshake with the process that should be `wanted`. `caller`: credentials, or just an authority (PEM)."""

    address: str
    wanted: Identity
    caller: _Caller | bytes

    @property
    def server(self) -> str:
        """The process that should answer, and its address, in words."""
        return f"{_who(self.wanted)} at {self.address}"

    @property
    def _other_port(self) -> str:
        """What to do where the port is that for HTTPS."""
        needed = f"{_ENROL_PORT}" if isinstance(self.caller, bytes) else "port for clients (--port)"
        return f"this may be the gateway's --http-port; use its {needed}"

    def fault(self, connection: socket.socket) -> ConnectionFault | None:
        """Why the handshake fails; None if it succeeds and the server accepts the certificate."""
        context = self._context()
        reason: str | None
        try:
            with context.wrap_socket(connection, server_hostname=self.wanted.tls_name) as secured:
                if secured.selected_alpn_protocol() is None:
                    reason = f"{self.address} speaks HTTPS, not gRPC: {self._other_port}"
                else:
                    reason = None if isinstance(self.caller, bytes) else self._refusal(secured, self.caller)
        except ssl.SSLCertVerificationError as error:
            reason = self._wrong_server(error)
        except (ssl.SSLError, ConnectionError) as error:  # before a certificate: bytes that are no TLS, or an end
            if (fault := _fault_of_http(self.address)) is not None:
                return fault
            if isinstance(error, ssl.SSLEOFError | ConnectionError):
                reason = (
                    f"{self.address} closes connections at once: nothing may serve behind it now, as behind a Service, "
                    "proxy or port forwarding whose gateway is not ready; or it speaks no TLS"
                )
                return ConnectionFault(reason, of_certificate=False)
            who = f"what listens at {self.address} speaks no TLS"
            if isinstance(self.caller, bytes):
                return ConnectionFault(f"{who}: is this the gateway's {_ENROL_PORT}?", of_certificate=False)
            reason = (
                f"{who}: a gateway started with --insecure is called on its own machine only, by commands on its "
                "project's folder without --gateway and --tls, in Python without tls="
            )
        return None if reason is None else ConnectionFault(reason, of_certificate=True)

    def _context(self) -> ssl.SSLContext:
        if isinstance(self.caller, bytes):
            return anonymous_client_context(self.caller, ("h2",))
        return client_context(self.caller.credentials, ("h2",))

    def _refusal(self, secured: ssl.SSLSocket, caller: _Caller) -> str | None:
        """Why the server refuses the caller's certificate, which it says after the handshake; None if it does not."""
        secured.settimeout(_ANSWER_S)
        why = "closed the connection"
        try:
            secured.sendall(_HTTP2_BEGIN)
            if secured.recv(1):
                return None
        except TimeoutError:
            return None
        except (ssl.SSLError, ConnectionError) as error:
            why = (getattr(error, "reason", None) or why).lower().replace("_", " ")
        if caller.credentials.expires_unix_s < time.time():
            when, advice = caller.credentials.expires_unix_s, renewal_advice(caller.folder, caller.credentials.identity)
            return f"the certificate in {caller.folder} expired on {utc_minute(when)}; {advice}"
        signer = _issuer(_first_certificate(caller.credentials.chain))
        return (
            f"{self.server} refuses the certificate in {caller.folder}, which the authority {signer!r} "
            f"signed ({why}): it does not know this authority; {_COPY}"
        )

    def _wrong_server(self, error: ssl.SSLCertVerificationError) -> str:
        shown = self._shown_certificate()
        if shown is None:
            return f"{self.address}: its certificate is not valid: {error.verify_message}"
        if error.verify_code == _EXPIRED:
            until = utc_minute(shown.not_valid_after_utc.timestamp())
            return f"the certificate of {self.server} expired on {until}: run `jellybean certs DIR` there"
        if error.verify_code == _NOT_YET_VALID:
            return f"the certificate of {self.server} is not valid yet: compare both machines' clocks"
        if error.verify_code == _OTHER_NAME:
            names = ", ".join(_names(shown)) or "nobody"
            return (
                f"at {self.address} answers {names}, not {self.wanted.uri}: check the address, and the workflow's name"
            )
        signed = f"the certificate of {self.server} is signed by the authority {_issuer(shown)!r}"
        if isinstance(self.caller, bytes):
            return (
                f"{signed}; the token is of {_known(self.caller)}: this is another gateway, or its authority is new; "
                "make a token there (`jellybean token`)"
            )
        return (
            f"{signed}; {self.caller.folder} trusts {_known(self.caller.credentials.ca)}: `jellybean certs` made "
            f"another authority here, which it does not know; {_COPY}"
        )

    def _shown_certificate(self) -> Any:
        """The certificate that the server shows, unverified; None if there is none now."""
        from cryptography import x509

        context = self._context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with (
            contextlib.suppress(OSError, ValueError),
            socket.create_connection(parse_address(self.address), _CONNECT_S) as connection,
            context.wrap_socket(connection) as secured,
        ):
            return x509.load_der_x509_certificate(secured.getpeercert(binary_form=True) or b"")
        return None


def _first_certificate(chain: bytes) -> Any:
    from cryptography import x509

    return x509.load_pem_x509_certificates(chain)[0]


def _known(bundle: bytes) -> str:
    """Names of the authorities in a bundle (PEM)."""
    from cryptography import x509

    return ", ".join(repr(_common_name(known.subject)) for known in x509.load_pem_x509_certificates(bundle))


def _issuer(certificate: Any) -> str:
    return _common_name(certificate.issuer)


def _common_name(name: Any) -> str:
    from cryptography.x509.oid import NameOID

    common_names = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(common_names[0].value) if common_names else name.rfc4514_string()


def _names(certificate: Any) -> list[str]:
    """The URIs in a certificate, or its DNS names if it has none."""
    from cryptography import x509

    with contextlib.suppress(x509.ExtensionNotFound):
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return list(
            names.get_values_for_type(x509.UniformResourceIdentifier) or names.get_values_for_type(x509.DNSName)
        )
    return []
