"""Plan documents that are wrong in one place each: every one is refused, with that place; and what else plans say."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jellybean_agent import PlanViewError, plan_part, plan_view, read_plan, workflow_views
from jellybean_agent.brain import plan_reading
from jellybean_protos import plan_format
from jellybean_solver.model.plan_document import Document
from tests.unit.agent.brain.test_plan_view import make_document, rehash

Change = Callable[[Document], None]


def changed(change: Change, **content: Any) -> Document:
    document = copy.deepcopy(make_document(**content))
    change(document)
    return rehash(document)


def operator(document: Document, name: str) -> Any:
    return next(item for item in document["operators"] if item["name"] == name)


def set_edge(name: str, **content: Any) -> Change:
    return lambda document: operator(document, name)["inputs"][0].update(content)


def fallback(closes: list[int], weights: list[float]) -> Change:
    return lambda document: document.update(fallbacks=[{"closes": closes, "weights": weights}])


def spread(group: list[str], name: str = "each") -> Change:
    return lambda document: document.update(spread={name: [group]})


def worker(**content: Any) -> Change:
    return lambda document: document["workers"][1].update(content)


def delay(seconds: float) -> Change:
    return lambda document: operator(document, "each").update(batch_delay_s=seconds)


def state(name: str) -> Change:
    return lambda document: operator(document, name).update(state=[["before", "after"]])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (set_edge("each", kind="copy"), "edge split -> each"),
        (set_edge("each", upstream="nobody"), "edge nobody -> each"),
        (set_edge("split", kind="gather"), "the inputs of split are not at one level of fan-out"),
        (fallback([0], [1.0]), "a fallback does not share the requests out over the routes that are left"),
        (fallback([], [-0.5, 1.5]), "a fallback does not share"),
        (fallback([0], [0.5, 0.5]), "a fallback does not share"),
        (fallback([0], [0.0, 0.9]), "a fallback does not share"),
        (spread(["cloud-1", "edge-1"]), "children of each spread over cloud-1, edge-1"),
        (spread(["cloud-1", "cloud-1"]), "children of each spread over cloud-1, cloud-1"),
        (spread(["edge-1"], "split"), "children of split spread over edge-1"),
        (state("each"), "a state by stream of each, which is below a fan-out"),
        (worker(device="abacus"), "'abacus' is no device"),
    ],
)
def test_a_plan_that_is_wrong_in_one_place(change: Change, reason: str) -> None:
    with pytest.raises(PlanViewError, match=reason):
        plan_view(changed(change))


def test_delays_of_batches() -> None:
    with pytest.raises(PlanViewError, match="delays of"):
        plan_view(changed(delay(-1.0), batches={"each": 8}))
    assert plan_view(changed(delay(-1.0), batches={"each": 1})).workers["cloud-1"].delays == {}
    assert plan_view(changed(delay(0.5), batches={"each": 8})).workers["cloud-1"].delays == {"each": 0.5}


def test_fallbacks_come_in_the_order_of_what_they_close() -> None:
    def both(document: Document) -> None:
        document["routes"] = [*document["routes"], copy.deepcopy(document["routes"][0])]
        document["fallbacks"] = [
            {"lost": "two", "closes": [0, 1], "weights": []},
            {"lost": "one", "closes": [1], "weights": [1.0, 0.0, *[0.0] * (len(document["routes"]) - 2)]},
        ]

    view = plan_view(changed(both))
    assert [sorted(fallback.closes) for fallback in view.fallbacks] == [[1], [0, 1]]
    assert view.fallbacks[0].weights[:2] == (1.0, 0.0)
    assert view.fallbacks[1].weights == ()


def test_devices_and_their_memory_are_read() -> None:
    def change(document: Document) -> None:
        for item in document["workers"]:
            if item["name"] == "cloud-1":
                item.update(device="cuda:1", device_options=[["a", "b"]], device_memory_bytes=100.0)
        operator(document, "each")["device_memory_bytes"] = {"cloud": 25.0}

    found = plan_view(changed(change)).workers["cloud-1"]
    assert str(found.device) == "cuda:1 (a=b)"
    assert found.device_memory_bytes == {"each": 100.0}

    def wrong(document: Document) -> None:
        change(document)
        operator(document, "each")["device_memory_bytes"] = {"cloud": -1.0}

    with pytest.raises(PlanViewError, match="device memory of 100"):
        plan_view(changed(wrong))


def test_functions_are_read() -> None:
    def change(document: Document) -> None:
        python = {"function": "steps:cast", "arguments": "{}", "module_sha256": "ab"}
        operator(document, "split")["model"] = {"python": python}

    found = plan_view(changed(change)).operators["split"]
    assert found.python is not None
    assert (found.python.function, found.python.arguments, found.python.sha256) == ("steps:cast", "{}", "ab")
    assert found.code_sha256 == "ab {}"
    assert found.model_files == ()


def test_a_plan_of_several_sites_spreads_no_children() -> None:
    document = changed(lambda found: found.update(spread={"each": [["cloud-1"]]}), sites={"edge": 2})
    with pytest.raises(PlanViewError, match="a plan of several sites spreads no children"):
        plan_view(document)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_reading, "MAX_PLAN_BYTES", 10)
    (tmp_path / "plan.json").write_bytes(b" " * 11)
    with pytest.raises(PlanViewError, match="above 10 bytes; a plan is smaller"):
        read_plan(tmp_path / "plan.json")
    assert plan_format.content_hash(make_document())


def test_workflows_of_a_plan() -> None:
    single = make_document()
    assert list(workflow_views(single)) == ["grüße"]
    several = {**single, "workflows": [{"name": "shop"}]}
    with pytest.raises(KeyError, match="yard"):
        plan_part(several, "yard")
