"""A machine joins a gateway of this process over TLS: certificate, plan, models, renewal and new plans."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography import x509

from jellybean.serving import Authority, open_authority
from jellybean_agent import (
    AgentError,
    CertificateFolder,
    ConnectionFault,
    Identity,
    JoinToken,
    ListeningPort,
    ModelError,
    OpenPolicy,
    PlanView,
    PlanViewError,
    Policy,
    Role,
    RpcServer,
    StatusError,
    Transport,
    WorkerView,
    file_sha256,
    make_server,
    read_credentials,
)
from jellybean_agent.enrolment.join import Joined, join, keep_renewed, wait_for_new_plan
from jellybean_agent.enrolment.join_token import parse_token
from jellybean_agent.enrolment.retries import describe_call_error, is_refusal, retried
from jellybean_agent.errors import TransientError
from jellybean_agent.system.protocol_version import PROTOCOL_VERSION, PROTOCOL_VERSION_KEY
from jellybean_protos.enrol.v1 import enrol_pb2, enrol_pb2_grpc
from jellybean_solver.model.plan_document import Document
from tests.support.simulated_time import run_in_simulated_time
from tests.support.tiny_models import make_plan, scale

ME = Identity("tiny", Role.AGENT, "edge-1")
SECRET = bytes(range(32))


def plan_of(folder: Path, factor: float = 2.0, worker: str = "edge-1") -> Document:
    """A plan of one operator, and its model in `folder`."""
    sha256 = scale(folder / "models/double.onnx", factor)
    return make_plan(folder, {"double": (["x"], sha256)}, [(1.0, {"double": worker})], sources={"x": "edge"})


class Gateway:
    """Enrols machines, and gives them plans and models; each answer is noted."""

    def __init__(self, root: Path) -> None:
        self.root, self.authority = root, open_authority(root / "ca")
        self.authority.equip(root / "gateway", Identity("tiny", Role.GATEWAY), hosts=("127.0.0.1",))
        self.transport = Transport("tiny", CertificateFolder(root / "gateway"))
        self.life_s = 7 * 86400.0
        self.models: dict[str, bytes] = {}
        self.plans: list[Any] = []  # answers to the questions for the plan; the last one repeats
        self.asked: list[enrol_pb2.PlanRequest] = []
        self.versions: set[str] = set()  # of the protocol, by those who ask for the plan
        self.renewals = self.downloads = 0
        self._servers: list[RpcServer] = []

    async def start(self) -> None:
        for policy, clients in ((OpenPolicy(), False), (Policy("tiny", ("edge-1",)), True)):
            server = make_server(policy)
            enrol_pb2_grpc.add_EnrolmentServicer_to_server(self, server)  # type: ignore[no-untyped-call]
            port = self.transport.bind(
                server, "127.0.0.1:0", ListeningPort.WORKERS if clients else ListeningPort.ENROLMENT
            )
            await server.start()
            self._servers.append(server)
            if clients:
                self.address = f"127.0.0.1:{port}"
            else:
                self.enrols_at = f"127.0.0.1:{port}"

    async def stop(self) -> None:
        for server in self._servers:
            await server.stop(0.0)

    @property
    def token(self) -> str:
        return str(JoinToken(SECRET, ME, self.authority.bundle))

    def offer(self, document: Document, *, later: bool = False) -> enrol_pb2.PlanResponse:
        """An answer with a plan, whose models are there from now on."""
        for path in (self.root / "models").glob("*.onnx"):
            self.models[file_sha256(path)] = path.read_bytes()
        peers = json.dumps({"": self.address, "edge-1": "127.0.0.1:7001"}).encode()
        return enrol_pb2.PlanResponse(plan=json.dumps(document).encode(), peers=peers, later=later)

    async def Enrol(self, request: enrol_pb2.EnrolRequest, context: Any) -> enrol_pb2.Certificate:
        if request.secret != SECRET:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "the token was used already")
        return self._certificate(request.request)

    async def Renew(self, request: enrol_pb2.RenewRequest, _context: Any) -> enrol_pb2.Certificate:
        self.renewals += 1
        return self._certificate(request.request)

    def _certificate(self, request: bytes) -> enrol_pb2.Certificate:
        key = x509.load_der_x509_csr(request).public_key()
        chain = self.authority.sign(ME, key, life_s=self.life_s)
        return enrol_pb2.Certificate(chain=chain, ca=self.authority.bundle, gateway=self.address)

    async def Plan(self, request: enrol_pb2.PlanRequest, context: Any) -> enrol_pb2.PlanResponse:
        self.asked.append(request)
        self.versions.add(str(dict(context.invocation_metadata()).get(PROTOCOL_VERSION_KEY)))
        answer = self.plans[0] if len(self.plans) == 1 else self.plans.pop(0)
        if isinstance(answer, StatusError):
            await context.abort(answer.status, str(answer))
        found: enrol_pb2.PlanResponse = answer
        return found

    async def Model(self, request: enrol_pb2.ModelRequest, context: Any) -> AsyncIterator[enrol_pb2.ModelPart]:
        self.downloads += 1
        content = self.models.get(request.sha256)
        if content is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such model")
            return
        yield enrol_pb2.ModelPart(data=content[request.offset :], size=len(content))


def with_gateway(root: Path, test: Callable[[Gateway], Awaitable[None]]) -> None:
    async def run() -> None:
        gateway = Gateway(root)
        await gateway.start()
        try:
            await test(gateway)
        finally:
            await gateway.stop()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_machine_joins_with_a_token_and_later_without(tmp_path: Path) -> None:
    async def test(gateway: Gateway) -> None:
        gateway.plans = [gateway.offer(plan_of(tmp_path))]
        folder = tmp_path / "state"
        found = await join(gateway.enrols_at, gateway.token, folder)
        assert (found.worker.name, found.view.name, found.folder) == ("edge-1", "tiny", folder)
        assert read_credentials(found.tls).identity == ME
        assert (folder / "gateway").read_text(encoding="utf-8") == gateway.address
        assert json.loads((folder / "peers.json").read_bytes())["edge-1"] == "127.0.0.1:7001"
        assert json.loads((folder / "plan.json").read_bytes())["hash"] == found.view.hash
        assert (found.models / "models/double.onnx").read_bytes() in gateway.models.values()
        assert not (folder / "enrolling.key").exists()
        assert folder.stat().st_mode & 0o077 == 0
        certificate = found.tls / "tls.crt"
        before = certificate.read_bytes()
        again = await join("nowhere:1", gateway.token, folder)
        assert again.view.hash == found.view.hash
        assert (certificate.read_bytes(), gateway.downloads) == (before, 1), "it is enrolled, and has the model"
        await join("nowhere:1", None, folder)

    with_gateway(tmp_path, test)


def test_a_machine_that_cannot_join_says_why(tmp_path: Path) -> None:
    async def test(gateway: Gateway) -> None:
        with pytest.raises(PlanViewError, match="no certificate, or one that has expired: join with a new token"):
            await join(gateway.enrols_at, None, tmp_path / "a")
        used = str(JoinToken(bytes(32), ME, gateway.authority.bundle))
        with pytest.raises(PlanViewError, match=r"enrolling at .*: the token was used already \(PERMISSION_DENIED\)"):
            await join(gateway.enrols_at, used, tmp_path / "b")
        assert (tmp_path / "b/enrolling.key").exists(), "the token may be bound to this key"
        foreign = str(JoinToken(SECRET, ME, open_authority(tmp_path / "other").bundle))
        with pytest.raises(PlanViewError, match="this is another gateway, or its authority is new"):
            await join(gateway.enrols_at, foreign, tmp_path / "c")

    with_gateway(tmp_path, test)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda plan: b"not json", "the gateway's plan is not JSON"),
        (lambda plan: json.dumps({**json.loads(plan), "name": "other"}).encode(), "plan"),
    ],
)
def test_a_plan_that_cannot_be_read_ends_a_join(tmp_path: Path, change: Callable[[bytes], bytes], reason: str) -> None:
    async def test(gateway: Gateway) -> None:
        answer = gateway.offer(plan_of(tmp_path))
        answer.plan = change(answer.plan)
        gateway.plans = [answer]
        with pytest.raises(PlanViewError, match=reason):
            await join(gateway.enrols_at, gateway.token, tmp_path / "state")
        assert not (tmp_path / "state/plan.json").exists()

    with_gateway(tmp_path, test)


def test_a_plan_that_does_not_use_the_machine_ends_a_join(tmp_path: Path) -> None:
    async def test(gateway: Gateway) -> None:
        gateway.plans = [gateway.offer(plan_of(tmp_path, worker="edge-9"))]
        with pytest.raises(PlanViewError, match="the plan gives worker 'edge-1' nothing to do"):
            await join(gateway.enrols_at, gateway.token, tmp_path / "state")

    with_gateway(tmp_path, test)


def test_a_model_that_the_gateway_does_not_have_ends_a_join(tmp_path: Path) -> None:
    async def test(gateway: Gateway) -> None:
        gateway.plans = [gateway.offer(plan_of(tmp_path))]
        gateway.models.clear()
        with pytest.raises(PlanViewError, match=r"downloading double.onnx: no such model \(NOT_FOUND\)"):
            await join(gateway.enrols_at, gateway.token, tmp_path / "state")

    with_gateway(tmp_path, test)


# -- renewal -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("life_s", "is_renewed"), [(7 * 86400.0, False), (6.0, True)])
def test_a_certificate_is_renewed_when_a_third_of_its_life_is_over(
    tmp_path: Path, life_s: float, is_renewed: bool
) -> None:
    async def test(gateway: Gateway) -> None:
        gateway.plans, gateway.life_s = [gateway.offer(plan_of(tmp_path))], life_s
        found = await join(gateway.enrols_at, gateway.token, tmp_path / "state")
        before = read_credentials(found.tls).chain
        gateway.life_s = 86400.0
        renewing = asyncio.create_task(keep_renewed(found.folder))
        await asyncio.sleep(0.1)
        if is_renewed:
            while read_credentials(found.tls).chain == before:
                await asyncio.sleep(0.05)
        assert (gateway.renewals > 0) == is_renewed
        assert (read_credentials(found.tls).chain != before) == is_renewed
        assert not renewing.done()
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)

    with_gateway(tmp_path, test)


# -- new plans ---------------------------------------------------------------------------------------------------------


class Trial:
    """Tries models: notes them, and fails with `fault`."""

    def __init__(self) -> None:
        self.tried: list[tuple[str, Mapping[str, bytes]]] = []
        self.fault: AgentError | None = None

    async def __call__(self, view: PlanView, worker: WorkerView, files: Mapping[str, Path]) -> None:
        self.tried.append((view.hash, {name: path.read_bytes() for name, path in files.items()}))
        if self.fault is not None:
            raise self.fault


async def waited(
    gateway: Gateway, root: Path, answers: list[Any], trial: Trial | None = None, problem: str = ""
) -> tuple[Joined, asyncio.Task[None]]:
    """A machine that has joined with a first plan, and waits for another; the answers that it gets."""
    first = gateway.offer(plan_of(root / "first", 2.0))
    for path in (root / "first/models").glob("*.onnx"):
        gateway.models[file_sha256(path)] = path.read_bytes()
    gateway.plans = [first]
    found = await join(gateway.enrols_at, gateway.token, root / "state")
    gateway.asked.clear()
    gateway.plans = answers
    task = asyncio.create_task(wait_for_new_plan(found, 0.02, trial or Trial(), problem=problem))
    return found, task


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_a_new_plan_is_downloaded_and_waited_for(tmp_path: Path) -> None:
    async def test(gateway: Gateway) -> None:
        new = plan_of(tmp_path, 3.0)
        trial = Trial()
        answers: list[Any] = [
            enrol_pb2.PlanResponse(),
            gateway.offer(new, later=True),
            enrol_pb2.PlanResponse(),
            gateway.offer(new),
        ]
        found, task = await waited(gateway, tmp_path, answers, trial)
        await asyncio.wait_for(task, 20)
        ((tried, files),) = trial.tried
        assert tried == new["hash"]
        assert files == {"models/double.onnx": (tmp_path / "models/double.onnx").read_bytes()}
        assert [request.have for request in gateway.asked] == [found.view.hash] * 4
        assert [request.fetched for request in gateway.asked] == ["", "", new["hash"], new["hash"]]
        assert [request.problem for request in gateway.asked] == [""] * 4
        assert gateway.versions == {str(PROTOCOL_VERSION)}
        assert (found.models / "models/double.onnx").read_bytes() != files["models/double.onnx"], "still served"
        assert len(list(found.models.rglob("*.part"))) == 1

    with_gateway(tmp_path, test)


def test_a_plan_without_this_machine_is_noted_and_the_machine_waits(tmp_path: Path) -> None:
    async def test(gateway: Gateway) -> None:
        other = plan_of(tmp_path, 3.0, worker="edge-9")
        _, task = await waited(gateway, tmp_path, [gateway.offer(other), enrol_pb2.PlanResponse()])
        await until(lambda: len(gateway.asked) >= 3)
        assert gateway.asked[1].have == gateway.asked[2].have == other["hash"]
        assert not task.done()
        await ended(task)

    with_gateway(tmp_path, test)


def test_what_prevents_the_switch_is_told_to_the_gateway(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(gateway: Gateway) -> None:
        new, trial = plan_of(tmp_path, 3.0), Trial()
        trial.fault = ModelError("double/only: it does not run here")
        answers: list[Any] = [gateway.offer(new, later=True), enrol_pb2.PlanResponse()]
        _, task = await waited(gateway, tmp_path, answers, trial)
        await until(lambda: len(gateway.asked) >= 3)
        assert (gateway.asked[1].problem, gateway.asked[1].problem_plan) == (str(trial.fault), new["hash"])
        assert gateway.asked[1].fetched == ""
        assert gateway.asked[2].problem == "", "it is told once"
        await ended(task)

    with_gateway(tmp_path, test)
    assert "another plan of the gateway cannot be served here: double/only: it does not run here" in caplog.text


def test_a_plan_of_another_version_is_a_problem_too(tmp_path: Path) -> None:
    async def test(gateway: Gateway) -> None:
        strange = enrol_pb2.PlanResponse(plan=b'{"hash": "abc", "version": 99}')
        _, task = await waited(gateway, tmp_path, [strange, enrol_pb2.PlanResponse()])
        await until(lambda: len(gateway.asked) >= 2)
        assert gateway.asked[1].problem
        assert gateway.asked[1].problem_plan == "abc"
        await ended(task)

    with_gateway(tmp_path, test)


def test_a_machine_that_cannot_serve_its_plan_says_so_with_every_question(tmp_path: Path) -> None:
    async def test(gateway: Gateway) -> None:
        found, task = await waited(gateway, tmp_path, [enrol_pb2.PlanResponse()], problem="it does not start")
        await until(lambda: len(gateway.asked) >= 3)
        told = [(request.problem, request.problem_plan) for request in gateway.asked[:3]]
        assert told == [("it does not start", found.view.hash)] * 3
        await ended(task)

    with_gateway(tmp_path, test)


def test_a_refusal_is_logged_once_and_asked_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(gateway: Gateway) -> None:
        refusal = StatusError(grpc.StatusCode.FAILED_PRECONDITION, "the plan is being replaced")
        new = plan_of(tmp_path, 3.0)
        broken = enrol_pb2.PlanResponse(plan=b"no json")
        _, task = await waited(gateway, tmp_path, [refusal, refusal, broken, gateway.offer(new)])
        await asyncio.wait_for(task, 20)
        assert len(gateway.asked) == 4

    with_gateway(tmp_path, test)
    lines = [line for line in caplog.messages if line.startswith("the gateway gives no other plan")]
    assert lines == [
        "the gateway gives no other plan: the plan is being replaced (FAILED_PRECONDITION); asked again every 0.02 s"
    ]


# -- retries -----------------------------------------------------------------------------------------------------------


def failure(code: grpc.StatusCode, details: str = "no") -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


class Attempts:
    """Fails in these ways, one after another, then succeeds. `at_s`: when each attempt was made."""

    def __init__(self, *faults: Exception) -> None:
        self.faults, self.at_s = list(faults), list[float]()

    async def __call__(self) -> str:
        self.at_s.append(asyncio.get_running_loop().time())
        if self.faults:
            raise self.faults.pop(0)
        return "done"


def test_what_fails_for_a_while_is_tried_again_after_growing_pauses() -> None:
    async def run() -> None:
        unavailable = failure(grpc.StatusCode.UNAVAILABLE)
        late = failure(grpc.StatusCode.DEADLINE_EXCEEDED, "")
        attempts = Attempts(unavailable, late, TransientError("cut"), *[unavailable] * 5)
        assert await retried("calling", attempts) == "done"
        pauses = [later - earlier for earlier, later in zip(attempts.at_s, attempts.at_s[1:], strict=False)]
        assert pauses == pytest.approx([0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 30.0, 30.0], abs=0.01)

    run_in_simulated_time(run)


def test_a_refusal_is_final() -> None:
    async def run() -> None:
        with pytest.raises(PlanViewError, match=r"^calling: no \(NOT_FOUND\)$"):
            await retried("calling", Attempts(failure(grpc.StatusCode.NOT_FOUND)))
        with pytest.raises(ModelError):
            await retried("calling", Attempts(ModelError("altered")))

    run_in_simulated_time(run)


@pytest.mark.parametrize(
    ("of_certificate", "needs", "is_final"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_a_fault_of_certificates_is_final_where_one_is_needed(
    caplog: pytest.LogCaptureFixture, of_certificate: bool, needs: bool, is_final: bool
) -> None:
    async def run() -> None:
        attempts = Attempts(failure(grpc.StatusCode.UNAVAILABLE))
        trying = retried(
            "calling", attempts, lambda: ConnectionFault("it is expired", of_certificate), needs_certificate=needs
        )
        if is_final:
            with pytest.raises(PlanViewError, match=r"^calling: it is expired$"):
                await trying
        else:
            assert await trying == "done"
            assert caplog.messages == ["calling: it is expired; tried again in 0.5 s"]

    run_in_simulated_time(run)


def test_errors_of_calls_in_words() -> None:
    assert describe_call_error(ModelError("altered")) == "altered"
    assert describe_call_error(failure(grpc.StatusCode.UNAVAILABLE, "gone")) == "gone"
    assert describe_call_error(failure(grpc.StatusCode.UNAVAILABLE, "")) == "UNAVAILABLE"
    assert describe_call_error(failure(grpc.StatusCode.INTERNAL, "")) == "INTERNAL (INTERNAL)"
    assert not is_refusal(ModelError("x"))
    assert not is_refusal(failure(grpc.StatusCode.DEADLINE_EXCEEDED))
    assert is_refusal(failure(grpc.StatusCode.INTERNAL))


def test_a_token_comes_back_from_its_text(tmp_path: Path) -> None:
    authority: Authority = open_authority(tmp_path / "ca")
    token = JoinToken(SECRET, ME, authority.bundle)
    assert parse_token(f"  {token}\n") == token
    for text, reason in (
        ("", "the token is empty"),
        ("  ", "the token is empty"),
        ("jbt2.a.b.c", "not a token of this version"),
        ("jbt1.a.b", "not a token of this version"),
        (str(token)[:-30], "the token is damaged"),
        (str(JoinToken(SECRET[:-1], ME, authority.bundle)), "the token is damaged"),
        (str(JoinToken(SECRET, Identity("tiny", Role.CLIENT, "a"), authority.bundle)), "the token is damaged"),
        ("jbt1.!.!.!", "the token is damaged"),
    ):
        with pytest.raises(PlanViewError, match=reason):
            parse_token(text)
