"""Identities in certificates, and that every method of ours has its row in the table of who may call it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jellybean_agent import Identity, Policy, Role, StatusError, parse_identity, tls_auth_context
from jellybean_agent.security.identity import allowed_roles
from jellybean_protos.agent.v1 import agent_pb2
from jellybean_protos.enrol.v1 import enrol_pb2
from jellybean_protos.gateway.v1 import gateway_pb2

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)


@given(NAMES, st.sampled_from([role for role in Role if role is not Role.GATEWAY]), NAMES)
def test_an_identity_comes_back_from_its_uri_whatever_its_names(workflow: str, role: Role, name: str) -> None:
    for identity in (Identity(workflow, role, name), Identity(workflow, Role.GATEWAY)):
        assert parse_identity(identity.uri) == identity
        assert identity.uri.isascii()
        assert re.fullmatch(r"[0-9a-f]{32}\.jellybean\.internal", identity.tls_name)


@pytest.mark.parametrize(
    "uri",
    [
        *("", "jellybean://", "jellybean://w", "jellybean://w/agent", "jellybean://w/agent/", "jellybean:///agent/a"),
        *("jellybean://w/root/a", "jellybean://w/gateway/a", "jellybean://w/agent/a/b", "spiffe://w/agent/a"),
    ],
)
def test_what_is_no_identity(uri: str) -> None:
    assert parse_identity(uri) is None


def test_every_method_says_who_may_call_it() -> None:
    files = (agent_pb2.DESCRIPTOR, gateway_pb2.DESCRIPTOR, enrol_pb2.DESCRIPTOR)
    services = [service for file in files for service in file.services_by_name.values()]
    methods = [f"/{service.full_name}/{method.name}" for service in services for method in service.methods]
    assert len(methods) > 8
    unruled = [method for method in methods if not allowed_roles(method)]
    assert unruled == ["/jellybean.enrol.v1.Enrolment/Enrol"]  # for who has a token, at a port of its own
    assert not allowed_roles("/jellybean.agent.v1.Agent/Other")
    assert not allowed_roles("")


class Call:
    """A call over TLS by whom a URI names."""

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        return tls_auth_context([self._uri])

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"


@pytest.mark.parametrize(
    "method", ["/inference.GRPCInferenceService/ModelInfer", "/jellybean.gateway.v1.Gateway/Infer"]
)
def test_a_client_of_one_workflow_only_may_call_the_gateway_alone(method: str) -> None:
    ann = Call(Identity("two/shop", Role.CLIENT, "ann").uri)
    Policy("two", (), checks_workflows=True).check(method, ann)
    with pytest.raises(StatusError, match="may call the gateway only, as a client of workflow shop alone"):
        Policy("two", ()).check(method, ann)  # of an agent, which runs operators of all
    Policy("two", ()).check(method, Call(Identity("two", Role.CLIENT, "bob").uri))
    for role in (Role.ADMIN, Role.AGENT):
        with pytest.raises(StatusError, match="is of workflow two/shop, this is two"):
            Policy("two", ("ann",), checks_workflows=True).check(method, Call(Identity("two/shop", role, "ann").uri))
