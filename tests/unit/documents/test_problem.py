"""From documents to the planning problem, and profiles to a file and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper, save_model

from jellybean.documents import (
    AccuracyProfile,
    BatchProfile,
    MeasuredSelection,
    ProfilesDocument,
    Project,
    VariantProfile,
    build_problem,
    load_project,
    model_ref,
    write_profiles,
)
from jellybean.documents.planning_problem.variants import service_time
from jellybean.documents.schema.profiles import AccuracyPoint
from jellybean.documents.writer import profiles_text
from jellybean.errors import DocumentError, InputError
from jellybean_solver import (
    AccuracyRow,
    Arrivals,
    Deliver,
    Edge,
    EdgeKind,
    EndToEnd,
    Independent,
    Link,
    LossKind,
    Objective,
    PerOperator,
    Pool,
    ServiceTime,
    Sharing,
    Slo,
    Source,
    Terms,
)
from jellybean_solver.model.variant_ratios import settled
from tests.support.exported_models import keep_weights_outside


def test_a_model_whose_data_file_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    node = helper.make_node("Add", ["x", "w"], ["y"])
    ports = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4])] for name in "xy"]
    weights = [numpy_helper.from_array(np.ones((1, 4), np.float32), "w")]
    save_model(helper.make_model(helper.make_graph([node], "g", *ports, weights)), tmp_path / "m.onnx")
    sha256 = keep_weights_outside(tmp_path / "m.onnx")
    complete = model_ref(tmp_path, "m.onnx", sha256)
    assert complete is not None
    assert [file.path for file in complete.files] == ["m.onnx", "m.onnx.data"]
    (tmp_path / "m.onnx.data").unlink()
    with pytest.raises(InputError, match=r"keeps weights in m\.onnx\.data: there is no such file"):
        model_ref(tmp_path, "m.onnx", sha256)
    (tmp_path / "m.onnx").unlink()
    stated = model_ref(tmp_path, "m.onnx", sha256, hashes={"m.onnx": "00", "m.onnx.data": "01"})
    assert stated is not None
    assert [file.sha256 for file in stated.files] == ["00", "01"]  # as in the Kubernetes operator, which has no files


def test_every_field_arrives_in_si(folder: Path) -> None:
    problem = build_problem(load_project(folder))
    assert problem.name == "parcels"
    assert problem.tiers == ("edge", "cloud")
    assert problem.sources[0] == Source("camera", "edge", 12.0, 50 * 1024, Arrivals.POISSON)
    assert problem.pools == (
        Pool("box", "edge", 4, 0.05, Sharing.SHARED, 4 * 2**30),
        Pool("gpu", "cloud", 2, 0.5, Sharing.SHARED),
    )
    assert problem.links == (Link("edge", "cloud", 0.1, 12.5e6, pytest.approx(0.02)),)
    assert problem.slo == Slo(90.0, pytest.approx(0.8), 10.0)
    assert problem.utilisation == 0.8
    assert problem.hop_s == pytest.approx(0.9e-3)
    assert [operator.name for operator in problem.operators] == ["detect", "read", "label"]
    label = problem.operator_by_name["label"]
    assert label.inputs == (Edge("read", "label", EdgeKind.GATHER, 0.25), Edge("scale", "label"))
    assert problem.rate_per_s["read"] == 48


def test_delivery_is_of_a_whole_request(folder: Path) -> None:
    problem = build_problem(
        load_project(folder, ["sources.camera.deliver=eventually", "sources.scale.deliver=eventually"])
    )
    assert {source.deliver for source in problem.sources} == {Deliver.EVENTUALLY}
    with pytest.raises(DocumentError, match="their deliver differs"):
        load_project(folder, ["sources.camera.deliver=eventually"])


def test_rates_of_sites_are_told_of_one_and_meet_in_all(folder: Path) -> None:
    problem = build_problem(load_project(folder, ["sites.edge=500"]))
    assert problem.sites == {"edge": 500}
    assert problem.sources[0].rate_per_s == 12.0
    assert problem.rate_per_s["read"] == 48 * 500
    assert build_problem(load_project(folder, ["sites.edge=1"])) == build_problem(load_project(folder))

    elsewhere = ["sites.edge=500", "sources.scale.tier=cloud"]
    with pytest.raises(DocumentError, match=r"joins data of sources of different rates: camera 6,000/s, scale 12/s"):
        load_project(folder, elsewhere)
    meeting = build_problem(load_project(folder, [*elsewhere, "sources.scale.rate=6000/s"]))
    assert meeting.rate_per_s["label"] == 6000


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")


BY_VARIANT = "operators.read.inputs.0.ratio={small: 3.1, large: 4.4}"


def test_ratios_by_variant(folder: Path) -> None:
    problem = build_problem(load_project(folder, [BY_VARIANT]))
    assert [dict(variant.ratios) for variant in problem.operator_by_name["detect"].variants] == [
        {"read": 3.1},
        {"read": 4.4},
    ]
    assert problem.varying == ("detect",)
    assert problem.rate_per_s["read"] == pytest.approx(12 * 3.1)  # the least: what bounds all selections
    chosen = settled(problem, {"detect": "large"})
    assert chosen.rate_per_s["read"] == pytest.approx(12 * 4.4)
    assert chosen.rate_per_s["label"] == pytest.approx(12)
    assert settled(chosen, {"detect": "large"}) is chosen
    one = build_problem(load_project(folder, [BY_VARIANT, "operators.detect.variants=[large]"]))
    assert one.varying == ()
    assert one.rate_per_s == chosen.rate_per_s


def test_ratios_as_measured_are_the_means_of_the_profile(folder: Path) -> None:
    edit(folder / "profiles.yaml", "      message: 10 KiB", "      message: 10 KiB\n      children: [20 %, 0, 80 %]")
    edit(folder / "profiles.yaml", "      message: {", "      children: [0, 0, 0, 50 %, 50 %]\n      message: {")
    said = build_problem(load_project(folder))
    assert said.varying == ()
    assert said.rate_per_s["read"] == 48  # a number in the workflow holds, whatever was measured
    problem = build_problem(load_project(folder, ["operators.read.inputs.0.ratio=measured"]))
    means = {variant.name: variant.ratios["read"] for variant in problem.operator_by_name["detect"].variants}
    assert means == {"small": pytest.approx(1.6), "large": pytest.approx(3.5)}


def test_measured_ratios_are_of_one_output(folder: Path) -> None:
    measured = "operators.read.inputs.0.ratio=measured"
    edit(folder / "profiles.yaml", "      message: 10 KiB", "      message: 10 KiB\n      children: [100 %]")
    edit(folder / "profiles.yaml", "      message: {", "      children: [0, 0, 0, 50 %, 50 %]\n      message: {")
    with pytest.raises(DocumentError, match=r"detect.small.children: all outputs have no rows, but the ratio to read"):
        load_project(folder, [measured])
    scale = "inputs: [{from: read, gather: true}, scale]"
    edit(folder / "workflow.yaml", scale, f"{scale}\n    variants: [rules]\n  more:\n    inputs: [{{from: detect, "
         "output: other, ratio: 2}]")  # fmt: skip
    with pytest.raises(DocumentError, match=r"detect fans out several outputs"):
        load_project(folder, [measured])


def test_figures_of_variants(folder: Path) -> None:
    problem = build_problem(load_project(folder))
    small, large = problem.operator_by_name["detect"].variants
    assert small.service["box"] == {1: ServiceTime(pytest.approx(0.03), pytest.approx(0.03))}
    quantiles = ((0.5, pytest.approx(0.0048)), (0.9, pytest.approx(0.006)))
    assert small.service["gpu"] == {1: ServiceTime(pytest.approx(0.005), pytest.approx(0.005), quantiles)}
    assert small.memory_bytes == {"gpu": 40 * 2**20}
    assert small.message_bytes == {"read": 10 * 1024}
    assert set(large.service) == {"gpu"}
    assert set(large.service["gpu"]) == {1, 8}  # rows are fanned out, but no model has to count them
    assert large.message_bytes == {"read": 12 * 1024}
    assert problem.operator_by_name["label"].variants[0].message_bytes == {}


BATCHES = "profiles.operators.read.cnn.latency={box: {1: {mean: 8 ms, memory: 1 GiB}, 4: {mean: 16 ms, memory: %s}}}"


@pytest.mark.parametrize(
    ("options", "sizes", "memory_gib"),
    [
        ([BATCHES % "2 GiB"], {1, 4}, 2.0),
        ([BATCHES % "2 GiB", "limits.batch=3"], {1}, 1.0),
        ([BATCHES % "2 GiB", "operators.read.batch=1"], {1}, 1.0),
        ([BATCHES % "2 GiB", "operators.detect.batch=1"], {1, 4}, 2.0),
        ([BATCHES % "5 GiB"], {1}, 1.0),  # a box has 4 GiB
        ([(BATCHES % "2 GiB").replace("16 ms", "31.9 ms")], {1, 4}, 1.0),  # saves too little to be used
    ],
)
def test_batches_are_bounded_and_counted_in_memory(
    folder: Path, options: list[str], sizes: set[int], memory_gib: float
) -> None:
    (variant,) = build_problem(load_project(folder, ["limits.batch=8", *options])).operator_by_name["read"].variants
    assert set(variant.service["box"]) == sizes
    assert variant.memory_bytes["box"] == memory_gib * 2**30


def test_pools_share_a_type_have_their_own_sharing_and_can_be_taken_out(folder: Path) -> None:
    extra = "workers.spot={tier: cloud, price: 0.2 USD/h, type: t4, sharing: exclusive, speed: 0.5}"
    problem = build_problem(load_project(folder, [extra, "workers.gpu.count=0", "limits.load_from=mean"]))
    assert [pool.name for pool in problem.pools] == ["box", "spot"]
    assert problem.pool_by_name["spot"].sharing is Sharing.EXCLUSIVE
    assert problem.pool_by_name["spot"].speed == 0.5
    assert set(problem.operator_by_name["detect"].variants[1].service) == {"spot"}


def test_load_from_a_percentile_and_a_mean_from_percentiles() -> None:
    figures = BatchProfile(p50=0.010, p75=0.012, p90=0.015)
    time = service_time(figures, "p75")
    assert time.load_s == 0.012
    assert time.quantiles == ((0.5, 0.010), (0.75, 0.012), (0.9, 0.015))
    assert time.mean_s == pytest.approx(0.5 * 0.010 + 0.25 * 0.011 + 0.15 * 0.0135 + 0.1 * 0.016)
    assert service_time(BatchProfile(p90=0.015), "p90").mean_s == 0.015


def test_three_forms_of_accuracy(folder: Path) -> None:
    problem = build_problem(load_project(folder))
    assert problem.accuracy == EndToEnd(("detect",), {("small",): 91.5, ("large",): 95.0})
    independent = "profiles.accuracy={independent: {detect: {small: 91, large: 95}, read: {cnn: 99 %}}}"
    problem = build_problem(load_project(folder, [independent]))
    assert problem.accuracy == Independent({"detect": {"small": 91.0, "large": 95.0}, "read": {"cnn": 99.0}})
    rows = "read: {cnn: [{inputs: [91], output: 88}, {inputs: [95], output: 93}]}"
    per_operator = f"profiles.accuracy={{per_operator: {{detect: {{small: 91, large: 95}}, {rows}}}}}"
    problem = build_problem(load_project(folder, [per_operator]))
    assert isinstance(problem.accuracy, PerOperator)
    assert problem.accuracy.inputs == {"detect": (), "read": ("detect",)}
    assert problem.accuracy.tables["read"]["cnn"] == (AccuracyRow((91.0,), 88.0), AccuracyRow((95.0,), 93.0))
    assert problem.accuracy.value({"detect": "large", "read": "cnn", "label": "rules"}) == 93


def test_fewer_variants_leave_rows_of_the_others_out(folder: Path) -> None:
    problem = build_problem(load_project(folder, ["operators.detect.variants=[large]"]))
    assert problem.accuracy == EndToEnd((), {(): 95.0})
    assert problem.accuracy.value({"detect": "large", "read": "cnn", "label": "rules"}) == 95


def test_unknown_accuracy(folder: Path) -> None:
    problem = build_problem(load_project(folder, ["profiles.accuracy=null", "slo.accuracy=null"]))
    assert problem.accuracy.value({"detect": "large", "read": "cnn", "label": "rules"}) is None


def test_planning_needs_profiles(folder: Path) -> None:
    with pytest.raises(DocumentError, match="planning needs profiles"):
        build_problem(load_project(folder, profiles=False))


def measured() -> ProfilesDocument:
    """A document as a profiler builds it: SI numbers."""
    figures = BatchProfile(mean=0.0081, p50=0.008, p90=0.0084, p99=0.009, memory=40 * 2**20, noise=0.031)
    return ProfilesDocument(
        machine={"cpu": "some", "cores": 2},
        hop=0.0009,
        operators={
            "detect": {
                "small": VariantProfile(message={"*": 10240.0}, latency={"box": {1: figures, 8: figures}}),
                "large": VariantProfile(message={"read": 12288.0}, latency={"t4": {1: BatchProfile(mean=0.02)}}),
            }
        },
        accuracy=AccuracyProfile(end_to_end=(MeasuredSelection(selection={"detect": "small"}, accuracy=91.5),)),
    )


def test_profiles_are_written_in_human_units(tmp_path: Path) -> None:
    path = tmp_path / "profiles.yaml"
    write_profiles(path, measured())
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# Written by `jellybean profile`")
    assert "hop: 0.9 ms" in text or "hop: 900 us" in text
    assert "1: {mean: 8.1 ms, p50: 8 ms, p90: 8.4 ms, p99: 9 ms, memory: 40 MiB, noise: 3.1 %}" in text
    assert "message: 10 KiB" in text
    assert "t4: 20 ms" in text
    assert "- {selection: {detect: small}, accuracy: 91.5}" in text
    assert [item.name for item in tmp_path.iterdir()] == ["profiles.yaml"]


def read(folder: Path) -> ProfilesDocument:
    project: Project = load_project(folder)
    assert project.profiles is not None
    return project.profiles


def test_written_profiles_read_back(folder: Path) -> None:
    before = read(folder)
    write_profiles(folder / "profiles.yaml", before)
    once = read(folder)
    write_profiles(folder / "profiles.yaml", once)
    assert read(folder) == once
    assert profiles_text(once) == profiles_text(before)
    assert once.operators["detect"]["large"].latency["t4"][8].p99_s == pytest.approx(0.12)


def test_per_operator_accuracy_is_written_and_read(folder: Path) -> None:
    points = (AccuracyPoint(inputs=(91.0,), output=88.0), AccuracyPoint(inputs=(95.0,), output=93.25))
    tables = {
        "detect": {"small": (AccuracyPoint(output=91.0),), "large": (AccuracyPoint(output=95.0),)},
        "read": {"cnn": points},
    }
    accuracy = AccuracyProfile(per_operator=tables)
    write_profiles(folder / "profiles.yaml", read(folder).model_copy(update={"accuracy": accuracy}))
    assert read(folder).accuracy == accuracy
    assert "small: 91\n" in (folder / "profiles.yaml").read_text(encoding="utf-8")


seconds = st.floats(min_value=1e-7, max_value=1e4)


@given(
    mean=seconds, quantiles=st.lists(seconds, min_size=3, max_size=3), size=st.floats(0, 1e12), noise=st.floats(0, 3)
)
def test_any_measurement_reads_back_nearly(mean: float, quantiles: list[float], size: float, noise: float) -> None:
    p50, p90, p99 = sorted(quantiles)
    figures = BatchProfile(mean=mean, p50=p50, p90=p90, p99=p99, memory=size, noise=noise)
    dumped = figures.model_dump(mode="json", by_alias=True, exclude_none=True, context={"digits": 7})
    back = BatchProfile.model_validate(dumped, context={"document": True}, by_alias=True, by_name=False)
    for name, value in figures.model_dump().items():
        assert getattr(back, name) == (value if value is None else pytest.approx(value, rel=1e-6, abs=1e-9)), name


def test_where_operators_and_data_may_be(folder: Path) -> None:
    stays = ["sources.camera.stays_in=[edge]", "operators.read.tiers=[edge, cloud]"]
    problem = build_problem(load_project(folder, stays))
    assert problem.operator_by_name["read"].tiers == ("edge", "cloud")
    from_camera = [edge for edge in problem.edges if edge.upstream == "camera"]
    assert [edge.tiers for edge in from_camera] == [("edge",)] * len(from_camera)
    assert all(edge.tiers is None for edge in problem.edges if edge.upstream != "camera")


def test_a_delay_for_batches_is_read(folder: Path) -> None:
    problem = build_problem(load_project(folder, ["operators.read.batch_delay=5ms"]))
    assert {name: one.batch_delay_s for name, one in problem.operator_by_name.items() if one.batch_delay_s} == {
        "read": 0.005
    }


def loaded(folder: Path, *overrides: str) -> Project:
    """The project of the fixture with `--set` options."""
    return load_project(folder, overrides)


def test_a_mean_accuracy_has_a_short_and_a_long_form(folder: Path) -> None:
    short = build_problem(loaded(folder, "slo.accuracy={mean: 91, least: 85}"))
    long = build_problem(loaded(folder, "slo.accuracy=85", "slo.mean_accuracy=91"))
    assert short.slo == long.slo == Slo(85.0, pytest.approx(0.8), 10.0, 91.0)
    assert short.may_mix
    only = build_problem(loaded(folder, "slo.accuracy={mean: 91 %}")).slo
    assert (only.accuracy, only.mean_accuracy) == (None, 91.0)


@pytest.mark.parametrize("text", ["{average: 90}", "{}", "{mean: 90, most: 95}"])
def test_other_keys_of_an_accuracy_are_told(folder: Path, text: str) -> None:
    with pytest.raises(DocumentError, match="accuracy takes mean, least and penalty"):
        loaded(folder, f"slo.accuracy={text}")


def test_the_objective_is_the_cost_unless_stated(folder: Path) -> None:
    assert not build_problem(loaded(folder)).may_mix
    found = build_problem(loaded(folder, "objective=mean_accuracy"))
    assert (found.objective, found.may_mix) == (Objective.MEAN_ACCURACY, True)
    with pytest.raises(DocumentError, match="objective"):
        loaded(folder, "objective=speed")


def test_automatic_utilisation_is_higher_where_a_p99_is_simulated(folder: Path) -> None:
    assert build_problem(loaded(folder, "limits.utilisation=auto")).utilisation == 0.95
    assert build_problem(loaded(folder, "limits.utilisation=auto", "slo.latency_p99=null")).utilisation == 0.8
    for wrong in ("0", "-0.1", "1.2", "often"):
        with pytest.raises(DocumentError, match="utilisation"):
            loaded(folder, f"limits.utilisation={wrong}")


def test_reserved_workers_cost_a_plan_nothing_and_spot_workers_are_known(folder: Path) -> None:
    problem = build_problem(loaded(folder))
    name, price = problem.pools[0].name, problem.pools[0].price_usd_per_h
    reserved = build_problem(loaded(folder, f"workers.{name}.terms=reserved"))
    assert (reserved.pools[0].price_usd_per_h, reserved.pools[0].paid_usd_per_h) == (0.0, price)
    assert reserved.paid_usd_per_h == pytest.approx(price * reserved.pools[0].count)
    spot = build_problem(loaded(folder, f"workers.{name}.terms=spot", "slo.survive=1 spot worker"))
    assert (spot.pools[0].terms, spot.pools[0].price_usd_per_h) == (Terms.SPOT, price)
    assert spot.slo.survives == (LossKind.SPOT_WORKER,)
    for wrong in ("terms=free", "billing=0 s"):
        with pytest.raises(DocumentError, match=wrong.partition("=")[0]):
            loaded(folder, f"workers.{name}.{wrong}")


def test_a_penalty_makes_a_mean_accuracy_soft(folder: Path) -> None:
    slo = build_problem(loaded(folder, "slo.accuracy={mean: 92, penalty: 0.10 USD/h}")).slo
    assert (slo.mean_accuracy, slo.penalty_usd_per_h, slo.hard_mean) == (92.0, 0.10, None)
    for wrong, said in (
        ("slo.accuracy={least: 80, penalty: 0.10 USD/h}", "a penalty is for a mean accuracy"),
        ("slo.penalty=0.10 USD/h", "a penalty is for a mean accuracy"),
        ("slo.accuracy={mean: 92, penalty: 0 USD/h}", "penalty"),
    ):
        with pytest.raises(DocumentError, match=said):
            loaded(folder, wrong)


def test_a_penalty_makes_a_p99_latency_soft(folder: Path) -> None:
    slo = build_problem(loaded(folder, "slo.latency_p99={target: 300 ms, penalty: 0.02 USD/h per 10 ms}")).slo
    assert (slo.latency_p99_s, slo.soft_latency_p99_s, slo.latency_penalty_usd_per_h_per_s) == (None, 0.3, 2.0)
    assert slo.is_soft and slo.latency_penalty(0.25) == 0.0
    assert slo.latency_penalty(0.4) == pytest.approx(0.2)
    flat = ("slo.latency_p99=null", "slo.soft_latency_p99=300 ms", "slo.latency_penalty=2 USD/h per s")
    assert build_problem(loaded(folder, *flat)).slo == slo
    assert build_problem(loaded(folder, "slo.latency_p99={target: 1 s, penalty: 0.5 USD/d per ms}")).slo.is_soft
    hard = build_problem(loaded(folder, "slo.latency_p99={target: 1 s, penalty: 1 USD/h per s}", "slo.latency_p99=2 s"))
    assert (hard.slo.latency_p99_s, hard.slo.is_soft) == (2.0, False)


def test_workers_may_be_as_busy_for_a_soft_p99_as_for_a_hard_one(folder: Path) -> None:
    soft = "slo.latency_p99={target: 1 s, penalty: 1 USD/h per s}"
    assert build_problem(loaded(folder, "limits.utilisation=auto", soft)).utilisation == 0.95


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("latency_p99={target: 300 ms}", "a soft p99 latency has no penalty; write latency_p99: {target: 300 ms"),
        ("latency_p99={penalty: 1 USD/h per s}", "the latency penalty has no target"),
        ("latency_p99={}", "latency_p99 takes target and penalty"),
        ("latency_p99={mean: 300 ms, penalty: 1 USD/h per s}", "latency_p99 takes target and penalty, not 'mean'"),
        ("latency_p99={target: 300, penalty: 1 USD/h per s}", "300 has no unit"),
        ("latency_p99={target: 0 s, penalty: 1 USD/h per s}", "greater than 0|above 0"),
        ("latency_p99={target: 1 s, penalty: 0 USD/h per s}", "greater than 0|above 0"),
        ("latency_p99={target: 1 s, penalty: 0.02 USD/h}", "does not say per how much time .*; write for example 0.02"),
        ("latency_p99={target: 1 s, penalty: 0.02}", "is not a price per hour for a length of time"),
        ("latency_p99={target: 1 s, penalty: [1]}", "a list is not a price per hour for a length of time"),
        ("latency_p99={target: 1 s, penalty: 1 USD per s}", "'1 USD' does not have the unit of a price per hour"),
        ("latency_p99={target: 1 s, penalty: 1 USD/h per GiB}", "'1 GiB'|'GiB' is not a duration"),
        ("latency_p99={target: 1 s, penalty: 1 USD/h per 0 s}", "'0 s' is no length of time"),
        ("latency_p99={target: 1 s, penalty: -1 USD/h per s}", "must not be negative"),
        ("latency_penalty=1 USD/h per s", "the latency penalty has no target"),
        ("soft_latency_p99=300 ms", "a soft p99 latency has no penalty"),
    ],
)
def test_what_a_soft_p99_latency_lacks_is_told(folder: Path, wrong: str, said: str) -> None:
    with pytest.raises(DocumentError, match=said):
        loaded(folder, "slo.latency_p99=null", f"slo.{wrong}")


def test_what_a_soft_p99_latency_cannot_stand_beside_is_told(folder: Path) -> None:
    soft = "slo.latency_p99={target: 300 ms, penalty: 1 USD/h per s}"
    with pytest.raises(DocumentError, match="the soft p99 latency is stated twice"):
        loaded(folder, soft, "slo.soft_latency_p99=1 s")
    flat = ("slo.latency_p99=1 s", "slo.soft_latency_p99=300 ms", "slo.latency_penalty=2 USD/h per s")
    with pytest.raises(DocumentError, match="the p99 latency is either hard or soft"):
        loaded(folder, *flat)


def test_a_spare_worker_is_asked_for_in_words(folder: Path) -> None:
    assert build_problem(loaded(folder)).slo.survives == ()
    assert build_problem(loaded(folder, "slo.survive=1 worker")).slo.survives == (LossKind.WORKER,)
    every = (LossKind.WORKER, LossKind.SITE, LossKind.LINK)  # in the order of kinds
    assert build_problem(loaded(folder, "slo.survive=[1 link, 1 worker, 1 site]")).slo.survives == every
    for wrong in ("2 workers", "1 tier", "true", "1", "[1 link, 1]"):
        with pytest.raises(DocumentError, match="cannot be planned for; write 1 worker"):
            loaded(folder, f"slo.survive={wrong}")
