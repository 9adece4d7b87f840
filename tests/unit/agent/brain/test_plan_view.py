"""One worker's view of a plan document: what is read, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from jellybean_agent import PlanViewError, plan_view, read_plan
from jellybean_protos import plan_format
from jellybean_solver import (
    Certificate,
    Cost,
    Edge,
    EdgeKind,
    Link,
    ModelFile,
    ModelPorts,
    ModelRef,
    Plan,
    PlannedOperator,
    PlannedWorker,
    Route,
    ServiceTime,
    Sharing,
    Slo,
    Source,
)
from jellybean_solver.model import plan_document


def make_document(batches: Mapping[str, int] | None = None, **changes: object) -> plan_document.Document:
    """`batches`: operator -> batch size in the cloud, whose devices are emulated."""

    def operator(name: str, *edges: Edge) -> PlannedOperator:
        sizes = {"edge": 1, "cloud": (batches or {}).get(name, 1)}
        times = {size: ServiceTime(0.02, 0.01 * size) for size in {1, sizes["cloud"]}}
        service = {"edge": {1: ServiceTime(0.1, 0.1)}, "cloud": times}
        model = ModelRef(f"models/{name}.onnx", "00")
        return PlannedOperator(name, edges, "only", sizes, 1.0, service, {}, {}, model)

    operators = (
        operator("split", Edge("x", "split")),
        operator("each", Edge("split", "each", EdgeKind.FAN_OUT, 3.0, output="rows")),
        operator("sum", Edge("each", "sum", EdgeKind.GATHER, 1 / 3)),
    )
    workers = tuple(
        PlannedWorker(name, name[:-2], name[:-2], 0.1, Sharing.SHARED, {}, 0.1, None, 0.5 if name == "cloud-1" else 1.0)
        for name in ("edge-1", "cloud-1", "cloud-2")
    )
    route = {"split": "edge-1", "each": "cloud-1", "sum": "edge-1"}
    plan = Plan(
        "grüße",
        ("edge", "cloud"),
        (Source("x", "edge", 1.0, 10.0),),
        operators,
        workers,
        (Route(0.1 + 0.2, route), Route(0.7, {**route, "each": "edge-1"})),
        (Link("edge", "cloud", 0.1, None, 0.02),),
        Slo(),
        0.8,
        0.001,
        Cost(0.3, 0.0),
        None,
        Certificate(1.0, 1.0, 0.0, "optimal"),
    )
    return plan_document.to_document(plan) | changes


def with_model(document: plan_document.Document, model: ModelRef) -> plan_document.Document:
    """The document as the solver writes it, with another model for the first operator."""
    plan = plan_document.from_document(document)
    first = replace(plan.operators[0], model=model)
    return plan_document.to_document(replace(plan, operators=(first, *plan.operators[1:])))


def rehash(document: plan_document.Document) -> plan_document.Document:
    return document | {"hash": plan_format.content_hash(document)}


def test_reads_what_the_solver_writes(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    document = make_document({"each": 8})
    path.write_text(json.dumps(document, indent=2), encoding="utf-8")
    view = read_plan(path)
    assert view.hash == document["hash"]
    assert view.sinks == ("sum",)
    assert [worker.name for worker in view.serving] == ["edge-1", "cloud-1"]
    assert view.workers["edge-1"].operators == ("split", "each", "sum")
    assert view.workers["cloud-1"].device_s == {"each": {1: 0.01, 8: 0.08}}
    assert view.workers["edge-1"].device_s is None
    assert view.workers["cloud-1"].batches == {"each": 8}
    assert view.workers["edge-1"].batches == {"split": 1, "each": 1, "sum": 1}
    assert [view.operators[name].depth for name in ("split", "each", "sum")] == [0, 1, 0]
    assert view.operators["split"].output_names == {"each": "rows"}
    assert view.source_outputs == {"x": (("split", "each"),)}
    assert [view.path_length(*edge) for edge in (("x", "split"), ("split", "each"), ("each", "sum"))] == [0, 1, 1]
    assert view.tier_of("each", 0) == "cloud"
    assert view.tier_of("each", 1) == "edge"
    assert view.tier_of("x", 0) == "edge"


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ([], "not a plan"),
        ({"kind": "Workflow"}, "not a plan"),
        (make_document(version=99), "version 99"),
        (make_document(name="other"), "does not match its hash"),
        (rehash(make_document(routes=[])), "no route"),
        (rehash(make_document(routes=[{"weight": 1.0, "workers": {"split": "edge-1"}}])), "each operator runs"),
        (
            rehash(make_document(routes=[{"weight": 1.0, "workers": dict.fromkeys(("split", "each", "sum"), "z")}])),
            "unknown workers: z",
        ),
        (rehash(make_document(operators=[{"name": "a"}])), "not a plan"),
        (rehash(make_document(operators=7)), "not a plan"),
        (make_document(version=1), "version 1; this agent reads 2 to 8: plan again"),
        (make_document({"each": 0}), "batches of 0 of each"),
    ],
)
def test_what_is_no_plan(document: object, told: str) -> None:
    with pytest.raises(PlanViewError, match=told):
        plan_view(document)


@pytest.mark.parametrize(
    ("operator", "told"),
    [("split", "batches of 2 of split, which gathers"), ("sum", "batches of 2 of sum, which gathers")],
)
def test_what_takes_one_request_at_a_time_has_no_batches(operator: str, told: str) -> None:
    route = {"split": "cloud-1", "each": "cloud-1", "sum": "cloud-1"}
    document = rehash(make_document({operator: 2}, routes=[{"weight": 1.0, "workers": route}]))
    with pytest.raises(PlanViewError, match=f"batches of 2 of {operator}, which gathers or fans out"):
        plan_view(document)


def test_files_that_are_no_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    for text, told in [("{", "not JSON"), ("[" * 100_000, "not JSON"), ("7", "not a plan")]:
        path.write_text(text, encoding="utf-8")
        with pytest.raises(PlanViewError, match=told):
            read_plan(path)
    with pytest.raises(PlanViewError, match="there is no such file"):
        read_plan(tmp_path / "none.json")


def test_times_of_an_emulated_device_are_needed() -> None:
    document = make_document()
    document["operators"][1]["service"]["cloud"] = {"2": {"mean_s": 0.1, "load_s": 0.1, "quantiles": []}}
    with pytest.raises(PlanViewError, match="times of each"):
        plan_view(rehash(document))


def test_a_plan_that_version_2_wrote_is_read(pytestconfig: pytest.Config) -> None:
    view = read_plan(pytestconfig.rootpath / "tests/unit/solver/model/plans/version-2.json")
    assert [(worker.name, worker.tier) for worker in view.serving] == [("box-1", "edge"), ("server-1", "cloud")]
    assert view.workers["server-1"].batches == {"read": 8, "sum": 1}
    assert view.periodic
    assert len(view.tiers_at) == 1


def test_a_plan_of_several_sites_is_read() -> None:
    view = plan_view(rehash(make_document(sites={"edge": 2})))
    assert len(view.tiers_at) == 2
    assert len({worker.tier for worker in view.serving}) == 3


@pytest.mark.parametrize(
    "model",
    [
        ModelRef("m.onnx", "00", ports=ModelPorts({}, "scores", {})),
        ModelRef("m.onnx", "00", files=(ModelFile("m.onnx", "01"), ModelFile("m.onnx_data", "02"))),
    ],
    ids=["ports", "files"],
)
def test_an_agent_that_does_not_know_a_models_keys_refuses_the_plan(
    model: ModelRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = make_document()
    document = with_model(plain, model)
    assert (plain["version"], document["version"]) == (3, 4)
    view = plan_view(document)
    assert view.operators["split"].model_path == "m.onnx"
    monkeypatch.setattr(plan_format, "READABLE_VERSIONS", (2, 3))  # as of the release before
    assert plan_view(plain).operators
    with pytest.raises(PlanViewError, match="plan version 4; this agent reads 2 to 3: plan again"):
        plan_view(document)


def mixed_document() -> plan_document.Document:
    """`each` runs as `only` on one worker and as `better` on the other."""
    document = {key: value for key, value in make_document().items() if key not in plan_format.HEADER_KEYS}
    each = document["operators"][1]
    better = {**each, "variant": "better", "model": {**each["model"], "path": "models/better.onnx", "sha256": "01"}}
    better["batch"], better["service"] = {"edge": 1}, {"edge": each["service"]["edge"]}
    operators = [document["operators"][0], {**each, "others": [better]}, document["operators"][2]]
    variants = {"cloud-1": "only", "edge-1": "better"}
    workers = [
        {**worker, "variants": {"each": variants[worker["name"]]}} if worker["name"] in variants else worker
        for worker in document["workers"]
    ]
    return plan_format.with_header({**document, "operators": operators, "workers": workers})


def test_each_worker_sees_the_variant_that_it_runs() -> None:
    document = mixed_document()
    assert document["version"] == plan_format.MIXED_VERSION
    view = plan_view(document)
    seen = {name: view.seen_by(name).operators["each"] for name in ("cloud-1", "edge-1", "cloud-2")}
    assert {name: (one.variant, one.model_path) for name, one in seen.items()} == {
        "cloud-1": ("only", "models/each.onnx"),
        "edge-1": ("better", "models/better.onnx"),
        "cloud-2": ("only", "models/each.onnx"),  # which runs none
    }
    assert [(one.name, one.variant) for one in view.variants] == [
        *(("split", "only"), ("each", "only"), ("each", "better"), ("sum", "only")),
    ]
    assert view.seen_by("gateway") is view


def test_a_worker_whose_variant_is_not_described_is_refused() -> None:
    body = {key: value for key, value in mixed_document().items() if key not in plan_format.HEADER_KEYS}
    workers = [{**worker, "variants": {"each": "huge"}} for worker in body["workers"]]
    with pytest.raises(PlanViewError, match="variant huge of each"):
        plan_view(plan_format.with_header({**body, "workers": workers}))


def test_an_operator_that_counts_its_rows_fans_out_in_batches() -> None:
    def batched(rows: str | None, rows_of: dict[str, str] | None = None) -> plan_document.Document:
        body = {key: value for key, value in make_document({"each": 4}).items() if key not in plan_format.HEADER_KEYS}
        split = body["operators"][0]
        ports = {"inputs": {}, "output": None, "outputs": {}, **({"rows": rows} if rows else {})}
        ports |= {"rows_of": rows_of} if rows_of else {}
        times = {str(size): {"load_s": 0.1, "mean_s": 0.1, "quantiles": []} for size in (1, 4)}
        split = {**split, "model": {**split["model"], "ports": ports}, "batch": {"edge": 4, "cloud": 1}}
        split["service"] = {**split["service"], "edge": times}
        return plan_format.with_header({**body, "operators": [split, *body["operators"][1:]]})

    assert plan_view(batched("counts")).operators["split"].ports.counter_of("crops") == "counts"
    by_output = plan_view(batched(None, {"crops": "how_many"}))
    assert by_output.operators["split"].ports.counter_of("crops") == "how_many"
    assert by_output.operators["split"].ports.counter_of("frames") is None
    assert by_output.workers["edge-1"].batches["split"] == 4
    assert plan_view(batched("counts")).workers["edge-1"].batches["split"] == 4
    with pytest.raises(PlanViewError, match="batches of 4 of split, which gathers or fans out"):
        plan_view(batched(None))
