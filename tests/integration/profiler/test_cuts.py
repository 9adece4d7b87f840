"""Cuts from the profiler to the plan: stages measured, written, checked, and chosen where they pay."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ruamel.yaml import YAML

from jellybean.documents import Project, build_problem, load_project
from jellybean.errors import DocumentError, StaleProfilesError
from jellybean.planning import PlanFile, current_plan, plan_project, replan_project
from jellybean.profiler import profile
from jellybean.report.plans.plan_view import cut_lines
from jellybean.serving import Client
from jellybean.serving.local import launcher
from jellybean.serving.local.running import down
from jellybean_agent import Executor
from jellybean_solver import (
    Form,
    Variant,
    Verdict,
    as_planned,
    evaluate,
    planned_cuts,
    solve,
    to_document,
)
from jellybean_solver.model.forms import in_forms
from tests.support.known_hop import keep_hop
from tests.unit.pipeline.onnx_models import conv_net, skip_net

WORKFLOW = """\
kind: Workflow
name: cuts
sources:
  picture: {{tier: edge, rate: 5/s, message: 1 KiB, arrivals: periodic, inputs: data/heldout.npz#picture}}
  a: {{tier: edge, rate: 5/s, message: 24 B, arrivals: periodic, inputs: data/heldout.npz#a}}
  b: {{tier: edge, rate: 5/s, message: 16 B, arrivals: periodic, inputs: data/heldout.npz#b}}
operators:
  look: {{inputs: [picture], cuts: 2, variants: {{net: {{model: models/conv.onnx, sha256: {conv}}}}}}}
  think: {{inputs: [a, b], variants: {{net: {{model: models/skip.onnx, sha256: {skip}, cuts: 1}}}}}}
"""
INFRASTRUCTURE = """\
kind: Infrastructure
tiers: [edge, cloud]
workers:
  box: {tier: edge, count: 1, price: 0.01 USD/h, speed: 0.5}
  cloud: {tier: cloud, count: 20, price: 0.02 USD/h, speed: 1}
links:
  - {from: edge, to: cloud, price: 4 USD/GiB}
"""


pytestmark = [pytest.mark.slow, pytest.mark.alone]


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that was profiled, quickly."""
    found = tmp_path_factory.mktemp("cuts")
    (found / "models").mkdir()
    (found / "data").mkdir()
    hashes = {}
    for name, proto in (("conv", conv_net()), ("skip", skip_net())):
        content = proto.SerializeToString()
        (found / f"models/{name}.onnx").write_bytes(content)
        hashes[name] = hashlib.sha256(content).hexdigest()
    rng = np.random.default_rng(0)
    shapes = {"picture": (12, 1, 16, 16), "a": (12, 6), "b": (12, 4)}
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    np.savez(found / "data/heldout.npz", **arrays)
    (found / "workflow.yaml").write_text(WORKFLOW.format(**hashes), encoding="utf-8")
    (found / "infrastructure.yaml").write_text(INFRASTRUCTURE, encoding="utf-8")
    keep_hop(found)  # else a noisy one is measured again by the profile that goes on
    profile(load_project(found, profiles=False), seconds_per_point=0.02)
    return found


@pytest.fixture
def folder(profiled: Path, tmp_path: Path) -> Path:
    """The project for one test, which may change it: that of a module is read alone."""
    return shutil.copytree(profiled, tmp_path / "cuts")


def test_profile_knows_the_stages(folder: Path) -> None:
    project = load_project(folder)
    cuts = cuts_of(project)
    assert 1 <= len(cuts["look"]) <= 2
    for name, found in cuts.items():
        for cut in found:
            head, tail = stages(cut)
            assert head.stage is not None
            assert tail.stage is not None
            assert head.stage.last + 1 == tail.stage.first
            assert set(head.service) == set(tail.service) == {"box", "cloud"}
            assert head.message_bytes[name] > 0
            assert all(size > 0 for size in head.memory_bytes.values())
    assert all({edge.upstream for edge in cut.operators[0].inputs} <= {"a", "b"} for cut in cuts["think"])


def cuts_of(project: Project) -> dict[str, tuple[Form, ...]]:
    return {one.name: one.forms for one in build_problem(project).operators if one.forms}


def stages(cut: Form) -> tuple[Variant, Variant]:
    """The head and the tail of a cut model."""
    head, tail = cut.operators
    return head.variants[0], tail.variants[0]


def test_stages_in_a_row_are_the_whole_model(folder: Path) -> None:
    with np.load(folder / "data/heldout.npz") as data:
        pictures = data["picture"]
    sha256 = hashlib.sha256((folder / "models/conv.onnx").read_bytes()).hexdigest()
    whole = Executor(folder / "models/conv.onnx", sha256, ["picture"], batch=3).run((pictures[:3],)).outputs
    for cut in cuts_of(load_project(folder))["look"]:
        first, second = stages(cut)
        assert first.model is not None
        assert second.model is not None
        head = Executor(folder / first.model.path, first.model.sha256, ["picture"], batch=3)
        tail = Executor(folder / second.model.path, second.model.sha256, ["look.head"], batch=3)
        (sent,) = head.run((pictures[:3],)).outputs.values()
        assert sent.nbytes == 3 * first.message_bytes["look"]
        np.testing.assert_allclose(tail.run((sent,)).outputs["scores"], whole["scores"], rtol=0, atol=1e-5)


def layers_of_a_millisecond(folder: Path) -> list[str]:
    """Settings by which each layer of `look` takes a millisecond: that of models so small is mostly noise."""
    net = load_project(folder).profiles.operators["look"]["net"]
    layers = {"": net.cuts[0].of}
    for number, cut in enumerate(net.cuts):
        layers |= {f".cuts.{number}.head": cut.layers, f".cuts.{number}.tail": cut.of - cut.layers}
    return [
        f"profiles.operators.look.net{part}.latency.{worker}.1={{mean: {count} ms}}"
        for part, count in layers.items()
        for worker in ("box", "cloud")
    ]


def test_plan_cuts_where_it_pays(folder: Path) -> None:
    """Pictures may not leave the edge, where the whole model does not fit: only a cut one can be served."""
    times = layers_of_a_millisecond(folder)
    cuts = cuts_of(load_project(folder, times))
    head = min(stages(cut)[0].service["box"][1].load_s for cut in cuts["look"])
    whole = 0.004
    rate = 0.8 / (0.4 * head + 0.6 * whole)  # of the box: a head fits, all of the model does not
    settings = [*times, f"sources.picture.rate={rate:.6f}/s", "limits.batch=1", "sources.picture.stays_in=[edge]"]
    project = load_project(folder, settings)
    problem = build_problem(project)
    planned = plan_project(project)
    plan = planned.plan
    assert plan is not None
    (cut,) = [one for one in planned_cuts(plan) if one.operator == "look"]
    assert planned.status == "optimal"
    assert evaluate(as_planned(problem, plan), plan).complaints == ()
    (told,) = [line for line in cut_lines(plan) if line.startswith("look")]
    assert told.startswith(f"look is cut: first {cut.layers} of net's 4 layers in edge, the rest in ")
    assert "cloud" in told
    uncut = {found.name: found for found in planned.baselines}["no model cut"]
    assert uncut.cost_usd_per_h is None
    PlanFile(folder).write(planned)
    assert {one.name for one in PlanFile(folder).load().plan.operators} >= {"look", "look.head"}
    assert current_plan(project) == (plan, "")
    change = replan_project(project, PlanFile(folder).load(), horizon_h=1.0)
    assert change.decision.verdict is Verdict.KEEP
    whole_plan = plan_project(load_project(folder, [*settings, "operators.look.cuts=0"]))
    assert whole_plan.plan is None
    assert whole_plan.reasons


def test_what_was_cut_from_another_model_is_refused(folder: Path, tmp_path: Path) -> None:
    project = load_project(folder)
    stage = stages(cuts_of(project)["look"][0])[0].model
    assert stage is not None
    kept = (folder / stage.path).read_bytes()
    try:
        (folder / stage.path).write_bytes(kept + b"\0")
        with pytest.raises(DocumentError, match=r"cuts\.0\.head.*run: jellybean profile"):
            load_project(folder)
        assert load_project(folder, ["operators.look.cuts=0"])
        (folder / stage.path).unlink()
        with pytest.raises(DocumentError, match="there is no file"):
            load_project(folder)
    finally:
        (folder / stage.path).write_bytes(kept)
    text = (folder / "profiles.yaml").read_text(encoding="utf-8")
    whole = YAML(typ="safe").load(text)["operators"]["look"]["net"]["cuts"][0]["whole"]
    try:
        (folder / "profiles.yaml").write_text(text.replace(f"whole: {whole}", f"whole: {'f' * 64}"), encoding="utf-8")
        with pytest.raises(StaleProfilesError, match=f"look net .* was {'f' * 12}, is now .* stale: cuts of look net"):
            build_problem(load_project(folder))
    finally:
        (folder / "profiles.yaml").write_text(text, encoding="utf-8")


def test_cuts_that_were_never_measured(folder: Path) -> None:
    with pytest.raises(DocumentError, match="none was measured"):
        load_project(folder, [f"operators.think.variants.net.cuts={2}", "profiles.operators.think.net.cuts=null"])
    for wrong in ("-1", "yes", "1.5", "51"):
        with pytest.raises(DocumentError, match="is not a number of cuts"):
            load_project(folder, [f"operators.look.cuts={wrong}"])


def test_an_interrupted_profile_goes_on(folder: Path) -> None:
    """Layers, stages and their figures come from the cache, and the files are the same."""
    before = (folder / "profiles.yaml").read_text(encoding="utf-8")
    (folder / "profiles.yaml").unlink()
    lines = (folder / ".jellybean/profile-cache/finished.jsonl").read_text(encoding="utf-8").splitlines()
    profile(load_project(folder, profiles=False), seconds_per_point=0.02)
    after = (folder / "profiles.yaml").read_text(encoding="utf-8")
    assert [line for line in after.splitlines() if "date:" not in line] == [
        line for line in before.splitlines() if "date:" not in line
    ]
    assert len((folder / ".jellybean/profile-cache/finished.jsonl").read_text(encoding="utf-8").splitlines()) == len(
        lines
    )
    assert all(json.loads(line)["key"] for line in lines)


def test_served_cut_as_whole(folder: Path) -> None:
    """Pictures stay at the edge, where the tail may not run: what is answered is what the whole model says."""
    settings = ["sources.picture.stays_in=[edge]", "workers.box.memory=1 GiB"]
    settings += [f"sources.{name}.rate=0.1/s" for name in ("picture", "a", "b")]  # fits, whatever was measured
    with np.load(folder / "data/heldout.npz") as data:
        requests = {name: data[name][:3] for name in ("picture", "a", "b")}
    sha256 = hashlib.sha256((folder / "models/conv.onnx").read_bytes()).hexdigest()
    whole = Executor(folder / "models/conv.onnx", sha256, ["picture"], batch=3).run((requests["picture"],)).outputs
    project = load_project(folder, settings)
    cut = cuts_of(project)["look"][-1]
    problem = in_forms(build_problem(project), {"look": cut})
    assert problem is not None
    apart = {"look.head": ("edge",), "look": ("cloud",)}
    operators = tuple(replace(one, tiers=apart.get(one.name)) for one in problem.operators)
    plan = solve(replace(problem, operators=operators)).plan
    assert plan is not None
    assert [one.layers for one in planned_cuts(plan)] == [stage.last if (stage := stages(cut)[0].stage) else 0]
    launcher.up(folder, to_document(plan))
    try:
        with Client.of(folder) as client:
            for row in range(3):
                answer = client.infer({name: rows[row : row + 1] for name, rows in requests.items()})
                assert set(answer) == {"look", "think"}
                np.testing.assert_allclose(answer["look"], whole["scores"][row : row + 1], rtol=0, atol=1e-5)
    finally:
        down(folder, timeout_s=1.0)
