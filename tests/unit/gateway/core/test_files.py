"""Files beside a gateway: the plan that replaced another, the spool, and what its options say of files."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from jellybean.errors import InputError
from jellybean.serving import CertificateError, Endpoint, admin_certificate, open_authority, remote_endpoint
from jellybean.serving.endpoint import has_authority, is_on_this_machine
from jellybean.serving.errors import LaunchError
from jellybean.serving.gateway.plans.replaced_plan import ReplacedPlan, forget_replaced_plan
from jellybean.serving.gateway_arguments import gateway_parser
from jellybean.serving.gateway_main import open_spool
from jellybean.serving.outcomes import Outcome
from jellybean.serving.replacement import replace_at
from jellybean.serving.spool.delivery import DeliverySettings, Key, SpoolDelivery, Tried
from jellybean.serving.spool.spool import Answer, Spool
from jellybean_agent import Identity, PlanViewError, Role, StatusError, workflow_views
from jellybean_protos.agent.v1 import agent_pb2
from jellybean_protos.gateway.v1 import gateway_pb2
from jellybean_solver import Deliver
from tests.support.gateway_in_process import running_gateway
from tests.support.scripted_workers import ScriptedWorker, scale_view, socket_folder, tensor, until
from tests.support.tiny_models import make_plan, scale

Document = Mapping[str, Any]


def plan_of(root: Path, worker: str = "edge-1", factor: float = 2.0) -> Document:
    operators = {"double": (["x"], scale(root / "models/double.onnx", factor))}
    return make_plan(root, operators, [(1.0, {"double": worker})], sources={"x": "edge"})


def run(test: Awaitable[None]) -> None:
    asyncio.run(test)  # type: ignore[arg-type]


# -- the plan that replaced another -----------------------------------------------------------------------------------


class Start:
    """A gateway's start with a plan and addresses."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "kept"
        self.plan, self.peers = root / "plan.json", root / "peers.json"
        self.before, self.after = plan_of(root), plan_of(root, "edge-7", 3.0)
        self.plan.write_text(json.dumps(self.before), encoding="utf-8")
        self.peers.write_text(json.dumps({"": "unix:/own", "edge-1": "unix:/1"}), encoding="utf-8")

    def read(self) -> ReplacedPlan:
        return ReplacedPlan.read(self.folder, self.plan, self.peers)

    def served(self) -> str:
        return str(json.loads(self.read().plan.read_text(encoding="utf-8"))["hash"])

    def replace(self, document: Document) -> None:
        peers = {"edge-7": "unix:/7", "": "unix:/another"}
        self.read().keep(gateway_pb2.ReplaceRequest(plan=json.dumps(document).encode(), peers=peers))


def test_the_next_start_serves_the_replacement(tmp_path: Path) -> None:
    start = Start(tmp_path)
    assert start.read().plan == start.plan
    start.replace(start.after)
    found = start.read()
    assert found.plan != start.plan
    assert start.served() == start.after["hash"]
    assert json.loads(found.peers.read_text(encoding="utf-8")) == {"": "unix:/own", "edge-7": "unix:/7"}
    assert start.folder.stat().st_mode & 0o077 == 0
    third = plan_of(tmp_path, "edge-8", 4.0)
    start.replace(third)
    assert start.served() == third["hash"]
    start.plan.write_text(
        json.dumps(start.after), encoding="utf-8"
    )  # the plan that was replaced meanwhile is as good as the first
    assert start.served() == third["hash"]
    forget_replaced_plan(start.folder)
    assert start.served() == start.after["hash"]
    forget_replaced_plan(start.folder)


def test_another_plan_on_the_command_line_takes_precedence(tmp_path: Path) -> None:
    start = Start(tmp_path)
    start.replace(start.after)
    another = plan_of(tmp_path, "edge-9", 5.0)
    start.plan.write_text(json.dumps(another), encoding="utf-8")
    assert start.served() == another["hash"]


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"instead_of": 5}'])
def test_a_replacement_that_cannot_be_read_is_left(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    start = Start(tmp_path)
    start.replace(start.after)
    (start.folder / "replaced.json").write_text(content, encoding="utf-8")
    assert start.served() == start.before["hash"]
    assert "cannot be read" in caplog.text


def test_a_replacement_that_cannot_be_kept_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    start = Start(tmp_path)
    start.folder.write_text("a file, no folder", encoding="utf-8")
    start.replace(start.after)
    assert "the next start serves the plan before, unless another replaces this one" in caplog.text
    start.peers.write_text("[]", encoding="utf-8")
    assert start.read().own_address == {}


# -- a replacement by command -----------------------------------------------------------------------------------------


def test_a_command_has_a_gateway_switch(tmp_path: Path) -> None:
    before, after = plan_of(tmp_path), plan_of(tmp_path, "edge-7", 3.0)
    looked: list[None] = []

    async def test() -> None:
        async with running_gateway(before, tmp_path) as gateway, socket_folder() as folder:
            view = workflow_views(after).popitem()[1]
            worker = ScriptedWorker("edge-7", view, f"unix:{folder}/7", gateway.addresses[""])
            addresses = {"edge-7": worker.address}

            def switch(timeout_s: float) -> None:
                endpoint = Endpoint(gateway.address)
                replace_at(endpoint, after, addresses, timeout_s=timeout_s, while_waiting=lambda: looked.append(None))

            with pytest.raises(LaunchError, match=r"the gateway keeps its plan: not ready within 0\.1 s: edge-7"):
                await asyncio.to_thread(switch, 0.1)
            assert looked
            await worker.start()
            await asyncio.to_thread(switch, 20.0)
            assert (await gateway.status()).plan == view.hash
            await worker.stop()

    run(test())


# -- the spool --------------------------------------------------------------------------------------------------------


def test_a_spool_is_opened_only_where_it_is_told(tmp_path: Path) -> None:
    plain = scale_view(tmp_path, "edge-1")
    kept = scale_view(tmp_path, "edge-1", deliver=Deliver.EVENTUALLY)
    assert open_spool(None, plain) is None
    with pytest.raises(PlanViewError, match="say with --spool FILE"):
        open_spool(None, kept)
    for view in (plain, kept):
        spool = open_spool(tmp_path / "spool.db", view)
        assert spool is not None
        spool.close()
    with pytest.raises(StatusError) as caught:
        open_spool(tmp_path / "nowhere" / "spool.db", kept)
    assert caught.value.status is grpc.StatusCode.FAILED_PRECONDITION


def test_a_spool_that_cannot_be_used_is_closed(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database" * 100, encoding="utf-8")
    with pytest.raises(StatusError, match="file is not a database") as caught:
        Spool.open(tmp_path / "text")
    assert caught.value.__traceback__ is not None  # which has the connection
    assert str(tmp_path / "text") not in {file.path for file in psutil.Process().open_files()}


def test_a_disk_that_fails_is_told_and_tried_again(tmp_path: Path) -> None:
    async def test() -> None:
        spool = Spool.open(tmp_path / "spool.db")
        other = sqlite3.connect(tmp_path / "spool.db")
        await spool.put("a", b"inputs")
        kept = await spool.after(0)
        assert kept is not None
        other.execute("alter table answers rename to gone")
        other.commit()
        with pytest.raises(StatusError, match="the spool cannot be used: ") as caught:
            await spool.settle(kept, Answer(b"answer", 0, ""))
        assert caught.value.status is grpc.StatusCode.RESOURCE_EXHAUSTED
        other.execute("alter table gone rename to answers")
        other.commit()
        other.close()
        assert await spool.settle(kept, Answer(b"answer", 0, "")) == Answer(b"answer", 0, "")
        assert (spool.waiting, await spool.knows("a")) == (0, False)
        assert await spool.take("a") == Answer(b"answer", 0, "")
        spool.close()
        spool.close()
        with pytest.raises(StatusError, match="the gateway is shutting down"):
            await spool.put("b", b"inputs")

    run(test())


def test_an_answer_that_has_no_room_waits_until_others_are_taken(tmp_path: Path) -> None:
    def of(data: bytes) -> dict[str, agent_pb2.Tensor]:
        return {"x": agent_pb2.Tensor(data=data)}

    async def serve(_key: Key, inputs: Mapping[str, agent_pb2.Tensor]) -> Tried:
        return Tried(None, of(inputs["x"].data * 8))

    async def test() -> None:
        ended: list[Outcome | None] = []
        settings = DeliverySettings(min_pause_s=0.001, max_pause_s=0.001, poll_s=0.001)
        delivery = SpoolDelivery(
            Spool.open(tmp_path / "spool.db", 8_000),
            serve,
            lambda: True,
            lambda outcome, latency_s, caller: ended.append(outcome),
            settings,
        )
        names = [f"{number:02}" for number in range(16)]
        for name in names:
            await delivery.keep(Key("", name), of(b"x" * 100))
        delivery.start()
        await until(lambda: delivery.spool.full, "a full spool")
        answered = len(ended)
        assert 0 < answered < 16
        for name in names:
            outcome, outputs = await delivery.answer(Key("", name), 20.0)
            assert outcome is None
            assert outputs["x"].data == b"x" * 800
        assert ended == [None] * 16
        await delivery.close()

    run(test())


def test_new_requests_wait_while_too_many_are_tried_again(tmp_path: Path) -> None:
    tried: list[str] = []

    async def serve(key: Key, _inputs: object) -> Tried:
        tried.append(key.id)
        return Tried(Outcome(grpc.StatusCode.UNAVAILABLE, "not now") if is_away else None)

    async def test() -> None:
        nonlocal is_away
        settings = DeliverySettings(
            concurrent=1, max_waiting_retries=2, min_pause_s=0.001, max_pause_s=0.002, poll_s=0.001
        )
        delivery = SpoolDelivery(Spool.open(tmp_path / "spool.db"), serve, lambda: True, lambda *_: None, settings)
        for name in "abc":
            await delivery.keep(Key("", name), {"x": tensor(1)})
        delivery.start()
        await until(lambda: len(tried) >= 20)
        assert set(tried) == {"a", "b"}
        is_away = False
        for name in "abc":
            outcome, _ = await delivery.answer(Key("", name), 20.0)
            assert outcome is None
        assert set(tried) == {"a", "b", "c"}
        await delivery.close()

    is_away = True
    run(test())


# -- options and addresses --------------------------------------------------------------------------------------------

FILES = ["--plan", "p", "--peers", "q", "--links", "l"]


def test_options_have_values_of_workflows() -> None:
    options = gateway_parser().parse_args(
        [*FILES, "--metric", "top1", "--metric", "shop=exact_match", "--labelled", "yard=last", "--hedge-after", "95%"]
    )
    assert dict(options.metric) == {"": "top1", "shop": "exact_match"}
    assert dict(options.labelled) == {"yard": "last"}
    assert (options.hedge_after.after_s, options.max_in_hand, options.timeout_s, options.gateways) == (
        float("inf"),
        1024,
        60.0,
        1,
    )
    assert gateway_parser().parse_args([*FILES, "--project-file", "a/b=c"]).project_file == [("a/b", Path("c"))]


@pytest.mark.parametrize(
    "wrong",
    [
        ("--gateways", "0"),
        ("--gateways", "x"),
        ("--hedge-after", "0"),
        ("--project-file", "a"),
        ("--project-file", "../a=b"),
    ],
)
def test_options_that_are_refused(wrong: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gateway_parser().parse_args([*FILES, *wrong])
    assert wrong[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("address", "is_here"),
    [("127.0.0.1:1", True), ("[::1]:1", True), ("localhost:1", True), ("10.0.0.7:1", False), ("example.org:1", False)],
)
def test_whether_an_address_is_on_this_machine(address: str, is_here: bool) -> None:
    assert is_on_this_machine(address) is is_here


def test_the_certificate_of_a_command_from_elsewhere(tmp_path: Path) -> None:
    """Of the project's folder, by its only admin; what is missing is said, with the command that makes it."""
    project, admins = tmp_path / "project", tmp_path / "project/.jellybean/certs/admin"
    assert admin_certificate(project) == admins / "admin"
    with pytest.raises(CertificateError, match=r"copy the folder \.jellybean/certs/admin/admin from the gateway's"):
        remote_endpoint(project, "10.0.0.7:7000")
    with pytest.raises(CertificateError, match=r"for a gateway on this machine, leave out --gateway"):
        remote_endpoint(project, "127.0.0.1:7000")
    authority = open_authority(project / ".jellybean/certs/ca")
    assert has_authority(project)
    with pytest.raises(CertificateError, match=f"run `jellybean certs {project}`"):
        remote_endpoint(project, "10.0.0.7:7000")
    authority.equip(admins / "zoe", Identity("tiny", Role.ADMIN, "zoe"))
    authority.equip(admins / "amy", Identity("tiny", Role.ADMIN, "amy"))
    assert remote_endpoint(project, "10.0.0.7:7000") == Endpoint("10.0.0.7:7000", admins / "amy")
    assert remote_endpoint(project, "10.0.0.7:7000", admins / "zoe").tls == admins / "zoe"
    with pytest.raises(InputError, match="is no address"):
        remote_endpoint(project, "10.0.0.7")
    authority.equip(admins / "amy", Identity("tiny", Role.ADMIN, "amy"), life_s=-60.0)
    with pytest.raises(CertificateError, match=r"the certificate has expired; run `jellybean certs .* --admin amy`"):
        remote_endpoint(project, "10.0.0.7:7000")
