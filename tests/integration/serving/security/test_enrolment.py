"""Enrolment over real TLS in one process: what a token is good for, and what leaves it as it is."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from jellybean.serving import make_token, open_authority
from jellybean.serving.enrolment import enrolment as enrolment_module
from jellybean.serving.enrolment.enrolment import (
    MAX_DOWNLOADS,
    Enrolment,
    EnrolmentFiles,
    add_enrolment,
    serve_enrolment,
)
from jellybean.serving.enrolment.rollout import PlanOffer, PlanRollout
from jellybean.serving.gateway.gateway import Gateway
from jellybean.serving.gateway.plans.current_plan import WorkerNetwork
from jellybean.serving.gateway.service import GatewayService
from jellybean_agent import (
    CertificateFolder,
    EmulatedLinks,
    Identity,
    JoinToken,
    Policy,
    Role,
    StatusError,
    Transport,
    file_sha256,
    plan_view,
    protocol_metadata,
    read_credentials,
)
from jellybean_agent.enrolment import join, model_download
from jellybean_agent.transport.channels import CHANNEL_OPTIONS
from jellybean_protos.enrol.v1 import enrol_pb2, enrol_pb2_grpc
from jellybean_protos.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from tests.one_gateway import gateways_of
from tests.support.tiny_models import chain
from tests.support.waiting import wait_until_async

GATEWAY = Identity("tiny", Role.GATEWAY)
EDGE = Identity("tiny", Role.AGENT, "edge-1")
RSA = rsa.generate_private_key(65537, 2048)
Use = Callable[[str], Awaitable[None]]


def serving(root: Path, use: Use, ca: str = "ca") -> None:
    open_authority(root / "ca").equip(root / "gateway", GATEWAY, hosts=("127.0.0.1",))

    async def served() -> None:
        offer = PlanOffer(plan_view(chain(root)), b"", {"": "127.0.0.1:1"})
        enrolment = Enrolment(PlanRollout(offer), EnrolmentFiles(root / ca, root / "tokens", root))
        transport = Transport("tiny", CertificateFolder(root / "gateway"))
        address = f"unix:{root / 's'}"
        server = await serve_enrolment(enrolment, transport, address)
        try:
            await use(address)
        finally:
            await server.stop(None)

    asyncio.run(served())


async def enrol(address: str, token: JoinToken, request: bytes) -> Any:
    options = [*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", GATEWAY.tls_name)]
    credentials = grpc.ssl_channel_credentials(token.ca)
    async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
        stub: Any = enrol_pb2_grpc.EnrolmentStub(channel)  # type: ignore[no-untyped-call]
        return await stub.Enrol(enrol_pb2.EnrolRequest(secret=token.secret, request=request), timeout=10)


async def refused(address: str, token: JoinToken, request: bytes) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await enrol(address, token, request)
    return f"{caught.value.code().name}: {caught.value.details()}"


def token(root: Path, identity: Identity = EDGE) -> JoinToken:
    return make_token(root / "tokens", open_authority(root / "ca"), identity, life_s=60.0)


async def ask_until(condition: Callable[[], object], waiting: Coroutine[Any, Any, None]) -> None:
    """Let a box wait for another plan, and ask for it, until the condition holds."""
    box = asyncio.create_task(waiting)
    await wait_until_async(lambda: condition() or box.done())
    assert not box.done() or box.result() is not None, "it waits no more"
    box.cancel()
    await asyncio.gather(box, return_exceptions=True)


def test_a_token_outlives_a_lost_answer_but_is_one_keys(tmp_path: Path) -> None:
    mine, request = token(tmp_path), join._key_and_request(EDGE)[1]

    async def use(address: str) -> None:
        assert (await enrol(address, mine, request)).chain
        assert (await enrol(address, mine, request)).chain  # the first answer was lost
        assert "PERMISSION_DENIED" in await refused(address, mine, join._key_and_request(EDGE)[1])

    serving(tmp_path, use)


def test_a_box_that_stops_before_it_kept_its_certificate_joins_with_the_same_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, box = token(tmp_path), tmp_path / "box"
    box.mkdir()

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    async def use(address: str) -> None:
        with monkeypatch.context() as patch, pytest.raises(OSError, match="no space"):
            patch.setattr(join, "write_credentials", full)
            await join._enrol(address, mine, box)
        await join._enrol(address, mine, box)

    serving(tmp_path, use)
    assert read_credentials(box / "tls").identity == EDGE
    assert {path.name for path in box.iterdir()} == {"gateway", "tls"}


def test_a_wrong_worker_is_told_before_the_token_is_taken(tmp_path: Path) -> None:
    moon, request = token(tmp_path, Identity("tiny", Role.AGENT, "moon-1")), join._key_and_request(EDGE)[1]

    async def use(address: str) -> None:
        assert "no worker of the plan" in await refused(address, moon, request)
        assert "no worker of the plan" in await refused(address, moon, join._key_and_request(EDGE)[1])

    serving(tmp_path, use)
    assert len(list((tmp_path / "tokens").iterdir())) == 1  # nobody's


def dear_request() -> bytes:
    """A certificate request by a key of another kind, whose signature takes far longer to check."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "agent edge-1")])
    signed = x509.CertificateSigningRequestBuilder().subject_name(name).sign(RSA, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.DER)


@pytest.mark.parametrize("request_of", [dear_request, lambda: b"\0" * 16000, lambda: b""])
def test_who_has_no_token_is_refused_before_anything_is_read(tmp_path: Path, request_of: Callable[[], bytes]) -> None:
    mine, request = token(tmp_path), request_of()

    async def use(address: str) -> None:
        for secret in (b"", b"guessed", bytes(32), mine.secret + b"x", mine.secret[:-1]):
            assert "PERMISSION_DENIED: the token is unknown" in await refused(
                address, replace(mine, secret=secret), request
            )
        assert "INVALID_ARGUMENT: " in await refused(address, mine, request)
        assert (await enrol(address, mine, join._key_and_request(EDGE)[1])).chain  # the token is good as before

    serving(tmp_path, use)


def test_the_gateway_makes_no_authority_and_keeps_the_token(tmp_path: Path) -> None:
    mine, request = token(tmp_path), join._key_and_request(EDGE)[1]

    async def use(address: str) -> None:
        assert "no certificate authority found" in await refused(address, mine, request)

    serving(tmp_path, use, ca="mistyped")
    assert not (tmp_path / "mistyped").exists()
    assert len(list((tmp_path / "tokens").iterdir())) == 1


def test_tokens_whose_time_is_over_are_removed(tmp_path: Path) -> None:
    make_token(tmp_path / "tokens", open_authority(tmp_path / "ca"), EDGE, life_s=-1.0)
    assert len(list((tmp_path / "tokens").iterdir())) == 1
    token(tmp_path)
    assert len(list((tmp_path / "tokens").iterdir())) == 1


def test_boxes_get_the_plan_that_took_over_and_no_more_downloads_than_fit(tmp_path: Path) -> None:
    document = chain(tmp_path)
    now = plan_view(document)
    offer = PlanOffer(now, json.dumps(document).encode(), {"": "127.0.0.1:1"})
    certs, transport = open_authority(tmp_path / "ca"), dict[str, Transport]()
    for name, identity in (("gateway", GATEWAY), ("edge", EDGE), ("new", Identity("tiny", Role.AGENT, "new-1"))):
        certs.equip(tmp_path / name, identity)
        transport[name] = Transport("tiny", CertificateFolder(tmp_path / name))
    enrolment = Enrolment(PlanRollout(offer), EnrolmentFiles(*[tmp_path] * 3))
    (model,) = [now.operators[name].model_sha256 for name in now.workers["edge-1"].operators]

    async def ask() -> None:
        server = transport["gateway"].server(Policy("tiny", set(now.workers) | {"new-1"}))
        port = transport["gateway"].bind(server, "127.0.0.1:0")
        add_enrolment(server, enrolment)
        await server.start()
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(server.stop, None)
            stubs: dict[str, Any] = {}
            for name in ("edge", "new"):
                channel = await stack.enter_async_context(transport[name].channel(f"127.0.0.1:{port}"))
                stubs[name] = enrol_pb2_grpc.EnrolmentStub(channel)  # type: ignore[no-untyped-call]
            given = await stubs["edge"].Plan(enrol_pb2.PlanRequest(), metadata=protocol_metadata())
            assert (given.plan, json.loads(given.peers)) == (offer.document, {"": "127.0.0.1:1"})
            with pytest.raises(grpc.aio.AioRpcError, match=r"the plan gives .* no model"):  # not in the plan by now
                await model_download._fetch(stubs["new"], model, tmp_path / "part")
            others = enrolment.downloads.share_of("another box")
            others.add(MAX_DOWNLOADS)
            with pytest.raises(grpc.aio.AioRpcError, match=f"{MAX_DOWNLOADS} downloads are under way") as full:
                await model_download._fetch(stubs["edge"], model, tmp_path / "part")
            assert full.value.code() is grpc.StatusCode.UNAVAILABLE  # boxes ask again
            others.give(MAX_DOWNLOADS)
            while others.take():  # a box alone leaves some to the others
                pass
            await model_download._fetch(stubs["edge"], model, tmp_path / "part")
            assert file_sha256(tmp_path / "part") == model
            assert enrolment.downloads.held == others.held < MAX_DOWNLOADS

    asyncio.run(ask())


def test_a_model_file_that_was_overwritten_is_refused_with_both_hashes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    document = chain(tmp_path)
    view = plan_view(document)
    told: list[tuple[str, str]] = []
    rollout = PlanRollout(PlanOffer(view, b"", {"": "127.0.0.1:1"}))
    enrolment = Enrolment(rollout, EnrolmentFiles(*[tmp_path] * 3), on_blocked=lambda *said: told.append(said))
    (name,) = view.workers["edge-1"].operators
    ((path, sha256),) = view.operators[name].model_files
    model = tmp_path / path
    content = model.read_bytes()

    async def ask() -> str:
        try:
            assert await enrolment._model(EDGE, sha256) == model
        except StatusError as error:
            assert error.status is grpc.StatusCode.FAILED_PRECONDITION
            return str(error)
        return ""

    async def overwrite() -> None:
        assert await ask() == ""
        for change in (b"new", b"newer"):
            model.write_bytes(change)
            other = file_sha256(model)
            problem = await ask()
            assert (
                f"{path} at the gateway has sha256 {other[:12]}..., the plan says {sha256[:12]}...: it was" in problem
            )
            assert await ask() == problem
            assert told[-1] == ("edge-1", problem)
            assert caplog.messages == [f"boxes cannot download: {problem}"]
            caplog.clear()
        model.unlink()
        assert "there is no such file" in await ask()
        model.write_bytes(content)
        assert await ask() == ""
        assert told[-1] == ("edge-1", "")

    asyncio.run(overwrite())


def test_the_gateway_notes_why_a_box_refuses_the_plan_that_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said only that it could not connect to the box, which waited for another plan."""
    view = plan_view(chain(tmp_path))
    told: list[tuple[str, str]] = []
    rollout = PlanRollout(PlanOffer(view, b"", {"": "127.0.0.1:1"}))
    enrolment = Enrolment(rollout, EnrolmentFiles(*[tmp_path] * 3), on_blocked=lambda *said: told.append(said))
    monkeypatch.setattr(enrolment_module, "caller_identity", lambda _context: EDGE)
    reason = "classify: python prep:centre is not allowed here\n\x1b[2J"

    async def ask() -> None:
        for plan_hash in ("of another plan", view.hash):
            request = enrol_pb2.PlanRequest(have=view.hash, problem=reason, problem_plan=plan_hash)
            await enrolment.Plan(request, None)

    asyncio.run(ask())
    assert told == [("edge-1", "it refuses the plan: classify: python prep:centre is not allowed here\\n\\x1b[2J")]


def test_a_box_that_refuses_its_plan_says_why_with_every_question(tmp_path: Path) -> None:
    """A gateway that was started again did not know it."""
    document = chain(tmp_path)
    view = plan_view(document)
    certs, box = open_authority(tmp_path / "ca"), tmp_path / "box"
    certs.equip(tmp_path / "gateway", GATEWAY)
    certs.equip(box / "tls", EDGE)
    transport = Transport("tiny", CertificateFolder(tmp_path / "gateway"))
    rollout = PlanRollout(PlanOffer(view, json.dumps(document).encode(), {"": "127.0.0.1:1"}))
    found = join.Joined(box, view, view.workers["edge-1"])
    told: list[tuple[str, str]] = []
    enrolment = Enrolment(rollout, EnrolmentFiles(*[tmp_path] * 3), on_blocked=lambda *said: told.append(said))

    async def tried(*_: object) -> None:
        raise AssertionError("there is nothing to try")

    async def wait() -> None:
        server = transport.server(Policy("tiny", set(view.workers)))
        port = transport.bind(server, "127.0.0.1:0")
        (box / "gateway").write_text(f"127.0.0.1:{port}", encoding="utf-8")
        add_enrolment(server, enrolment)
        await server.start()
        waiting = join.wait_for_new_plan(found, 0.1, tried, problem="the function is not allowed here")
        await ask_until(lambda: len(told) > 1, waiting)
        await server.stop(None)

    asyncio.run(wait())
    assert set(told) == {("edge-1", "it refuses the plan: the function is not allowed here")}


@pytest.mark.parametrize("workflow", ["tiny", "other"])
def test_a_box_without_work_waits_and_one_that_is_refused_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, workflow: str
) -> None:
    """A gateway that has just started knows the workers of its own plan only."""
    document = chain(tmp_path)
    view = plan_view(document)
    certs, box, moon = open_authority(tmp_path / "ca"), tmp_path / "box", Identity("tiny", Role.AGENT, "moon-1")
    certs.equip(tmp_path / "gateway", GATEWAY)
    certs.equip(box / "tls", moon)
    transport = Transport("tiny", CertificateFolder(tmp_path / "gateway"))
    rollout = PlanRollout(PlanOffer(view, json.dumps(document).encode(), {"": "127.0.0.1:1"}))
    found = join.Joined(box, view, replace(view.workers["edge-1"], name="moon-1"))
    asked: list[Any] = []

    class Counting(Enrolment):
        """Notes each question that it answers."""

        async def Plan(self, request: Any, context: Any) -> Any:
            asked.append(request)
            return await Enrolment.Plan(self, request, context)

    def refusals() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "jellybean.channels"]

    async def tried(*_: object) -> None:
        raise AssertionError("there is nothing to try")

    async def wait() -> None:
        server = transport.server(Policy(workflow, set(view.workers)))
        port = transport.bind(server, "127.0.0.1:0")
        (box / "gateway").write_text(f"127.0.0.1:{port}", encoding="utf-8")
        add_enrolment(server, Counting(rollout, EnrolmentFiles(*[tmp_path] * 3)))
        await server.start()
        waiting = join.wait_for_new_plan(found, 0.1, tried)
        await ask_until(lambda: len(asked) > 1 or len(refusals()) > 1, waiting)
        await server.stop(None)

    asyncio.run(wait())
    told = [record.getMessage() for record in caplog.records if record.name == "jellybean.agent"]
    if workflow == "tiny":
        assert (refusals(), told) == ([], [])
    else:
        assert not asked
        assert told == [
            "the gateway gives no other plan: agent moon-1 is of workflow tiny, this is other (PERMISSION_DENIED); "
            "asked again every 0.1 s"
        ]


@pytest.mark.parametrize(
    ("address", "emulate", "made"), [("tcp", True, False), ("unix", False, False), ("unix", True, True)]
)
def test_only_the_own_socket_names_a_file_of_links(tmp_path: Path, address: str, emulate: bool, made: bool) -> None:
    document = chain(tmp_path)
    view = plan_view(document)
    peers = {worker: f"127.0.0.1:{number}" for number, worker in enumerate(view.workers, 1)}
    links, replaced = tmp_path / "made", list[gateway_pb2.ReplaceRequest]()
    request = gateway_pb2.ReplaceRequest(
        plan=json.dumps(document).encode(), peers=peers, links=str(links), timeout_s=0.05
    )

    async def replaced_plan() -> None:
        emulated, transport = EmulatedLinks((), None).open(), Transport(view.name, insecure=True)
        network = WorkerNetwork(transport, set(), emulate)
        gateway = Gateway(view, peers, emulated, network)
        rollout = PlanRollout(PlanOffer(view, b"", {**peers, "": "127.0.0.1:9"}))
        service = GatewayService(gateways_of(gateway, network), transport, rollout, replaced.append)
        server = grpc.aio.server()
        gateway_pb2_grpc.add_GatewayServicer_to_server(service, server)  # type: ignore[no-untyped-call]
        at = f"unix:{tmp_path / 's'}" if address == "unix" else "127.0.0.1:0"
        port = server.add_insecure_port(at)
        await server.start()
        async with grpc.aio.insecure_channel(at if address == "unix" else f"127.0.0.1:{port}") as channel:
            stub: Any = gateway_pb2_grpc.GatewayStub(channel)  # type: ignore[no-untyped-call]
            with pytest.raises(grpc.aio.AioRpcError, match="not ready within"):
                await stub.Replace(request)
        assert (replaced, rollout.served.document) == ([], b"")
        await gateway.close()
        await server.stop(None)
        emulated.close()

    asyncio.run(replaced_plan())
    assert links.exists() is made
