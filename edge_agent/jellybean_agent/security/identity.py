"""Identities of processes and clients, and the policy of who may call which method.

An identity is a URI in a certificate's subject alternative names, jellybean://WORKFLOW/ROLE/NAME. The certificate also
has a DNS name derived from that URI, as TLS verifies a server by its DNS name: a call to worker cloud-1 fails unless
the server has the certificate of cloud-1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

import grpc

from jellybean_agent.errors import StatusError
from jellybean_agent.system.addresses import peer_host
from jellybean_agent.system.protocol_version import PROTOCOL_VERSION_KEY, protocol_mismatch, stated_protocol
from jellybean_protos.plan_format import WORKFLOW_SEPARATOR, qualified_name

SCHEME = "jellybean://"
SENDER_KEY = "jellybean-sender"
WORKFLOW_KEY = "jellybean-workflow"  # of a stream's messages, if the plan has several
REPLY_KEY, REPLY_ADDRESS_KEY = "jellybean-reply-key", "jellybean-reply-address"  # of one of several gateways
_TLS_DOMAIN = ".jellybean.internal"
_SAN, _SECURITY = "x509_subject_alternative_name", "transport_security_type"


class Role(StrEnum):
    """The role of an identity in a workflow. An admin is a client that may also query and drain agents.

    A relay passes connections on that it cannot read (`jellybean_agent.relay`), and may call nothing.
    """

    AGENT = "agent"
    GATEWAY = "gateway"
    CLIENT = "client"
    ADMIN = "admin"
    RELAY = "relay"


@dataclass(frozen=True, slots=True)
class Identity:
    """One agent, gateway, client or admin of a workflow. The gateway's name is empty, as in messages.

    `workflow`: the name of the plan; of a client that may call only one of a plan's workflows, PLAN/WORKFLOW.
    """

    workflow: str
    role: Role
    name: str = ""

    @property
    def plan(self) -> str:
        """The plan whose processes it may call."""
        return self.workflow.partition(WORKFLOW_SEPARATOR)[0]

    @property
    def own_workflow(self) -> str:
        """The only one of the plan's workflows that it may call; empty: all."""
        return self.workflow.partition(WORKFLOW_SEPARATOR)[2]

    @property
    def uri(self) -> str:
        parts = [self.workflow, self.role.value, *([self.name] if self.name else [])]
        return SCHEME + "/".join(quote(part, safe="") for part in parts)

    @property
    def tls_name(self) -> str:
        """The DNS name in its certificate: a hash, as names may contain any characters."""
        return f"{hashlib.sha256(self.uri.encode()).hexdigest()[:32]}{_TLS_DOMAIN}"

    def __str__(self) -> str:
        name = qualified_name(self.own_workflow, self.name) if self.own_workflow else self.name
        return f"{self.role.value} {name}".strip()


def is_tls_name(name: str) -> bool:
    """True if a DNS name is that of an identity (`Identity.tls_name`), not of a host."""
    return name.endswith(_TLS_DOMAIN)


def parse_identity(uri: str) -> Identity | None:
    """The identity that a URI names; None if the URI is not of the form above."""
    parts = [unquote(part) for part in uri.removeprefix(SCHEME).split("/")] if uri.startswith(SCHEME) else []
    if len(parts) not in (2, 3) or parts[1] not in list(Role) or not all(parts):
        return None
    found = Identity(parts[0], Role(parts[1]), parts[2] if len(parts) == 3 else "")
    return found if (found.role is Role.GATEWAY) == (found.name == "") else None


_ANYONE = frozenset(Role) - {Role.RELAY}
_AGENTS = frozenset({Role.AGENT})
_CLIENTS = frozenset({Role.CLIENT, Role.ADMIN})
_AGENT, _GATEWAY = "/jellybean.agent.v1.Agent/", "/jellybean.gateway.v1.Gateway/"
_LEDGER = "/jellybean.gateway.v1.Ledger/"
_ENROLMENT = "/jellybean.enrol.v1.Enrolment/"
# Methods of agents that the plan does not use: they wait for a plan that does. Which workers earlier plans had is not
# known after a restart; the certificate shows that the owner admitted the agent.
_WAITING = frozenset({f"{_ENROLMENT}Plan", f"{_ENROLMENT}Renew"})
RULES: Mapping[str, frozenset[Role]] = {
    f"{_AGENT}Deliver": frozenset({Role.AGENT, Role.GATEWAY}),
    f"{_AGENT}Describe": frozenset({Role.GATEWAY, Role.ADMIN}),
    f"{_AGENT}Metrics": frozenset({Role.GATEWAY, Role.ADMIN}),
    f"{_AGENT}Drain": frozenset({Role.GATEWAY, Role.ADMIN}),
    f"{_AGENT}Measure": frozenset({Role.ADMIN}),
    f"{_AGENT}ReadState": frozenset({Role.GATEWAY}),
    f"{_AGENT}WriteState": frozenset({Role.GATEWAY}),
    f"{_GATEWAY}Infer": _CLIENTS,
    f"{_GATEWAY}Status": _CLIENTS,
    f"{_GATEWAY}Metrics": frozenset({Role.ADMIN}),
    f"{_GATEWAY}Drain": frozenset({Role.ADMIN}),
    f"{_GATEWAY}Stop": frozenset({Role.ADMIN}),
    f"{_GATEWAY}Plan": frozenset({Role.ADMIN}),
    f"{_GATEWAY}Replace": frozenset({Role.ADMIN}),
    _LEDGER: frozenset({Role.ADMIN}),  # what serving cost, and whom
    f"{_LEDGER}Label": _CLIENTS,  # a client for its own requests: the service looks at it
    "/jellybean.gateway.v1.Project/": frozenset({Role.ADMIN}),
    "/inference.GRPCInferenceService/": _CLIENTS,  # all methods of a service
    **dict.fromkeys((f"{_ENROLMENT}{name}" for name in ("Renew", "Plan", "Model")), _AGENTS),
    "/grpc.health.v1.Health/": _ANYONE,
    "/grpc.reflection.v1alpha.ServerReflection/": _ANYONE,
    "/grpc.reflection.v1.ServerReflection/": _ANYONE,
}


def allowed_roles(method: str) -> frozenset[Role]:
    """Roles that may call a method (/package.Service/Method); the empty set if no rule matches."""
    return RULES.get(method) or RULES.get(method[: method.rfind("/") + 1], frozenset())


def tls_auth_context(names: Iterable[str]) -> Mapping[str, Iterable[bytes]]:
    """The `auth_context` of a TLS client whose certificate has these names, in the form of grpc's."""
    return {_SECURITY: (b"ssl",), _SAN: [name.encode() for name in names]}


def identities(auth_context: Mapping[str, Iterable[bytes]]) -> list[Identity]:
    """The identities in a client's verified certificate."""
    found = (parse_identity(name.decode("utf-8", "replace")) for name in auth_context.get(_SAN, ()))
    return [identity for identity in found if identity is not None]


def caller_uri(context: Any) -> str:
    """The URI of a caller's identity; empty without TLS."""
    names = context.auth_context().get(_SAN, ())
    return _first_uri(tuple(names)) if names else ""


def caller_name(context: Any) -> str:
    """The URI of a caller's identity, or else its address without the port, for logs."""
    return caller_uri(context) or peer_host(context.peer())


_current_caller: ContextVar[str] = ContextVar("caller", default="")


def remember_caller(context: Any) -> None:
    """Remember the caller for what this call's task does: `current_caller`."""
    _current_caller.set(caller_uri(context))


def current_caller() -> str:
    """The URI of the identity that called; empty without TLS, or outside a call that was remembered."""
    return _current_caller.get()


@lru_cache(4096)
def _first_uri(names: tuple[bytes, ...]) -> str:
    found = identities({_SAN: names})
    return found[0].uri if found else ""


@dataclass(frozen=True, slots=True)
class Policy:
    """Which calls a server accepts. `plain`: role given to callers without TLS; None: they may call every method.

    `checks_workflows`: the server itself lets clients whose certificate is of one of the plan's workflows call that one
    only; without it they may call nothing.

    Callers on a Unix socket may always call every method, as only this user can open the socket's folder.
    """

    workflow: str
    workers: Container[str]
    plain: Role | None = None
    checks_workflows: bool = False

    def check(self, method: str, context: Any) -> bool:
        """StatusError when the caller may not call the method, or has an incompatible protocol version.

        True if the same call would be accepted for as long as the connection lasts; an agent's only while the plan has
        it as a worker.
        """
        metadata = dict(context.invocation_metadata() or ())
        if PROTOCOL_VERSION_KEY in metadata or method.startswith(_AGENT):
            reason = protocol_mismatch(f"the caller of {method}", stated_protocol(metadata.get(PROTOCOL_VERSION_KEY)))
            if reason:
                raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, reason)
        auth = context.auth_context()
        if "ssl" not in [kind.decode() for kind in auth.get(_SECURITY, ())]:
            if self.plain is not None and not context.peer().startswith("unix:"):
                self._check_role(method, Identity(self.workflow, self.plain, "on this machine"))
            return True
        found = identities(auth)
        if len(found) != 1:
            names = ", ".join(map(str, found)) or "none"
            reason = f"a certificate states one identity {SCHEME}WORKFLOW/ROLE/NAME; this one's: {names}"
            raise StatusError(grpc.StatusCode.UNAUTHENTICATED, reason)
        self._check(method, found[0], context)
        return found[0].role is not Role.AGENT

    def _check(self, method: str, caller: Identity, context: Any) -> None:
        is_limited = bool(caller.own_workflow)
        if caller.plan != self.workflow or (is_limited and caller.role is not Role.CLIENT):
            raise _denied(f"{caller} is of workflow {caller.workflow}, this is {self.workflow}")
        if is_limited and not self.checks_workflows:
            raise _denied(f"{caller} may call the gateway only, as a client of workflow {caller.own_workflow} alone")
        self._check_role(method, caller, "; call with an admin's certificate (--tls FOLDER)")
        if caller.role is Role.AGENT and caller.name not in self.workers and method not in _WAITING:
            raise _denied(f"{caller} is no worker of the plan")
        if caller.role in (Role.AGENT, Role.GATEWAY):
            stated = (value for key, value in context.invocation_metadata() or () if key == SENDER_KEY)
            if (other := next((name for name in stated if name != caller.name), None)) is not None:
                raise _denied(f"{caller} says that it is {str(other)[:60]!r}")

    def _check_role(self, method: str, caller: Identity, admin_hint: str = "") -> None:
        """`admin_hint`: what to do where the method is for admins."""
        roles = allowed_roles(method)
        if caller.role not in roles:
            of = " or ".join(sorted(roles)) or "nobody"
            hint = admin_hint if Role.ADMIN in roles and caller.role is Role.CLIENT else ""
            if method.endswith(("/Drain", "/Stop")):
                hint += "; on the gateway's machine: `jellybean down`"
            raise _denied(f"{caller} may not call {method}, which is for {of}{hint}")


@dataclass(frozen=True, slots=True)
class OpenPolicy:
    """Accepts every call, of callers without a certificate too: for methods that are harmless or check secrets."""

    def check(self, _method: str, _context: Any) -> bool:
        return True


def _denied(reason: str) -> StatusError:
    return StatusError(grpc.StatusCode.PERMISSION_DENIED, reason)
