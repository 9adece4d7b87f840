"""Cascades in documents: conditions, what cannot be one, and the ordinary workflow that each of them is."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from onnx import helper
from ruamel.yaml import YAML

from jellybean.documents import build_problem, load_any_project, load_project, profiles_of, with_cascade
from jellybean.documents.cascades.cascade import plain_workflow
from jellybean.documents.cascades.expansion import cascade_workflow
from jellybean.documents.schema.cascade import Condition, parse_condition
from jellybean.documents.writer import profiles_text
from jellybean.errors import DocumentError
from jellybean.planning import planned_cascades
from jellybean.quantities import InvalidValueError
from jellybean_solver import EdgeKind, Problem, combine_workflows, evaluate, solve
from jellybean_solver.model.forms import Choice, choices, in_forms
from tests.support import tiny_models
from tests.support.unlike_sites import write_shops

WORKFLOW = """\
kind: Workflow
name: doors
sources:
  camera: {tier: edge, rate: 10/s, message: 50 KiB}
operators:
  scale: {inputs: [camera], variants: [plain]}
  look:
    inputs: [{from: scale, output: pixels, stays_in: [edge, cloud]}]
    tiers: [edge, cloud]
    variants:
      small: {}
      large: {}
      both: {cascade: {first: small, then: large, when: "confidence < 0.8"}}
  tell: {inputs: [{from: look, output: label}], variants: [plain]}
slo: {accuracy: 90}
"""
INFRASTRUCTURE = """\
kind: Infrastructure
tiers: [edge, cloud]
workers:
  box: {tier: edge, count: 1, price: 0.05 USD/h}
  gpu: {tier: cloud, count: 2, price: 0.50 USD/h}
links:
  - {from: edge, to: cloud, price: 0.10 USD/GiB}
"""
PROFILES = """\
kind: Profiles
operators:
  scale:
    plain: {message: {look: 40 KiB}, latency: {box: 1 ms, gpu: 1 ms}}
  look:
    small: {message: 1 KiB, latency: {box: 20 ms, gpu: 5 ms}}
    large: {message: 1 KiB, latency: {gpu: 20 ms}}
  tell:
    plain: {latency: {box: 1 ms, gpu: 1 ms}}
cascades:
  look:
    both:
      operators:
        look.first: {small: {message: 2 KiB, latency: {box: 20 ms, gpu: 5 ms}}}
        look.unsure: {both: {message: 40 KiB, latency: {box: 1 ms, gpu: 1 ms}, children: [75 %, 25 %]}}
        look.then: {large: {message: 3 KiB, latency: {gpu: 20 ms}}}
        look: {both: {message: 1 KiB, latency: {box: 1 ms, gpu: 1 ms}}}
      accuracy: {end_to_end: [{selection: {}, accuracy: 94}]}
accuracy:
  end_to_end:
    - {selection: {look: small}, accuracy: 85}
    - {selection: {look: large}, accuracy: 95}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with a cascade, planned by hand-written profiles."""
    write(tmp_path)
    return tmp_path


def write(folder: Path, workflow: str = WORKFLOW, profiles: str = PROFILES) -> None:
    (folder / "workflow.yaml").write_text(workflow, encoding="utf-8")
    (folder / "infrastructure.yaml").write_text(INFRASTRUCTURE, encoding="utf-8")
    (folder / "profiles.yaml").write_text(profiles, encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("confidence < 0.8", Condition("confidence", False, 0.8)),
        ("  softmax( scores )<.5 ", Condition("scores", True, 0.5)),
        ("logits/Softmax:0 < -2e-1", Condition("logits/Softmax:0", False, -0.2)),
    ],
)
def test_conditions(text: str, condition: Condition) -> None:
    assert parse_condition(text) == condition


@pytest.mark.parametrize(
    "text",
    [
        "",
        "confidence",
        "confidence > 0.8",
        "< 0.8",
        "a < b",
        "a < nan",
        "a < 0.8 or b < 1",
        "softmax(a) < 1.5",
        "f(a)<1",
    ],
)
def test_no_conditions(text: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        parse_condition(text)
    assert caught.value.hint


def test_a_cascade_is_an_ordinary_workflow(folder: Path) -> None:
    project = load_project(folder)
    assert list(project.workflow.operators["look"].variants) == ["small", "large"]
    (own,) = project.alternatives
    problem = build_problem(own)
    assert [operator.name for operator in problem.operators] == [
        "scale",
        "look.first",
        "look.unsure",
        "look.then",
        "look",
        "tell",
    ]
    assert {name: problem.rate_per_s[name] for name in ("look.first", "look.unsure", "look.then", "look")} == {
        "look.first": 10,
        "look.unsure": 10,
        "look.then": 2.5,
        "look": 10,
    }
    edges = {(edge.upstream, edge.downstream): edge for edge in problem.edges}
    assert edges["look.unsure", "look.then"].kind is EdgeKind.FAN_OUT
    assert edges["look.then", "look"].kind is EdgeKind.GATHER
    assert edges["look.first", "look.unsure"].output == "confidence"
    assert edges["scale", "look.unsure"].output == edges["scale", "look.first"].output == "pixels"
    assert edges["look.first", "look"].output == edges["look.then", "look"].output == "label"
    assert edges["look", "tell"].output is None  # the answer is the only output
    for pair in (("scale", "look.first"), ("scale", "look.unsure"), ("look.unsure", "look.then")):
        assert edges[pair].tiers == ("edge", "cloud")  # the same data, so that it may not leave either
    assert problem.message_bytes(edges["scale", "look.unsure"], {"scale": "plain"}) == 40 * 1024
    assert all(problem.operator_by_name[name].tiers == ("edge", "cloud") for name in ("look.unsure", "look.then"))
    selection = {"look.first": "small", "look.unsure": "both", "look.then": "large", "look": "both"}
    assert problem.accuracy.value(selection) == 94


def test_what_stays_in_a_tier_stays_there_when_it_is_passed_on(folder: Path) -> None:
    text = WORKFLOW.replace("message: 50 KiB", "message: 50 KiB, stays_in: [edge]").replace(
        "inputs: [{from: scale, output: pixels, stays_in: [edge, cloud]}]", "inputs: [camera]"
    )
    write(folder, text, PROFILES.replace("{look: 40 KiB}", "1 B"))
    (own,) = load_project(folder).alternatives
    edges = {(edge.upstream, edge.downstream): edge for edge in build_problem(own).edges}
    for pair in (("camera", "look.first"), ("camera", "look.unsure"), ("look.unsure", "look.then")):
        assert edges[pair].tiers == ("edge",)


def test_below_a_fan_out(folder: Path) -> None:
    """The operator may see the children of a fan-out; the cascade opens another in it."""
    text = WORKFLOW.replace("{from: scale, output: pixels,", "{from: scale, ratio: 3,").replace(
        "{from: look, output: label}", "{from: look, gather: true}"
    )
    write(folder, text)
    (own,) = load_project(folder).alternatives
    problem = build_problem(own)
    assert problem.rate_per_s["look.first"] == problem.rate_per_s["look.unsure"] == problem.rate_per_s["look"] == 30
    assert problem.rate_per_s["look.then"] == 7.5
    assert problem.rate_per_s["tell"] == pytest.approx(10)


CASCADE = 'both: {cascade: {first: small, then: large, when: "confidence < 0.8"}}'


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("first: small", "first: smal", r"'smal' is no variant of look.*did you mean 'small'"),
        ("then: large", "then: both", r"'both' is no variant of look that can be part of one.*small, large"),
        ("then: large", "then: small", r"both variants are the same"),
        ("confidence < 0.8", "confidence", r"'confidence' is not a condition"),
        (CASCADE, CASCADE.replace("{cascade", "{cuts: 2, cascade"), r"a cascade .* has no cuts of its own"),
        (", stays_in: [edge, cloud]}]", "}, camera]", r"look joins 2 inputs, and so cannot be a cascade"),
        ("{from: look, output: label}", "{from: look, ratio: 2}", r"look fans out, and so cannot be a cascade"),
        ("    tiers: [edge, cloud]\n", "    state: {by: stream, tensors: {a: b}}\n", r"look has a state"),
        (
            "  tell:",
            "  look.then: {inputs: [camera], variants: [plain]}\n  tell:",
            r"look\.then, but that name is in use",
        ),
        ("  tell:", "  more: {inputs: [look], variants: [plain]}\n  tell:", r"operators read unlike outputs of look"),
        ("small: {}", "small: {python: 'jellybean_agent.steps:argmax'}", r"one of its variants has a model, the other"),
    ],
)
def test_what_cannot_be_a_cascade(folder: Path, old: str, new: str, message: str) -> None:
    assert old in WORKFLOW
    write(folder, WORKFLOW.replace(old, new))
    with pytest.raises(DocumentError, match=message) as caught:
        load_project(folder, profiles=False)
    assert "workflow.yaml:" in str(caught.value)


def test_one_mistake_is_one_problem(folder: Path) -> None:
    """The profiles of a cascade that is written wrongly are not called superfluous."""
    write(folder, WORKFLOW.replace("first: small", "first: smal"))
    with pytest.raises(DocumentError) as caught:
        load_project(folder)
    assert [problem.path for problem in caught.value.problems] == ["operators.look.variants.both.cascade.first"]


def test_the_models_of_a_cascade_are_not_cut(folder: Path) -> None:
    cascade = load_project(folder).alternatives[0].cascade
    assert cascade is not None
    look = cascade.whole
    variants = {name: spec.model_copy(update={"cuts": 2}) for name, spec in look.variants.items()}
    operators = {**cascade.workflow.operators, "look": look.model_copy(update={"variants": variants, "cuts": 3})}
    written = replace(cascade, workflow=cascade.workflow.model_copy(update={"operators": operators}))
    document = cascade_workflow(written, plain_workflow(written.workflow), None)
    assert {spec.cuts_of(variant) for spec in document.operators.values() for variant in spec.variants} == {0}


def test_a_gather_cannot_be_one(folder: Path) -> None:
    text = WORKFLOW.replace("{from: scale, output: pixels, stays_in: [edge, cloud]}", "{from: cut, gather: true}")
    text = text.replace("  look:\n", "  cut: {inputs: [{from: scale, ratio: 2}], variants: [plain]}\n  look:\n")
    write(folder, text)
    with pytest.raises(DocumentError, match="look gathers, and so cannot be a cascade"):
        load_project(folder, profiles=False)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            PROFILES[PROFILES.index("cascades:") : PROFILES.index("accuracy:\n  end")],
            "",
            "both' of look, a cascade, has no",
        ),
        ("        look.unsure: ", "        look.unsur: ", "look.unsure"),
        (", children: [75 %, 25 %]", "", "missing key 'children'.*jellybean profile"),
        (
            "look.then: {large: {message: 3 KiB, latency: {gpu: 20 ms}}}",
            "look.then: {large: {latency: {gpu: 1 s}}}",
            "message",
        ),
        (", accuracy: 94}", ", accuracy: 94}, {selection: {}, accuracy: 95}", "the same selection as"),
        (
            "      accuracy: {end_to_end: [{selection: {}, accuracy: 94}]}\n",
            "",
            "the target is accuracy 90, but the profiles",
        ),
    ],
)
def test_what_the_profiles_lack(folder: Path, old: str, new: str, message: str) -> None:
    assert old in PROFILES
    write(folder, profiles=PROFILES.replace(old, new))
    with pytest.raises(DocumentError, match=message):
        load_project(folder)


def test_without_the_models_files_what_flows_must_be_stated(folder: Path) -> None:
    """Variants without models have nothing that flows."""
    assert build_problem(load_project(folder, files=False)) == build_problem(load_project(folder))
    models = "{model: models/NAME.onnx, sha256: " + 64 * "a" + "}"
    text = WORKFLOW
    for name in ("small", "large"):
        text = text.replace(f"{name}: {{}}", f"{name}: {models.replace('NAME', name)}")
    write(folder, text)
    with pytest.raises(DocumentError, match=r"what flows in it is read from them.*write `flows`"):
        load_project(folder, files=False)


def test_a_form_makes_the_problem_of_the_workflow_with_the_cascade(folder: Path) -> None:
    """In one workflow, and in one of several, whose names and accuracies it has then."""
    project = load_project(folder)
    (own,) = project.alternatives
    wanted = build_problem(own)
    assert [*map(chosen, choices(problem := build_problem(project)))] == [{}, {"look": "both"}]
    assert [*in_every_form(problem)][1] == wanted
    for name in ("doors", "gates"):
        (folder / "workflows" / name).mkdir(parents=True)
        for file in ("workflow.yaml", "profiles.yaml"):
            shutil.copy(folder / file, folder / "workflows" / name / file)
    (folder / "workflow.yaml").unlink()
    (folder / "profiles.yaml").unlink()
    several = load_any_project(folder)
    *_, found = in_every_form(build_problem(several))
    assert found == combine_workflows(several.name, {"doors": wanted, "gates": wanted})


def chosen(choice: Choice) -> dict[str, str]:
    return {name: form.variant for name, form in choice.items()}


def in_every_form(problem: Problem) -> Iterator[Problem | None]:
    return (in_forms(problem, choice) for choice in choices(problem))


def test_profiles_are_written_and_read_again(folder: Path) -> None:
    profiles = load_project(folder).profiles
    assert profiles is not None
    written = YAML(typ="safe").load(profiles_text(profiles))
    assert written["cascades"]["look"]["both"]["operators"]["look.unsure"]["both"]["children"] == ["75 %", "25 %"]
    (folder / "profiles.yaml").write_text(profiles_text(profiles), encoding="utf-8")
    assert load_project(folder).profiles == profiles
    cascade = load_project(folder).alternatives[0].cascade
    assert cascade is not None
    assert with_cascade(profiles, cascade, profiles_of(profiles, cascade)) == profiles


def test_models_that_do_not_go_together(folder: Path) -> None:
    """The shapes of what flows in a cascade are read from its models."""
    hashes = {
        "small": tiny_models.scale(folder / "models/small.onnx", 1.0),
        "large": tiny_models.scale(folder / "models/large.onnx", 2.0),
        "wide": tiny_models.scale(folder / "models/wide.onnx", 2.0, "n"),
        "deep": tiny_models.save(
            folder / "models/deep.onnx",
            [helper.make_node("Relu", ["x"], ["y"])],
            {"x": ["n", "m", 4]},
            ("y", ["n", "m", 4]),
        ),
    }
    models = {name: f"{name}: {{model: models/{name}.onnx, sha256: {digest}}}" for name, digest in hashes.items()}
    start = WORKFLOW[: WORKFLOW.index("operators:")]

    def problem_of(then: str, when: str) -> str:
        variants = ", ".join((models["small"], models[then]))
        cascade = f'both: {{cascade: {{first: small, then: {then}, when: "{when}"}}}}'
        look = f"look: {{inputs: [camera], variants: {{{variants}, {cascade}}}}}"
        write(folder, f"{start}operators:\n  {look}\n  tell: {{inputs: [look], variants: [plain]}}\n")
        try:
            (own,) = load_project(folder, profiles=False).alternatives
        except DocumentError as error:
            return str(error)
        step = own.workflow.operators["look.unsure"].variants["both"]
        return f"{step.arguments['shape']} {step.arguments['classes']} {step.arguments['below']:g}"

    assert problem_of("large", "y < 0.5") == "[4] [4] 0.5"
    assert problem_of("wide", "y < 0.5") == "[-1] [4] 0.5"  # sizes in which they differ are open
    assert "operators.look.variants.both.cascade: small has no output 'z'" in problem_of("large", "z < 0.5")
    assert "the second float32 [n, n, 4]" in problem_of("deep", "y < 0.5")


def test_sites_that_differ_have_the_cascade_each_on_its_own_workers(tmp_path: Path) -> None:
    """The problem of each site is that of a workflow written for it alone."""
    shops = write_shops(tmp_path)
    cascade = "variants: {small: {}, large: {}, both: {cascade: {first: small, then: large, when: a < 1}}}"
    for file, old, new in (
        ("workflow.yaml", "variants: [small, large]", cascade),
        ("profiles.yaml", "accuracy:\n", f"{SHOP_CASCADE}accuracy:\n"),
    ):
        text = (shops / file).read_text(encoding="utf-8")
        (shops / file).write_text(text.replace(old, new, 1), encoding="utf-8")
    problem = build_problem(load_any_project(shops))
    forms = {one.name: form for one in problem.operators for form in one.forms}
    assert list(forms) == ["berlin/detect", "paris/detect", "rome/detect"]
    first, unsure, then, answer = forms["paris/detect"].operators
    assert [edge.upstream for edge in (*first.inputs, *unsure.inputs)] == [
        "paris/camera",
        "paris/detect.first",
        "paris/camera",
    ]
    assert {pool for one in (first, unsure, then, answer) for pool in one.variants[0].service} == {"gpu", "paris/box"}
    plan = solve(problem).plan
    assert plan is not None
    assert evaluate(problem, plan).complaints == ()
    assert [one.operator for one in planned_cascades(plan)] == ["paris/detect"]
    costs = [
        cost
        for one in in_every_form(problem)
        if one is not None and (own := solve(one).plan) is not None
        for cost in [own.cost.total_usd_per_h]
    ]
    assert plan.cost.total_usd_per_h == pytest.approx(min(costs))


SHOP_CASCADE = """\
cascades:
  detect:
    both:
      operators:
        detect.first: {small: {message: 4 KiB, latency: {box: 60 ms, gpu: 6 ms}}}
        detect.unsure: {both: {message: 60 KiB, latency: {box: 1 ms, gpu: 1 ms}, children: [75 %, 25 %]}}
        detect.then: {large: {message: 4 KiB, latency: {box: 240 ms, gpu: 20 ms}}}
        detect: {both: {message: 4 KiB, latency: {box: 1 ms, gpu: 1 ms}}}
      accuracy: {independent: {detect: {both: 98}, count: {fast: 94, exact: 99}}}
"""
