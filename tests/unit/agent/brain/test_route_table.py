"""Which worker a request, or a child of it, goes to; sites of tiers; audits in plan documents."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from jellybean_agent import AUDIT_PREFIX, RouteTable, SiteRoutes, Sites
from jellybean_agent.brain.audit_view import read_audit, served_sources
from jellybean_agent.brain.route_table import round_robin_offset

ROUTES = [{"a": "edge-1", "b": "cloud-1"}, {"a": "edge-2", "b": "cloud-2"}]
GROUP = ("cloud-1", "cloud-2", "cloud-3")
SPREAD = RouteTable(ROUTES, {("b", "cloud-1"): GROUP})


def test_a_plan_without_spread_children_has_its_routes() -> None:
    table = RouteTable(ROUTES)
    assert len(table) == 2
    assert [table.spread(number) for number in (0, 1)] == [0, 1]
    assert table.worker(1, "b", (), "r-1") == "cloud-2"
    assert (table.covers(0, "a"), table.covers(0, "c")) == (True, False)
    assert table.workers(0) == {"edge-1", "cloud-1"}


def test_each_route_has_a_second_number_with_spread_children() -> None:
    assert len(SPREAD) == 4
    assert [SPREAD.spread(number) for number in range(4)] == [2, 3, 2, 3]
    assert [SPREAD.plain(number) for number in range(4)] == [0, 1, 0, 1]
    assert all(SPREAD.covers(number, "a") for number in range(4))
    assert SPREAD.workers(0) == {"edge-1", "cloud-1"}
    assert SPREAD.workers(2) == {"edge-1", *GROUP}
    assert SPREAD.workers(3) == {"edge-2", "cloud-2"}


def test_children_go_round_their_group_each_request_from_another_place() -> None:
    path = [((0, 3),), ((1, 3),), ((2, 3),)]
    first = [SPREAD.worker(2, "b", children, "r-0") for children in path]
    assert first == ["cloud-1", "cloud-2", "cloud-3"]
    assert [SPREAD.worker(0, "b", children, "r-0") for children in path] == ["cloud-1"] * 3, "the plain number"
    assert SPREAD.worker(2, "b", (), "r-0") == "cloud-1", "a request itself"
    assert SPREAD.worker(2, "a", path[1], "r-0") == "edge-1", "another operator"
    assert SPREAD.worker(3, "b", path[1], "r-0") == "cloud-2", "a worker of no group"
    nested = [SPREAD.worker(2, "b", ((1, 2), (child, 3)), "r-0") for child in range(3)]
    assert nested == ["cloud-2", "cloud-3", "cloud-1"]
    begins = Counter(SPREAD.worker(2, "b", path[0], f"r-{number}") for number in range(300))
    assert all(95 <= count <= 105 for count in begins.values())


def test_the_offset_is_of_the_number_in_a_requests_id() -> None:
    assert round_robin_offset("abc-1") == round_robin_offset("x-1") == pytest.approx(0.6180339887)
    assert round_robin_offset("abc-2") == pytest.approx(0.2360679775)
    assert round_robin_offset("a-1000000001") == round_robin_offset("a-000000001")
    assert 0.0 <= round_robin_offset("no number") < 1.0
    assert round_robin_offset("a-²") == round_robin_offset("a-²")


def test_sites_of_tiers() -> None:
    sites = Sites({"store": 6, "region": 2, "cloud": 1})
    assert (sites.counts, sites.most) == ({"store": 6, "region": 2}, 6)
    assert [list(sites.of(tier)) for tier in ("store", "cloud", "other")] == [[*range(6)], [0], [0]]
    assert [sites.at("region", place) for place in range(6)] == [0, 0, 0, 1, 1, 1]
    assert [sites.at("store", place) for place in range(6)] == [*range(6)]
    assert [sites.name_at(tier, 3) for tier in ("store", "region", "cloud")] == ["store-4", "region-2", "cloud"]
    assert sites.worker_name("store", "box-2", 4) == "store-5/box-2"
    assert sites.worker_name("cloud", "gpu-1", 0) == "gpu-1"
    assert Sites({}).most == 1


def test_routes_in_every_place() -> None:
    tiers = {"box": "store", "hub": "region", "gpu": "cloud"}
    routes = [{"a": "box", "b": "gpu"}, {"a": "hub", "b": "gpu"}]
    found = SiteRoutes(routes, tiers, Sites({"store": 4, "region": 2}))
    assert len(found) == 8
    assert found[0] == {"a": "store-1/box", "b": "gpu"}
    assert found[7] == {"a": "region-2/hub", "b": "gpu"}
    assert found[6] == {"a": "store-4/box", "b": "gpu"}
    assert found[6] is found[6]
    assert found[1:3] == [{"a": "region-1/hub", "b": "gpu"}, {"a": "store-2/box", "b": "gpu"}]
    for index in (8, -1):
        with pytest.raises(IndexError):
            found[index]
    single = SiteRoutes(routes, tiers, Sites({}))
    assert (len(single), single[1]) == (2, routes[1])


def audited(**audit: Any) -> dict[str, Any]:
    return {
        "sources": [{"name": "x"}, {"name": f"{AUDIT_PREFIX}x"}],
        "operators": [{"name": "answer"}, {"name": f"{AUDIT_PREFIX}answer"}],
        "audit": {"share": 0.25, "metric": "equal", "answer": "answer", **audit},
    }


OUTPUTS: Any = {"x": (("answer", "each"),), f"{AUDIT_PREFIX}x": ((f"{AUDIT_PREFIX}answer", "each"),)}


def test_the_audit_of_a_plan() -> None:
    document = audited()
    found = read_audit(document, OUTPUTS)
    assert found is not None
    assert (found.share, found.metric, found.answer, found.reference) == (
        0.25,
        "equal",
        "answer",
        f"{AUDIT_PREFIX}answer",
    )
    assert found.source_outputs == {f"{AUDIT_PREFIX}x": ((f"{AUDIT_PREFIX}answer", "each"),)}
    assert served_sources(document) == [{"name": "x"}]


def test_a_plan_without_an_audit() -> None:
    document = {**audited(), "audit": None}
    assert read_audit(document, OUTPUTS) is None
    assert len(served_sources(document)) == 2


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5])
def test_a_share_that_is_none(share: float) -> None:
    with pytest.raises(ValueError, match=f"an audit of {share} of the requests"):
        read_audit(audited(share=share), OUTPUTS)


def test_an_audit_of_all_requests_and_audits_that_do_not_fit() -> None:
    assert read_audit(audited(share=1.0), OUTPUTS) is not None
    with pytest.raises(ValueError, match="with sources none"):
        read_audit(audited(), {"x": OUTPUTS["x"]})
    with pytest.raises(ValueError, match="an audit of the answers of other"):
        read_audit(audited(answer="other"), OUTPUTS)
