"""Who may call what: every rule of the table, and what else a server checks of its callers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import grpc
import pytest

from jellybean_agent import (
    Identity,
    OpenPolicy,
    Policy,
    Role,
    StatusError,
    caller_uri,
    current_caller,
    is_tls_name,
    protocol_metadata,
    protocol_mismatch,
    remember_caller,
    tls_auth_context,
)
from jellybean_agent.security.identity import SENDER_KEY, allowed_roles, identities
from jellybean_agent.system.protocol_version import PROTOCOL_VERSION, PROTOCOL_VERSION_KEY, stated_protocol

AGENT, GATEWAY, ENROLMENT = (
    "/jellybean.agent.v1.Agent/",
    "/jellybean.gateway.v1.Gateway/",
    "/jellybean.enrol.v1.Enrolment/",
)
INFER = "/inference.GRPCInferenceService/ModelInfer"
A, G, C, R, L = Role.AGENT, Role.GATEWAY, Role.CLIENT, Role.ADMIN, Role.RELAY


@dataclass
class Call:
    """The context of a call. `names`: in the caller's certificate; None: without TLS."""

    names: Iterable[str] | None = None
    metadata: Mapping[str, str] = field(default_factory=lambda: dict(protocol_metadata()))
    caller: str = "ipv4:10.0.0.7:1"

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return tuple(self.metadata.items())

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        return {} if self.names is None else tls_auth_context(self.names)

    def peer(self) -> str:
        return self.caller


def by(role: Role, name: str = "", workflow: str = "w", **metadata: str) -> Call:
    own = "" if role is Role.GATEWAY else name or "edge-1"
    return Call([Identity(workflow, role, own).uri], {**dict(protocol_metadata()), **metadata})


@pytest.mark.parametrize(
    ("method", "roles"),
    [
        (f"{AGENT}Deliver", {A, G}),
        (f"{AGENT}Describe", {G, R}),
        (f"{AGENT}Metrics", {G, R}),
        (f"{AGENT}Drain", {G, R}),
        (f"{AGENT}Measure", {R}),
        (f"{AGENT}ReadState", {G}),
        (f"{AGENT}WriteState", {G}),
        (f"{AGENT}Other", set()),
        (f"{GATEWAY}Infer", {C, R}),
        (f"{GATEWAY}Status", {C, R}),
        *((f"{GATEWAY}{name}", {R}) for name in ("Metrics", "Drain", "Stop", "Plan", "Replace")),
        ("/jellybean.gateway.v1.Ledger/Read", {R}),
        ("/jellybean.gateway.v1.Ledger/Label", {C, R}),
        ("/jellybean.gateway.v1.Project/Write", {R}),
        (INFER, {C, R}),
        *((f"{ENROLMENT}{name}", {A}) for name in ("Renew", "Plan", "Model")),
        (f"{ENROLMENT}Enrol", set()),
        ("/grpc.health.v1.Health/Check", {A, G, C, R}),
        ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", {A, G, C, R}),
        ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", {A, G, C, R}),
        ("/elsewhere.Service/Method", set()),
    ],
)
def test_the_roles_that_may_call_a_method(method: str, roles: set[Role]) -> None:
    policy = Policy("w", ("edge-1",))
    assert allowed_roles(method) == roles
    for role in Role:
        if role in roles:
            assert policy.check(method, by(role)) == (role is not Role.AGENT)
        else:
            with pytest.raises(StatusError, match=f"may not call {method}, which is for ") as refused:
                policy.check(method, by(role))
            assert refused.value.status is grpc.StatusCode.PERMISSION_DENIED


def test_a_refusal_names_what_helps() -> None:
    policy = Policy("w", ())
    for role, method, hint in (
        (C, f"{GATEWAY}Plan", "which is for admin; call with an admin's certificate (--tls FOLDER)"),
        (C, f"{GATEWAY}Stop", "(--tls FOLDER); on the gateway's machine: `jellybean down`"),
        (A, f"{GATEWAY}Drain", "which is for admin; on the gateway's machine: `jellybean down`"),
        (C, f"{AGENT}ReadState", "which is for gateway"),
        (G, f"{GATEWAY}Infer", "which is for admin or client"),
        (R, f"{AGENT}Other", "which is for nobody"),
    ):
        with pytest.raises(StatusError, match=re.escape(hint) + "$"):
            policy.check(method, by(role))


def test_an_agent_must_be_a_worker_of_the_plan_unless_it_waits_for_one() -> None:
    policy = Policy("w", ("edge-1",))
    for method in (f"{AGENT}Deliver", f"{ENROLMENT}Model"):
        with pytest.raises(StatusError, match="agent edge-9 is no worker of the plan"):
            policy.check(method, by(A, "edge-9"))
    for method in (f"{ENROLMENT}Plan", f"{ENROLMENT}Renew"):
        assert not policy.check(method, by(A, "edge-9")), "it is checked again, as the plan may change"


def test_a_caller_of_another_workflow_is_refused() -> None:
    with pytest.raises(StatusError, match="client edge-1 is of workflow other, this is w"):
        Policy("w", ()).check(INFER, by(C, workflow="other"))


def test_the_sender_must_be_the_caller() -> None:
    policy, method = Policy("w", ("edge-1", "edge-2")), f"{AGENT}Deliver"
    assert not policy.check(method, by(A, "edge-1", **{SENDER_KEY: "edge-1"}))
    assert policy.check(method, by(G, **{SENDER_KEY: ""}))
    for call in (by(A, "edge-1", **{SENDER_KEY: "edge-2"}), by(G, **{SENDER_KEY: "edge-2"})):
        with pytest.raises(StatusError, match="says that it is 'edge-2'"):
            policy.check(method, call)
    assert policy.check(INFER, by(C, "bob", **{SENDER_KEY: "alice"})), "of a client it has no meaning"


@pytest.mark.parametrize("names", [[], ["spiffe://other"], [Identity("w", C, "a").uri, Identity("w", C, "b").uri]])
def test_a_certificate_states_one_identity(names: list[str]) -> None:
    with pytest.raises(StatusError, match="states one identity") as refused:
        Policy("w", ()).check(INFER, Call(names))
    assert refused.value.status is grpc.StatusCode.UNAUTHENTICATED
    assert ("client a, client b" if len(names) == 2 else "none") in str(refused.value)


def test_callers_without_tls_have_the_plain_role_except_on_a_unix_socket() -> None:
    method = f"{GATEWAY}Stop"
    assert Policy("w", ()).check(method, Call())
    assert Policy("w", (), Role.ADMIN).check(method, Call())
    assert Policy("w", (), Role.CLIENT).check(method, Call(caller="unix:"))
    assert Policy("w", (), Role.CLIENT).check(INFER, Call())
    with pytest.raises(StatusError, match="client on this machine may not call"):
        Policy("w", (), Role.CLIENT).check(method, Call())
    assert OpenPolicy().check(method, Call(None, {}))


@pytest.mark.parametrize(
    ("method", "stated", "is_refused"),
    [
        (f"{AGENT}Deliver", str(PROTOCOL_VERSION), False),
        (f"{AGENT}Deliver", str(PROTOCOL_VERSION + 1), False),
        (f"{AGENT}Deliver", str(PROTOCOL_VERSION - 1), False),
        (f"{AGENT}Deliver", str(PROTOCOL_VERSION + 2), True),
        (f"{AGENT}Deliver", "x", True),
        (INFER, None, False),
        (INFER, "99", True),
    ],
)
def test_a_caller_of_another_protocol_is_refused(method: str, stated: str | None, is_refused: bool) -> None:
    call = Call(None, {} if stated is None else {PROTOCOL_VERSION_KEY: stated})
    if not is_refused:
        assert Policy("w", ()).check(method, call)
        return
    with pytest.raises(StatusError, match=f"the caller of {method} speaks protocol") as refused:
        Policy("w", ()).check(method, call)
    assert refused.value.status is grpc.StatusCode.FAILED_PRECONDITION


def test_an_agents_method_without_a_version_is_of_the_first() -> None:
    is_compatible = not protocol_mismatch("it", 1)
    call = Call(None, {})
    if is_compatible:
        assert Policy("w", ()).check(f"{AGENT}Deliver", call)
    else:
        with pytest.raises(StatusError, match="speaks protocol 1"):
            Policy("w", ()).check(f"{AGENT}Deliver", call)


@pytest.mark.parametrize(
    ("value", "version"),
    [("2", 2), (b"3", 3), (None, 1), ("", 1), ("x", 0), ("-1", 0), ("²", 0), ("1" * 9, 111111111), ("1" * 10, 0)],
)
def test_the_version_in_metadata(value: str | bytes | None, version: int) -> None:
    assert stated_protocol(value) == version


def test_a_mismatch_says_which_side_to_update() -> None:
    assert protocol_mismatch("it", PROTOCOL_VERSION) == ""
    assert protocol_mismatch("a-1", PROTOCOL_VERSION + 2).endswith("update this process first")
    assert protocol_mismatch("a-1", PROTOCOL_VERSION - 2).endswith("update it first")
    assert f"{PROTOCOL_VERSION - 1} to {PROTOCOL_VERSION + 1}" in protocol_mismatch("a-1", PROTOCOL_VERSION + 2)


def test_who_calls_is_remembered_for_the_task() -> None:
    alice = Identity("w", C, "alice")
    assert caller_uri(Call([alice.uri])) == alice.uri
    assert caller_uri(Call(["dns", alice.uri])) == alice.uri
    assert caller_uri(Call(["nonsense"])) == caller_uri(Call()) == ""
    remember_caller(Call([alice.uri]))
    assert current_caller() == alice.uri
    remember_caller(Call())
    assert current_caller() == ""
    assert identities(tls_auth_context([alice.uri, "nonsense"])) == [alice]


def test_names_of_identities() -> None:
    assert is_tls_name(Identity("w", G).tls_name)
    assert not is_tls_name("example.com")
    two = Identity("two/shop", C, "ann")
    assert (two.plan, two.own_workflow) == ("two", "shop")
    assert (Identity("w", C, "ann").plan, Identity("w", C, "ann").own_workflow) == ("w", "")
    assert str(Identity("w", G)) == "gateway"
    assert str(two) == "client shop/ann"
