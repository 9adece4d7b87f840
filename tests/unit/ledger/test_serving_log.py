"""Requests by client: whom the ledger tells apart."""

from __future__ import annotations

from pathlib import Path

from jellybean.ledger import COLUMNS, RECEIVED, RequestKey
from jellybean.serving.gateway.accounting.serving_log import ServingLog, client_name
from jellybean_agent import LiveCounters


def test_clients_of_one_name_are_two_if_one_is_of_one_workflow_only(tmp_path: Path) -> None:
    log = ServingLog(LiveCounters(tmp_path / "live", COLUMNS), "shop")
    for uri, count in (("jellybean://PLAN%2Fshop/client/ann", 3), ("jellybean://PLAN/client/ann", 1), ("", 2)):
        for _ in range(count):
            log.received(uri)
    received = {key: counts[RECEIVED] for key, counts in log.requests().items()}
    assert received == {RequestKey("shop", "shop/ann"): 3, RequestKey("shop", "ann"): 1, RequestKey("shop", ""): 2}
    log.close(is_written=True)


def test_a_name_is_that_of_the_certificate() -> None:
    assert client_name("jellybean://PLAN/admin/root") == "root"
    assert client_name("jellybean://PLAN/gateway") == "gateway"
    assert client_name("https://elsewhere") == ""
