"""What-if questions leave the project's plan and its report store as they are."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from jellybean.cli import run
from jellybean.report import Store
from tests.support.paths import EXAMPLES

FASTER = ("--set", "sources.image.rate=60/s", "--set", "sources.speech.rate=60/s")


@pytest.fixture(scope="module")
def vqa(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example with a plan for 40 requests a second."""
    directory = tmp_path_factory.mktemp("what-if") / "vqa"
    shutil.copytree(EXAMPLES / "vqa", directory)
    assert run(["plan", str(directory)]) == 0
    return directory


def kept(directory: Path) -> tuple[object, ...]:
    """All that a what-if may not change."""
    files = {path: path.read_bytes() for path in (directory / "plan.json", directory / ".jellybean/plan.key")}
    return files, Store.of(directory).history()


@pytest.mark.slow
@pytest.mark.parametrize("start", [(), ("--from", "DIR")])
def test_a_dry_run_prints_the_plan_and_writes_nothing(
    vqa: Path, start: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    before, files = kept(vqa), sorted(vqa.rglob("*"))
    options = [*FASTER, *(part.replace("DIR", str(vqa)) for part in start)]
    assert run(["plan", str(vqa), *options, "--dry-run"]) == 0
    written = capsys.readouterr()
    assert "USD/h" in written.out
    assert "dry run: nothing was written" in written.err
    assert "next:" not in written.err
    assert (kept(vqa), sorted(vqa.rglob("*"))) == (before, files)


@pytest.mark.parametrize("start", [(), ("--from", "DIR")])
def test_a_plan_is_written_to_another_file(
    vqa: Path, start: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, file = kept(vqa), tmp_path / "faster.json"
    options = [*FASTER, *(part.replace("DIR", str(vqa)) for part in start)]
    assert run(["plan", str(vqa), *options, "--out", str(file)]) == 0
    assert f"wrote {file}; {vqa / 'plan.json'} is unchanged; compare: jellybean diff" in capsys.readouterr().err
    assert kept(vqa) == before
    document = json.loads(file.read_text(encoding="utf-8"))
    assert {source["rate_per_s"] for source in document["sources"]} == {60.0}
    assert run(["diff", str(vqa), str(file), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["same"] is False
    assert run(["plan", str(vqa), "--from", str(file), *FASTER, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["replan"]["verdict"] == "keep"


def test_an_infeasible_what_if_writes_nothing_either(vqa: Path, tmp_path: Path) -> None:
    before, file = kept(vqa), tmp_path / "none.json"
    assert run(["plan", str(vqa), "--set", "slo.accuracy=99", "--out", str(file)]) == 3
    assert not file.exists()
    assert kept(vqa) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--dry-run", "--out", "x.json"), "--dry-run writes nothing"),
        (("--out", "x.txt"), "a plan file's name ends with .json"),
        (("--out", "nowhere/x.json"), "folder nowhere not found"),
        (("--out", "DIR/plan.json"), "is the project's plan"),
        (("--check", "trace.csv", "--dry-run"), "--dry-run cannot be combined with --check"),
        (("--check", "trace.csv", "--out", "x.json"), "--out cannot be combined with --check"),
    ],
)
def test_options_that_exclude_each_other(
    vqa: Path, options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = kept(vqa)
    given = [part.replace("DIR", str(vqa)) for part in options]
    assert run(["plan", str(vqa), *given, "--json"]) == 2
    assert message in json.loads(capsys.readouterr().out)["error"]["message"]
    assert kept(vqa) == before


@pytest.mark.slow
def test_earlier_plans_are_reported_by_hash(vqa: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def report(*options: str, status: int = 0) -> str:
        assert run(["report", str(vqa), *options]) == status
        written = capsys.readouterr()
        return written.out if status == 0 else written.err

    first = json.loads((vqa / "plan.json").read_text(encoding="utf-8"))["hash"]
    Store.of(vqa).add_measurement(first, {"latency_p50_s": 0.1, "plan": first})
    assert run(["plan", str(vqa), *FASTER]) == 0
    capsys.readouterr()
    second = json.loads((vqa / "plan.json").read_text(encoding="utf-8"))["hash"]
    (vqa / "report.html").write_text("the newest plan's", encoding="utf-8")
    built = json.loads(report("--plan", first[:8], "--json"))
    assert (built["plan_hash"], [run["kind"] for run in built["runs"]]) == (first, ["bench"])
    assert str(vqa / f"report-{first[:12]}.html") in report("--plan", first[:8])
    assert first[:12] in (vqa / f"report-{first[:12]}.html").read_text(encoding="utf-8")
    assert (vqa / "report.html").read_text(encoding="utf-8") == "the newest plan's"
    assert json.loads(report("--plan", str(vqa / "plan.json"), "--json"))["plan_hash"] == second
    assert json.loads(report("--json"))["plan_hash"] == second

    missing = report("--plan", "0123", status=2)
    assert "no plan 0123" in missing
    assert [line.split()[0] for line in missing.splitlines()[1:]] == [second[:12], first[:12]]
    assert "nothing is up" in report("--plan", "running", status=1)
    assert run(["diff", str(vqa), "running"]) == 2
    assert "nothing is up" in capsys.readouterr().err
