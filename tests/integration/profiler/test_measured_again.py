"""`profile` measures what is missing or stale, keeps the rest and what was written by hand, and says why."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from jellybean.cli import run
from jellybean.documents import Entry, Part, ProfilesDocument, build_problem, load_project, machine_notes, read_profiles
from jellybean.documents.writer import profiles_text
from jellybean.errors import DocumentError
from jellybean.profiler import Scope, measurements, profile
from jellybean.profiler.measurement_plan import MeasurementPlan
from jellybean.report import Store, build_report
from jellybean_agent import this_machine
from tests.support.command_line import jellybean_process
from tests.support.measured_project import MODULE, copied_project, make_project_beside_steps
from tests.support.tiny_models import scale

SECONDS = 0.02
VARIANTS = {
    ("prepare", "double"),
    ("split", "few"),
    ("split", "many"),
    ("sum", "net"),
    ("all", "net"),
    ("compare", "net"),
}
ALL_TYPES = {"box", "t4"}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with made-up figures of a run on this machine, and nothing to cut."""
    return make_project_beside_steps(tmp_path_factory.mktemp("again"))


@pytest.fixture
def folder(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    project = copied_project(base, tmp_path, monkeypatch)
    edit(project, "workflow.yaml", "    cuts: 1\n", "")
    return project


def edit(folder: Path, file: str, old: str, new: str) -> None:
    text = (folder / file).read_text(encoding="utf-8")
    assert old in text, old
    (folder / file).write_text(text.replace(old, new), encoding="utf-8")


def todo(folder: Path, *, fresh: bool = False, here: tuple[str, ...] = ()) -> MeasurementPlan:
    return measurements(load_project(folder, profiles=False), Scope(fresh=fresh, types=here))


def known(folder: Path) -> ProfilesDocument:
    profiles = read_profiles(folder)
    assert profiles is not None
    return profiles


def replace_sum(folder: Path) -> None:
    before = re.findall(r"sum.onnx, sha256: (\w+)", (folder / "workflow.yaml").read_text(encoding="utf-8"))[0]
    edit(folder, "workflow.yaml", before, scale(folder / "models/sum.onnx", 3.0, 1))


def entries(part: Part, variants: set[tuple[str, str]], types: set[str]) -> set[Entry]:
    return {Entry(part, *variant, name) for variant in variants for name in types}


def test_a_current_file_is_left_alone(folder: Path) -> None:
    text = (folder / "profiles.yaml").read_text(encoding="utf-8")
    measured = profile(load_project(folder, profiles=False), seconds_per_point=SECONDS)
    assert not measured.written
    assert not measured.todo.measure
    assert (folder / "profiles.yaml").read_text(encoding="utf-8") == text
    assert not (folder / ".jellybean/profile-cache").exists()


def test_the_command_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", str(folder), "--json"]) == 0
    (file,) = json.loads(capsys.readouterr().out)["profiles"]
    assert (file["file"], file["written"], file["measured"]) == (str(folder / "profiles.yaml"), False, [])
    edit(folder, "workflow.yaml", "metric: exact_match", "metric: top1")
    allowed = [word for function in ALLOWED for word in ("--allow-python", function)]
    assert run(["profile", str(folder), "--json", "--seconds", "0.05", *allowed]) == 0
    captured = capsys.readouterr()
    answer = json.loads(captured.out)
    (file,) = answer["profiles"]
    assert file["written"]
    assert [(entry["part"], entry["why"]) for entry in file["measured"]] == [
        ("accuracy", "metric was exact_match, is now top1")
    ]
    assert {"part": "latency", "operator": "sum", "variant": "net", "type": "box"} in file["kept"]
    assert answer["next"] == f"jellybean plan {folder}"
    assert "measures accuracy: metric was" in captured.err


def test_an_audit_has_its_agreements_measured_once(folder: Path) -> None:
    path = folder / "workflow.yaml"
    path.write_text(f"{path.read_text(encoding='utf-8')}slo: {{audit: 5 %}}\n", encoding="utf-8")
    assert {entry.part for entry in todo(folder).measure} == {Part.ACCURACY}
    assert "the agreements that an audit expects are missing" in todo(folder).measure.values()
    profile(load_project(folder, profiles=False), seconds_per_point=SECONDS, allow_python=frozenset(ALLOWED))
    assert not todo(folder).measure
    accuracy = known(folder).accuracy
    assert accuracy is not None
    assert accuracy.reference is not None
    assert accuracy.requests is not None
    rows = {tuple(sorted(row.selection.items())): row for row in accuracy.end_to_end or ()}
    best = rows[tuple(sorted(accuracy.reference.items()))]
    assert (best.agreement, best.accuracy) == (100.0, max(row.accuracy for row in rows.values()))
    for row in rows.values():  # an answer that is right on one side only differs
        assert row.agreement is not None
        assert abs(row.accuracy - best.accuracy) <= 100.0 - row.agreement + 1e-6


def test_a_function_without_the_option_is_invalid_input(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(folder, "workflow.yaml", "metric: exact_match", "metric: top1")
    assert run(["profile", str(folder)]) == 2
    assert "--allow-python" in capsys.readouterr().err


def test_only_what_depends_on_a_replaced_model_is_measured(folder: Path) -> None:
    before = known(folder)
    replace_sum(folder)
    later = {("sum", "net"), ("all", "net")}
    measured = profile(load_project(folder, profiles=False), seconds_per_point=SECONDS, allow_python=ALLOWED)
    expected = entries(Part.LATENCY, later, ALL_TYPES) | entries(Part.OUTPUTS, later, {""}) | {Entry(Part.ACCURACY)}
    assert set(measured.todo.measure) == expected
    assert any(
        re.match(
            r"measures latency of sum net and all net on box and t4, .* accuracy: sum net .* was \w+, is now", line
        )
        for line in measured.todo.lines()
    )
    after = known(folder)
    assert set(measured.document.runs) == {1, 2}
    for operator, variant in VARIANTS:
        old, new = before.operators[operator][variant], after.operators[operator][variant]
        assert (new == old) is ((operator, variant) not in later)
        runs = {origin.run for origin in new.provenance.latency.values()}
        assert runs == ({2} if (operator, variant) in later else {1})
    assert sorted(after.runs) == [1, 2]
    assert after.runs[2].batches == (1, 4)
    assert after.provenance.accuracy is not None
    assert after.provenance.accuracy.run == 2
    assert after.hop_s == before.hop_s
    project = load_project(folder)
    assert project.stale == ()
    assert machine_notes(project) == ()
    assert build_problem(project)
    assert not profile(load_project(folder, profiles=False), allow_python=ALLOWED).written


@pytest.mark.slow
def test_a_run_of_which_nothing_is_left_is_removed(folder: Path) -> None:
    """Everything is measured anew, so that the new run is the first again."""
    measured = profile(
        load_project(folder, profiles=False), seconds_per_point=SECONDS, scope=Scope(fresh=True), allow_python=ALLOWED
    )
    assert set(known(folder).runs) == {1}
    assert {origin.run for origin in known(folder).origins} == {1}
    assert set(measured.todo.measure.values()) == {"--fresh"}
    run, machine = known(folder).runs[1], this_machine()
    assert (run.cpu, run.cores, run.onnxruntime, run.threads) == (
        *(machine.cpu, machine.cores, machine.onnxruntime, machine.threads),
    )
    assert run.measured == load_project(folder).content.measured  # type: ignore[union-attr]


ALLOWED = frozenset({f"{MODULE}:enlarge"})


def test_profiles_of_variants_that_an_option_leaves_out_stay(folder: Path) -> None:
    """They were removed; the run that measured them too."""
    before = known(folder)
    edit(folder, "workflow.yaml", "metric: exact_match", "metric: top1")
    project = load_project(folder, ["operators.split.variants=[few]"], profiles=False)
    measured = profile(project, seconds_per_point=SECONDS, allow_python=ALLOWED)
    assert measured.written
    assert known(folder).operators["split"]["many"] == before.operators["split"]["many"]
    assert not any("removed" in note for note in measured.notes)


def test_removed_profiles_are_told(folder: Path) -> None:
    edit(folder, "workflow.yaml", "metric: exact_match", "metric: top1")
    project = load_project(folder, ["operators.split.variants=[few]"], profiles=False)
    text = (folder / "workflow.yaml").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.strip().startswith("many:")]
    (folder / "workflow.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    measured = profile(project, seconds_per_point=SECONDS, allow_python=ALLOWED)
    assert set(known(folder).operators["split"]) == {"few"}
    assert "removed the profiles of split many: not in workflow.yaml" in measured.notes


def test_entries_by_hand_are_not_overwritten(folder: Path) -> None:
    text = (folder / "profiles.yaml").read_text(encoding="utf-8")
    origin = re.findall(r"box: (\{model: \w+, speed: 0.5, run: 1\})", text)[3]
    (folder / "profiles.yaml").write_text(text.replace(f"box: {origin}", "box: {source: data sheet}"), encoding="utf-8")
    replace_sum(folder)
    one = Entry(Part.LATENCY, "sum", "net", "box")
    assert one in todo(folder).by_hand
    assert one not in todo(folder).measure
    assert Entry(Part.LATENCY, "sum", "net", "t4") in todo(folder).measure
    assert any(
        "latency of sum net on box: by hand (--fresh measures them too)" in line for line in todo(folder).lines()
    )
    assert todo(folder, fresh=True).measure[one] == "--fresh"
    model = re.findall(r"model: (\w+)", origin)[0]
    edit(folder, "profiles.yaml", "{source: data sheet}", f"{{source: data sheet, model: {model}}}")
    (line,) = [
        line for line in todo(folder).lines() if line.startswith("stale, but by hand: latency of sum net on box: ")
    ]
    assert f"was {model}, is now" in line


def test_a_file_without_provenance_is_by_hand_and_marked(folder: Path) -> None:
    text = (folder / "profiles.yaml").read_text(encoding="utf-8")
    text = re.sub(r"(?m)^( *)provenance:\n(?:\1 +.*\n)+", "", text)
    text = re.sub(r"(?m)^runs:\n(?: +.*\n)+", "machine: {cpu: some}\n", text)
    (folder / "profiles.yaml").write_text(text, encoding="utf-8")
    before = known(folder)
    assert not before.origins
    measured = profile(load_project(folder, profiles=False), seconds_per_point=SECONDS)
    assert not measured.todo.measure
    after = known(folder)
    assert {origin.source for origin in after.origins} == {"by hand"}
    assert len(after.origins) == 2 * len(VARIANTS) + len(VARIANTS) + 2 + 1 + 4  # with cuts and stages
    assert after.machine == before.machine == {"cpu": "some"}
    assert after.operators["sum"]["net"].latency == before.operators["sum"]["net"].latency
    assert not profile(load_project(folder, profiles=False)).written


@pytest.mark.parametrize(("name", "value"), [("cpu", "Other"), ("onnxruntime", "1.2.3"), ("cores", 77), ("threads", 9)])
def test_times_of_another_machine_are_measured_again(name: str, value: object, folder: Path) -> None:
    edit(folder, "profiles.yaml", f"    {name}: {getattr(this_machine(), name)}\n", f"    {name}: {value}\n")
    assert set(todo(folder).measure) == entries(Part.LATENCY, VARIANTS, ALL_TYPES) | {Entry(Part.HOP)}
    assert f"{name} was {value}" in todo(folder).measure[Entry(Part.HOP)]
    assert Entry(Part.ACCURACY) in todo(folder).kept


def test_missing_entries_are_measured(folder: Path) -> None:
    edit(folder, "profiles.yaml", "    batches: [1, 4]\n", "    batches: [1]\n")
    assert set(todo(folder).measure) == entries(Part.LATENCY, VARIANTS, ALL_TYPES)
    assert set(todo(folder).measure.values()) == {"batch size 4 is missing"}
    edit(folder, "profiles.yaml", "    batches: [1]\n", "    batches: [1, 4]\n")
    edit(folder, "infrastructure.yaml", "type: t4", "type: a100")
    assert set(todo(folder).measure) == entries(Part.LATENCY, VARIANTS, {"a100"})
    edit(folder, "infrastructure.yaml", "type: a100", "type: t4")
    few = re.findall(r"      few: .*\n", (folder / "workflow.yaml").read_text(encoding="utf-8"))[0]
    edit(folder, "workflow.yaml", few, few + few.replace("few:", "same:"))
    added = {("split", "same")}
    assert set(todo(folder).measure) == (
        entries(Part.LATENCY, added, ALL_TYPES) | entries(Part.OUTPUTS, added, {""}) | {Entry(Part.ACCURACY)}
    )
    assert todo(folder).measure[Entry(Part.ACCURACY)] == "selections are missing"


def test_a_noisy_hop_is_measured_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Until then `validate`, `plan` and the report say so. A noise of a few per cent is none."""
    edit(folder, "profiles.yaml", "hop: 1 ms\n", "hop: {time: 15.7 ms, noise: 4 %}\n")
    assert not todo(folder).measure
    edit(folder, "profiles.yaml", "noise: 4 %", "noise: 120 %")
    why = "its rounds differed by 120 %, so the machine was busy"
    assert todo(folder).measure == {Entry(Part.HOP): why}
    assert "hop: {time: 15.7 ms, noise: 120 %}\n" in profiles_text(known(folder))
    for command in ("validate", "plan"):
        assert run([command, str(folder)]) == 0
        assert f"profiles.yaml: hop 15.7 ms: {why}; predicted" in capsys.readouterr().err
    assert [text for text in build_report(Store.of(folder)).caveats if why in text]
    assert run(["plan", str(folder), "--set", "profiles.hop=1 ms"]) == 0
    assert why not in capsys.readouterr().err


def test_cuts_that_were_never_chosen_are_missing(folder: Path) -> None:
    edit(folder, "workflow.yaml", "inputs: [left, right]\n", "inputs: [left, right]\n    cuts: 2\n")
    wanted = {Entry(Part.CUTS, "compare", "net", name) for name in ("", "box", "t4")}
    assert set(todo(folder).measure) == wanted
    assert set(todo(folder).measure.values()) == {"2 cuts are allowed, 1 were when it was cut"}


def test_a_device_is_not_measured_here(folder: Path) -> None:
    """A type without a speed that is missing or stale is refused, unless it is by hand, current, or this machine."""
    edit(folder, "infrastructure.yaml", "type: t4, speed: 1}", "type: t4}")
    assert not todo(folder).measure  # a speed of 1 and a device are measured alike, so it is current
    replace_sum(folder)
    with pytest.raises(DocumentError) as error:
        todo(folder)
    (problem,) = error.value.problems
    assert (Path(problem.file).name, problem.path) == ("infrastructure.yaml", "workers.gpu")
    assert problem.message.startswith("latency of sum net and all net on t4: stale, but a t4 is a device of its own")
    for way in (f"jellybean profile {folder} --type t4", "give it a speed", "by hand"):
        assert way in problem.hint
    here = todo(folder, here=("t4",))
    later = {("sum", "net"), ("all", "net")}
    assert {entry for entry in here.measure if entry.part is Part.LATENCY} == entries(Part.LATENCY, later, {"t4"})
    assert set(here.elsewhere) == entries(Part.LATENCY, later, {"box"})
    (left,) = [line for line in here.lines() if line.startswith("leaves")]
    assert left == "leaves latency of sum net and all net on box: of types that are not measured here"
    text = (folder / "profiles.yaml").read_text(encoding="utf-8")
    by_hand = re.sub(r"t4: \{model: \w+, speed: 1, run: 1\}", "t4: {source: by hand}", text)
    (folder / "profiles.yaml").write_text(by_hand, encoding="utf-8")
    assert {entry.worker_type for entry in todo(folder).measure} == {"", "box"}


def test_a_device_in_another_place_is_not_stale_here(folder: Path) -> None:
    """What a Jetson measured on itself is not measured again because this machine is none."""
    edit(folder, "infrastructure.yaml", ", speed: 0.5", "")
    edit(folder, "infrastructure.yaml", ", speed: 1}", "}")
    text = re.sub(r"speed: [0-9.]+, ", "", (folder / "profiles.yaml").read_text(encoding="utf-8"))
    (folder / "profiles.yaml").write_text(re.sub(r"    cores: \d+", "    cores: 77", text), encoding="utf-8")
    assert set(todo(folder).measure) == {Entry(Part.HOP)}
    assert set(todo(folder, here=("box",)).measure) == entries(Part.LATENCY, VARIANTS, {"box"})


@pytest.mark.slow
def test_a_project_without_profiles_refuses_devices_before_it_measures(folder: Path, tmp_path: Path) -> None:
    """On the command line, for a project of two workflows: nothing is measured, not even what could be."""
    edit(folder, "infrastructure.yaml", "type: t4, speed: 1}", "type: t4}")
    shop = tmp_path / "shop"
    for name in ("one", "two"):
        shutil.copytree(folder, shop / "workflows" / name)
        (shop / "workflows" / name / "infrastructure.yaml").unlink()
    shutil.copy(folder / "infrastructure.yaml", shop)
    for name in ("one", "two"):
        edit(
            shop / "workflows" / name,
            "workflow.yaml",
            '{python: "measured_steps:enlarge", with: {factor: 1.5}}',
            IDENTITY,
        )
    (shop / "workflows/two/profiles.yaml").unlink()
    done = jellybean_process("profile", str(shop), status=2)
    assert re.search(r"workers\.gpu: latency of prepare double, .* on t4: stale, but a t4 is a device", done.stderr)
    assert not (shop / "workflows/one/.jellybean").exists()
    done = jellybean_process("profile", str(shop), "--type", "t5", status=2)
    assert "--type t5: no worker has this type; worker types: box, t4" in done.stderr


IDENTITY = '{python: "jellybean_agent.steps:cast", with: {to: float32, dtype: float32, shape: [4]}}'
