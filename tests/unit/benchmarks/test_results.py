"""Benchmark results: files and page agree, the README quotes them, and runs write what they should."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from benchmarks.harness import run as runner
from benchmarks.harness.files import load, load_all, save
from benchmarks.harness.page import PAGE, render, section, table_text
from benchmarks.harness.registry import BENCHMARKS, BenchmarkError
from benchmarks.harness.result import Picture, Record, Result, Table, Topic

ROOT = PAGE.parents[1]
RESULT = Result(
    "Title",
    Topic.SERVING,
    "Three runs.",
    "nothing.",
    (Table.of(["a", "b"], [[1, "2 ms"]], "caption"),),
    ("note",),
    Picture("report.png", "a report"),
)
RECORD = Record("name", RESULT, "`command`", "2026-01-02", "2 cores")


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> runner.Target:
    monkeypatch.setattr(runner, "BENCHMARKS", {})
    (tmp_path / "results").mkdir()
    return runner.Target(tmp_path / "results", tmp_path / "benchmarks.md")


def test_the_page_is_what_the_results_render_to() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(load_all()), "run: python -m benchmarks --render"


def test_every_link_and_picture_of_the_page_exists() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in re.findall(r"\]\(#([^)]*)\)", text):
        assert f'<a id="{name}"></a>' in text
    files = [path for path in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in path]
    assert "images/fleets.svg" in files
    for path in files:
        assert (PAGE.parent / path).exists(), path


def test_the_readme_quotes_figures_of_the_sections_that_it_links_to() -> None:
    sections = {record.name: section(record) for record in load_all()}
    rows = [
        line
        for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
        if "](docs/benchmarks.md#" in line
    ]
    assert len(rows) >= 8
    for row in rows:
        (name,) = re.findall(r"docs/benchmarks\.md#(\w+)\)", row)
        for number in re.findall(r"(?<![\w.])\d[\d.,]*\d|\b\d+\.\d+", " ".join(row.split("|")[2:])):
            assert number in sections[name], f"{number} is not in {name}: {row}"


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    bare = dataclasses.replace(RECORD, name="bare", result=dataclasses.replace(RESULT, notes=(), picture=None))
    for record in (RECORD, bare):
        save(record, tmp_path)
        assert load(tmp_path / f"{record.name}.json") == record
    assert load_all(tmp_path) == [bare, RECORD]


def test_a_row_has_a_cell_for_each_column() -> None:
    with pytest.raises(ValueError, match="1 cells for 2 columns: x"):
        Table.of(["a", "b"], [["x"]])


def test_a_run_replaces_its_own_result_and_the_page(target: runner.Target, capsys: pytest.CaptureFixture[str]) -> None:
    save(RECORD, target.results)
    runner.BENCHMARKS["quick"] = lambda smoke: dataclasses.replace(RESULT, title=f"smoke {smoke}")
    runner.main(["quick"], target)
    assert load(target.results / "name.json") == RECORD
    written = load(target.results / "quick.json")
    assert (written.result.title, written.command) == ("smoke False", "`python -m benchmarks quick`")
    assert target.page.read_text(encoding="utf-8") == render([RECORD, written])
    assert "### smoke False" in capsys.readouterr().out


def test_a_smoke_run_and_one_that_cannot_run_write_nothing(
    target: runner.Target, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(smoke: bool) -> Result:
        raise BenchmarkError("no such file")

    runner.BENCHMARKS.update(quick=lambda smoke: dataclasses.replace(RESULT, title=f"smoke {smoke}"), broken=broken)
    runner.main(["quick", "broken", "--smoke"], target)
    runner.main(["broken"], target)
    assert not list(target.results.iterdir())
    assert not target.page.exists()
    told = capsys.readouterr().out
    assert "### smoke True" in told
    assert told.count("broken cannot run here: no such file") == 2


def test_an_unknown_name_is_refused(target: runner.Target, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        runner.main(["nothing"], target)
    assert "no benchmark called nothing" in capsys.readouterr().err


def test_every_registered_name_is_that_of_its_function() -> None:
    import benchmarks.vqa

    assert BENCHMARKS["vqa_grid"] is benchmarks.vqa.vqa_grid


@pytest.mark.parametrize(
    ("cells", "is_numeric"),
    [
        (["0.14", "11.64", ""], True), (["1,000", "12"], True), (["99.3 ms", "1.20 s"], True), (["14.8/s"], True),
        (["98.9 %", "< 1 %"], True), (["one device"], False), (["", ""], False), (["2 / 2"], False),
        (["106 MiB"], True), (["6.2", "15.4", "infeasible"], True), (["0.47 USD/h", "all in the cloud"], False),
    ],
)  # fmt: skip
def test_columns_of_figures_are_aligned_to_the_right(cells: list[str], is_numeric: bool) -> None:
    text = table_text(Table.of(["what", "figure"], [["a b", cell] for cell in cells]))
    assert text.splitlines()[1] == ("|---|---:|" if is_numeric else "|---|---|")
