"""Commands about plan.json go on with the `--set` options that it was made for, and replace it only with a reason."""

from __future__ import annotations

import html
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from jellybean.cli import run
from jellybean.documents import load_project
from jellybean.planning import PlanFile, current_plan
from tests.support.paths import EXAMPLES

FASTER = ("sources.image.rate=60/s", "sources.speech.rate=60/s")
SLOWER = ("sources.image.rate=39.9/s", "sources.speech.rate=39.9/s")
OPTIONS = [word for text in FASTER for word in ("--set", text)]
SHOWN = "".join(f" --set {text}" for text in FASTER)
KUBERNETES = """\
kind: Kubernetes
images: {agent: registry.example/agent:1, gateway: registry.example/gateway:1}
models: {url: https://models.example/vqa}
"""
NO_PLANNING = "it plans, which it must not"


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example with a plan for 60 requests a second."""
    directory = tmp_path_factory.mktemp("options") / "vqa"
    shutil.copytree(EXAMPLES / "vqa", directory)
    (directory / "kubernetes.yaml").write_text(KUBERNETES, encoding="utf-8")
    assert run(["plan", str(directory), *OPTIONS]) == 0
    return directory


@pytest.fixture
def vqa(planned: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    return Path(shutil.copytree(planned, tmp_path / "vqa"))


def document(directory: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((directory / "plan.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.slow
def test_a_plan_states_the_options_that_it_was_made_with(vqa: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert document(vqa)["overrides"] == list(FASTER)
    assert run(["plan", str(vqa), *OPTIONS, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["overrides"] == list(FASTER)
    assert run(["plan", str(vqa), "--out", str(vqa / "plain.json")]) == 0
    assert "overrides" not in json.loads((vqa / "plain.json").read_text(encoding="utf-8"))
    assert run(["diff", str(vqa), str(vqa / "plain.json")]) == 1
    assert f"options{SHOWN} -> none" in " ".join(capsys.readouterr().out.split())


def test_a_command_without_options_takes_the_plan_as_it_stands(
    vqa: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("jellybean.planning.project_plan.plan_project", lambda *_, **__: pytest.fail(NO_PLANNING))
    before = (vqa / "plan.json").read_bytes()
    trace = vqa / "trace.csv"
    trace.write_text("time_s,source,rate_per_s\n0,image,1\n0,speech,1\n", encoding="utf-8")
    assert run(["plan", str(vqa), "--check", str(trace), "--json"]) == 0
    written = capsys.readouterr()
    answer = json.loads(written.out)
    assert (answer["plan"], answer["planned_anew"]) == (document(vqa)["hash"], None)
    assert f"{vqa / 'plan.json'} is the plan for{SHOWN}" in written.err
    assert (vqa / "plan.json").read_bytes() == before


@pytest.mark.slow
def test_changed_documents_are_planned_for_with_the_same_options(vqa: Path) -> None:
    fleet = vqa / "infrastructure.yaml"
    text = fleet.read_text(encoding="utf-8")
    assert "price: 0.768 USD/h" in text
    fleet.write_text(text.replace("price: 0.768 USD/h", "price: 0.8 USD/h"), encoding="utf-8")
    plan, reason = current_plan(load_project(vqa, PlanFile(vqa).overrides))
    assert plan.overrides == FASTER
    assert reason.startswith(f"the documents have changed since plan.json was made: planned again with{SHOWN}")
    assert document(vqa)["overrides"] == list(FASTER)
    again, reason = current_plan(load_project(vqa, FASTER), anew=True)
    assert (again, reason) == (plan, "")  # the same plan comes out, and nothing is replaced


@pytest.mark.slow
def test_other_options_replace_the_plan_and_say_so(vqa: Path) -> None:
    plan, reason = current_plan(load_project(vqa, SLOWER))
    assert plan.overrides == SLOWER
    assert reason.startswith(f"plan.json is the plan for{SHOWN}: planned again with --set {SLOWER[0]}")
    assert PlanFile(vqa).overrides == SLOWER


WHAT_IF = [word for text in SLOWER for word in ("--set", text)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "status"),
    [(["simulate"], 0), (["plan", "--check", "trace.csv"], 0), (["render"], 1)],  # this example has no model files
    ids=["simulate", "check", "render"],
)
def test_options_given_to_another_command_are_a_what_if(
    command: list[str], status: int, vqa: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (vqa / "trace.csv").write_text("time_s,source,rate_per_s\n0,image,1\n0,speech,1\n", encoding="utf-8")
    monkeypatch.chdir(vqa)
    before = contents(vqa)
    assert run([*command, ".", *WHAT_IF]) == status
    said = capsys.readouterr().err
    reason = f"plan.json is the plan for{SHOWN}: planned for this command alone, nothing is written; "
    assert f"{reason}to keep this plan: jellybean plan . {' '.join(WHAT_IF)}" in said
    assert contents(vqa) == before


def contents(directory: Path) -> dict[Path, bytes]:
    """The bytes of every file."""
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_an_option_of_the_plan_that_fits_no_longer_says_where_it_comes_from(
    vqa: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workflow = vqa / "workflow.yaml"
    renamed = re.sub(r"\bimage\b", "picture", workflow.read_text(encoding="utf-8"))
    workflow.write_text(renamed, encoding="utf-8")
    origin = f"{vqa / 'plan.json'} was made with this option; to plan without: jellybean plan {vqa}"
    trace = str(vqa / "traces" / "day.csv")
    for command in (["simulate"], ["render"], ["render", "--resource"], ["plan", "--check", trace]):
        assert run([*command, str(vqa)]) == 2
        said = capsys.readouterr().err
        assert re.search(rf"--set {FASTER[0]}: .*{re.escape(origin)}", said)
        assert run([*command, str(vqa), *OPTIONS]) == 2
        assert "was made with" not in capsys.readouterr().err  # the user gave them


@pytest.mark.slow
def test_a_plan_without_options_is_a_way_out(vqa: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", str(vqa), "--duration", "5"]) == 0
    note = f"{vqa / 'plan.json'} is the plan for{SHOWN}; to plan without: "
    (said,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith(note))
    assert run(shlex.split(said.removeprefix(note))[1:]) == 0
    assert (PlanFile(vqa).overrides, "overrides" in document(vqa)) == ((), False)


def test_a_plan_of_another_version_names_the_command_with_its_options(
    vqa: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (vqa / "plan.json").read_text(encoding="utf-8")
    (vqa / "plan.json").write_text(re.sub(r'"version": \d+', '"version": 99', text), encoding="utf-8")
    shutil.rmtree(vqa / ".jellybean")
    assert run(["simulate", str(vqa)]) == 1
    (said,) = (line for line in capsys.readouterr().err.splitlines() if "plan version 99" in line)
    assert said.endswith(f"; run: jellybean plan {vqa}{SHOWN}")
    assert run(shlex.split(said.rpartition("run: ")[2])[1:]) == 0
    assert document(vqa)["overrides"] == list(FASTER)


def test_a_resource_has_the_options_of_the_plan(vqa: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["render", str(vqa), "--resource", "--json"]) == 0
    resource = json.loads(capsys.readouterr().out)
    assert {source["rate"] for source in resource["spec"]["sources"].values()} == {"60/s"}
    assert run(["render", str(vqa), "--resource", "--json", *WHAT_IF]) == 0
    resource = json.loads(capsys.readouterr().out)
    assert {source["rate"] for source in resource["spec"]["sources"].values()} == {"39.9/s"}


def test_options_that_mean_the_same_replace_nothing(vqa: Path) -> None:
    before = (vqa / "plan.json").read_bytes()
    plan, reason = current_plan(load_project(vqa, [text.replace("60/s", "3600/min") for text in FASTER]))
    assert (plan.overrides, reason) == (FASTER, "")
    assert (vqa / "plan.json").read_bytes() == before


@pytest.mark.slow
def test_a_plan_file_that_was_copied_here_is_taken_if_it_fits_the_documents(
    vqa: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["plan", str(vqa), "--out", str(vqa / "plain.json")]) == 0
    with monkeypatch.context() as patched:
        patched.setattr("jellybean.planning.project_plan.plan_project", lambda *_, **__: pytest.fail(NO_PLANNING))
        shutil.copy(vqa / "plain.json", vqa / "plan.json")
        assert PlanFile(vqa).overrides == ()
        plan, reason = current_plan(load_project(vqa))
        assert (plan.overrides, reason) == ((), "")
        shutil.rmtree(vqa / ".jellybean")  # as after a fresh checkout
        assert current_plan(load_project(vqa)) == (plan, "")
    _, reason = current_plan(load_project(vqa, FASTER))
    assert reason.startswith("plan.json is the plan without --set: planned again with")
    shutil.copy(vqa / "plain.json", vqa / "plan.json")
    _, reason = current_plan(load_project(vqa, FASTER))
    assert re.match(r"plan.json does not fit the documents \(.+\): planned again with", reason)


@pytest.mark.slow
def test_a_plan_that_was_kept_is_taken_for_the_options_it_was_kept_for(vqa: Path) -> None:
    assert run(["plan", str(vqa)]) == 0
    before = document(vqa)
    options = [word for text in SLOWER for word in ("--set", text)]
    assert run(["plan", str(vqa), "--from", str(vqa), *options]) == 0
    assert document(vqa) == before  # the plan for 40/s is kept for 39.9/s
    assert PlanFile(vqa).overrides == SLOWER
    assert current_plan(load_project(vqa, SLOWER))[1] == ""


def test_a_plan_that_was_edited_stays(vqa: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (vqa / "plan.json").read_text(encoding="utf-8").replace('"overrides": [', '"overrides": ["slo.accuracy=1", ')
    (vqa / "plan.json").write_text(text, encoding="utf-8")
    assert run(["simulate", str(vqa)]) == 1
    assert f"it was changed by hand; plan again; run: jellybean plan {vqa}" in capsys.readouterr().err
    assert (vqa / "plan.json").read_text(encoding="utf-8") == text


def test_apply_writes_nothing_while_nothing_runs(vqa: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (vqa / "plan.json").read_bytes()
    for options in ([], ["--set", "slo.accuracy=50"], ["--replan"]):
        assert run(["apply", str(vqa), *options]) == 1
        assert f"nothing is up for {vqa}; start it with `jellybean up {vqa}`" in capsys.readouterr().err
    assert (vqa / "plan.json").read_bytes() == before


@pytest.mark.slow
def test_a_report_names_commands_that_work_on_its_plan(vqa: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(vqa), "--json"]) == 0
    built = json.loads(capsys.readouterr().out)
    (simulate, *_) = (line.partition("  ")[0] for line in built["advice"])
    assert simulate == f"jellybean simulate {vqa}{SHOWN}"
    assert built["overrides"] == list(FASTER)
    assert run(["report", str(vqa)]) == 0
    assert f"planned with{SHOWN}" in " ".join(capsys.readouterr().out.split())
    page = re.sub("<[^>]+>", "", (vqa / "report.html").read_text(encoding="utf-8"))
    assert simulate in html.unescape(page)
    assert run(["plan", str(vqa)]) == 0
    capsys.readouterr()
    faster = str(built["plan_hash"])
    assert run(["report", str(vqa), "--plan", faster, "--json"]) == 0  # plan.json has another plan now
    first, second, *_ = (line.partition("  ")[0] for line in json.loads(capsys.readouterr().out)["advice"])
    assert second == simulate
    assert run(shlex.split(first)[1:]) == 0
    assert document(vqa)["hash"] == faster
