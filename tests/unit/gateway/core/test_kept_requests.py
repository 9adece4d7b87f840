"""What a gateway's process keeps: requests in its spool, failures in its log, and counts in the ledger."""

from __future__ import annotations

import logging
from pathlib import Path

import grpc.aio
import pytest

from jellybean.ledger import By, Ledger, cost, run_cost
from jellybean_protos.agent.v1 import agent_pb2
from jellybean_solver import Deliver, Link
from tests.support.gateway_in_process import Document, eventually, running_gateway
from tests.support.scripted_workers import INPUTS, hold, run, tensor
from tests.unit.gateway.core.process_calls import metrics_of, model_call, model_request, plan_of, refused

Code = grpc.StatusCode


def test_a_request_that_is_kept_is_answered_after_the_next_start(tmp_path: Path) -> None:
    document = plan_of(tmp_path, "edge-1", deliver=Deliver.EVENTUALLY)

    async def test() -> None:
        options = ("--spool", f"{tmp_path}/spool.db", "--ledger", f"{tmp_path}/ledger.db", "--live", f"{tmp_path}/live")
        brief = (*options, "--timeout-s", "0.1")
        async with running_gateway(document, tmp_path, *brief, behaviours={"edge-1": hold}) as gateway:
            response = await gateway.infer(inputs=INPUTS, request_id="a")
            assert (response.request_id, response.kept, dict(response.outputs)) == ("a", True, {})
            status = await gateway.status()
            assert (status.kept, status.answered, status.failed) == (1, 0, 0)
            assert status.kept_bytes > 16
            metrics = await metrics_of(gateway)
            assert metrics["gateway_kept",] == 1
            assert metrics["gateway_kept_oldest_seconds",] > 0
        assert (tmp_path / "live").exists(), "the request is counted as received there"
        async with running_gateway(document, tmp_path, *options) as gateway:
            response = await gateway.infer(inputs={}, request_id="a")
            assert dict(response.outputs) == {"double": INPUTS["x"]}
            named = await gateway.infer(inputs=INPUTS)
            assert named.outputs
            for _ in range(2):  # the protocol's ids need not be unique
                assert (await model_call(gateway.channel)(model_request("m"), timeout=20.0)).id == "m"
            status = await gateway.status()
            assert (status.kept, status.answered, status.failed) == (0, 4, 0)
            assert (await refused(gateway.infer(inputs={}, request_id="b")))[0] is Code.NOT_FOUND
        assert not (tmp_path / "live").exists(), "all of it is in the ledger"
        assert requests_of(tmp_path / "ledger.db") == 4

    run(test())


def test_a_failure_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With its reason; a request that is kept has not failed yet."""
    caplog.set_level(logging.INFO, "jellybean.gateway")
    document = plan_of(tmp_path, "edge-1", deliver=Deliver.EVENTUALLY)

    async def test() -> None:
        options = ("--spool", f"{tmp_path}/spool.db", "--timeout-s", "0.1")
        async with running_gateway(document, tmp_path, *options, behaviours={"edge-1": hold}) as gateway:
            assert (await gateway.infer(inputs=INPUTS, request_id="kept")).kept
            refusal = gateway.infer(inputs={"x": tensor(1)}, request_id="wrong")
            assert (await refused(refusal))[0] is Code.INVALID_ARGUMENT
            caplog.set_level(logging.ERROR, "jellybean.gateway")
            await gateway.stub.Drain(agent_pb2.DrainRequest(timeout_s=0.0))
            assert await refused(gateway.infer(inputs=INPUTS, request_id="late")) == (
                Code.UNAVAILABLE,
                "the gateway is draining: it takes no new requests",
            )

    run(test())
    failures = [record for record in caplog.records if record.getMessage().startswith("a request was refused: ")]
    assert [record.levelname for record in failures] == ["INFO"]
    (record,) = failures
    assert record.getMessage().startswith("a request was refused: source x: ")


def test_a_gateway_keeps_requests_only_where_it_is_told(plan: Document, tmp_path: Path) -> None:
    async def test() -> None:
        async with running_gateway(plan, tmp_path) as gateway:
            assert (await gateway.infer(inputs=INPUTS, request_id="a")).outputs
            assert (await refused(gateway.infer(inputs={}, request_id="a")))[0] is Code.ALREADY_EXISTS
            status = await gateway.status()
            assert (status.kept, status.kept_bytes) == (0, 0)

    run(test())


def requests_of(path: Path) -> int | None:
    """Answered requests of all clients, as the ledger has them."""
    ledger = Ledger(str(path), "test")
    try:
        return sum(line.done or 0 for line in cost(ledger, By.CLIENT))
    finally:
        ledger.close()


@pytest.mark.parametrize("several", [(), ("--ledger-deployment", "all")])
def test_the_ledger_has_what_was_served(tmp_path: Path, several: tuple[str, ...]) -> None:
    document = plan_of(tmp_path, "cloud-1", links=[Link("edge", "cloud", 0.5, None, 0.0)])

    async def test() -> None:
        options = ("--ledger", f"{tmp_path}/ledger.db", "--live", f"{tmp_path}/live", "--ledger-run", "first", *several)
        async with running_gateway(document, tmp_path, *options) as gateway:
            for _ in range(3):
                await gateway.infer(inputs=INPUTS)

            async def is_written() -> bool:
                return (await metrics_of(gateway))["ledger_unwritten",] == 0

            await eventually(is_written)
        found = Ledger(str(tmp_path / "ledger.db"), "test")
        workers_usd, links_usd = run_cost(found, "first", "tiny")
        found.close()
        assert workers_usd > 0
        assert links_usd == pytest.approx(3 * 16 / 2**30 * 0.5)
        assert not (tmp_path / "live").exists()
        async with running_gateway(document, tmp_path, *options) as gateway:  # which goes on with what was paid

            async def goes_on() -> bool:
                return (await metrics_of(gateway))["gateway_cost_usd_total", "links"] == pytest.approx(links_usd)

            await eventually(goes_on)

    run(test())


def test_what_could_not_be_written_is_written_later(plan: Document, tmp_path: Path) -> None:
    async def test() -> None:
        options = ("--ledger", f"{tmp_path}/away/ledger.db", "--live", f"{tmp_path}/live")
        async with running_gateway(plan, tmp_path, *options) as gateway:

            async def is_unwritten() -> bool:
                return (await metrics_of(gateway))["ledger_unwritten",] > 0

            await eventually(is_unwritten)
            assert (await gateway.infer(inputs=INPUTS, request_id="a")).outputs
            (tmp_path / "away").mkdir()
        assert requests_of(tmp_path / "away/ledger.db") == 1
        assert not (tmp_path / "live").exists()

    run(test())
