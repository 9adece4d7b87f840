"""Every kind of broken document gets a clear message with the right line."""

# ruff: noqa: E501  (a table of cases)
from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from jellybean.cli.init import Example, copy_example
from jellybean.documents import load_project
from jellybean.errors import DocumentError, DocumentProblem

W, I, P = "workflow.yaml", "infrastructure.yaml", "profiles.yaml"  # noqa: E741


@dataclass(frozen=True)
class Broken:
    """An edit, and the one problem that it must cause. `hint` is a part of the hint."""

    name: str
    file: str
    old: str
    new: str
    line: int
    path: str
    message: str
    hint: str = ""
    where: str = ""  # file of the problem, when it is another
    others: int = 0  # further problems that follow from it


ACCURACY = """\
accuracy:
  end_to_end:
    - {selection: {detect: small}, accuracy: 91.5}
    - {selection: {detect: large}, accuracy: 95}
"""
CASES = [
    # what YAML itself allows, and we do not
    Broken("duplicate key", W, "name: parcels", "name: parcels\nname: again", 3, "name", "duplicate key 'name', first on"),
    Broken("alias", W, "[camera]", "*cam", 8, "operators.detect.inputs", "alias *cam"),
    Broken("anchor", W, "slo: {", "slo: &slo {", 16, "slo", "anchor &slo"),
    Broken("tag", W, "name: parcels", "name: !!python/object parcels", 2, "name", "tag 'tag:yaml.org"),
    Broken("merge key", W, "slo: {", "slo: {<<: {}, ", 16, "slo", "merge keys"),
    Broken("second document", W, "slo: {", "---\nslo: {", 16, "", "second document"),
    Broken("directive", W, "kind: W", "%YAML 1.1\n---\nkind: W", 1, "", "%YAML"),
    Broken("tab", W, "  detect:\n", "\tdetect:\n", 7, "", "tab"),
    Broken("unclosed", W, "budget: 10 USD/h}", "budget: 10 USD/h", 17, "", "not YAML"),
    Broken("two colons", W, "name: parcels", "name: parcels: two", 2, "", "second ':'"),
    Broken("control character", W, "parcels", "par\x01cels", 2, "", "U+0001"),
    Broken("impossible escape", W, "parcels", '"\\UFFFFFFFF"', 2, "", "cannot be read"),
    Broken("deep nesting", W, "[camera]", "[" * 20000, 8, "", "nested deeper than 24"),
    Broken("key that is a list", W, "name: parcels", "? [a]\n: b\nname: parcels", 2, "", "a key must be text"),
    Broken("empty value", W, "accuracy: 90", "accuracy: ", 16, "slo.accuracy", "is empty"),
    Broken("list and map", I, "kind: Infrastructure\n", "- a\n", 2, "", "not YAML"),
    # keys and types
    Broken("unknown key", W, "latency_p99", "latencyp99", 16, "slo.latencyp99", "unknown key", "'latency_p99'"),
    Broken("unknown top key", I, "limits:", "limit:", 8, "limit", "unknown key 'limit'", "did you mean 'limits'"),
    Broken("missing key", W, "rate: 12/s, message: 50 KiB", "message: 50 KiB", 4, "sources.camera.rate", "missing key 'rate'", "40/s"),
    Broken("missing kind", P, "kind: Profiles\n", "", 1, "kind", "missing key 'kind'", "Profiles"),
    Broken("wrong kind", W, "kind: Workflow", "kind: workflow", 1, "kind", "'workflow' is not one of Workflow", "did you mean"),
    Broken("boolean for text", W, "name: parcels", "name: true", 2, "name", "true is not text", "quote it"),
    Broken("number for text", W, "variants: [cnn]", "variants: [7]", 12, "operators.read.variants", "the number 7"),
    Broken("text for a list", W, "inputs: [camera]", "inputs: camera", 8, "operators.detect.inputs", "is not a list", "write [camera]"),
    Broken("text for a map", W, "slo: {accuracy: 90, latency_p99: 800 ms, budget: 10 USD/h}", "slo: fast", 16, "slo", "is not a map"),
    Broken("fraction of a worker", I, "count: 4", "count: 4.5", 4, "workers.box.count", "not an integer", "write 4 or 5"),
    Broken("negative count", I, "count: 4", "count: -4", 4, "workers.box.count", "at least 0"),
    Broken("unknown sharing", I, "sharing: shared", "sharing: share", 8, "limits.sharing", "not one of", "did you mean 'shared'"),
    Broken("unknown arrivals", W, "64 B}", "64 B, arrivals: poison}", 5, "sources.scale.arrivals", "not one of", "'poisson'"),
    Broken("unknown metric", W, "slo:", "metric: top5\nslo:", 16, "metric", "'top5' is not one of exact_match, top1, word_accuracy, character_accuracy", "'top1'"),
    Broken("bad name", W, "  scale:", "  my scale:", 5, "sources.my scale", "is not a valid name", others=1),
    Broken("data kept in no tier", W, "64 B}", "64 B, stays_in: [egde]}", 5, "sources.scale.stays_in.0", "there is no tier 'egde'", "did you mean 'edge'"),
    Broken("data kept elsewhere", W, "64 B}", "64 B, stays_in: [cloud]}", 5, "sources.scale.stays_in", "its data is produced in edge", "add edge"),
    # units
    Broken("no unit", W, "800 ms", "800", 16, "slo.latency_p99", "800 has no unit", "800 ms or 800 s"),
    Broken("no unit for a rate", W, "rate: 12/s, message: 64 B", "rate: 12, message: 64 B", 5, "sources.scale.rate", "12 has no unit", "give a unit: 12/s, 12/min or 12/h"),
    Broken("unit of another kind", W, "800 ms", "800 MiB", 16, "slo.latency_p99", "not have the unit of a duration", "unit of a size"),
    Broken("unit unknown", I, "4 GiB", "4 gib", 4, "workers.box.memory", "not have the unit of a size", "did you mean 'GiB'"),
    Broken("negative quantity", I, "20 ms", "-20 ms", 7, "links.0.latency", "must not be negative"),
    Broken("infinite quantity", I, "20 ms", ".inf", 7, "links.0.latency", "inf is not a duration"),
    Broken("too large quantity", I, "20 ms", "1e999 s", 7, "links.0.latency", "too large"),
    Broken("nan accuracy", W, "accuracy: 90", "accuracy: .nan", 16, "slo.accuracy", "must be finite"),
    Broken("zero rate", W, "rate: 12/s, message: 64 B", "rate: 0/s, message: 64 B", 5, "sources.scale.rate", "must be above 0"),
    Broken("utilisation above 1", I, "0.8", "1.2", 8, "limits.utilisation", "at most 1"),
    Broken("utilisation of 0", I, "0.8", "0", 8, "limits.utilisation", "above 0"),
    Broken("price of a link per hour", I, "0.10 USD/GiB", "0.10 USD/h", 7, "links.0.price", "price per GiB", "price per hour"),
    # the workflow's graph
    Broken("unknown input", W, "{from: detect, ratio: 4}", "{from: detekt, ratio: 4}", 11, "operators.read.inputs.0.from", "no source or operator 'detekt'", "'detect'"),
    Broken("unknown input, short", W, ", scale]", ", scales]", 14, "operators.label.inputs.1", "no source or operator 'scales'", "'scale'"),
    Broken("cycle", W, "inputs: [camera]", "inputs: [camera, label]", 8, "operators.detect.inputs.1", "cycle: detect -> read -> label -> detect"),
    Broken("self-loop", W, "inputs: [camera]", "inputs: [camera, detect]", 8, "operators.detect.inputs.1", "cycle: detect -> detect"),
    Broken("unread source", W, ", scale]", "]", 5, "sources.scale", "no operator reads"),
    Broken("operator named as a source", W, "  read:\n", "  scale:\n", 10, "operators.scale", "is also a source", others=3),
    Broken("input twice", W, "[camera]", "[camera, camera]", 8, "operators.detect.inputs", "'camera' is listed twice"),
    Broken("variant twice", W, "[small, large]", "[small, small]", 9, "operators.detect.variants", "'small' is listed twice", others=0),
    Broken("no variants", W, "[small, large]", "[]", 9, "operators.detect.variants", "empty"),
    Broken("rates of a join differ", W, "rate: 12/s, message: 64 B", "rate: 30/s, message: 64 B", 14, "operators.label.inputs", "label joins data of sources of different rates: camera 12/s, scale 30/s", "make sources.camera.rate and sources.scale.rate equal"),
    Broken("ratio does not close", W, "{from: read, gather: true}", "{from: read, ratio: 0.5}", 14, "operators.label.inputs.0", "rates differ after ratios: read 24/s, scale 12/s"),
    Broken("join inside and outside", W, "{from: read, gather: true}", "read", 14, "operators.label.inputs", "rates differ after ratios: read 48/s"),
    Broken("join of levels at one rate", W, "ratio: 4}]\n", "ratio: 1}]\n", 0, "", ""),
    Broken("gather without fan-out", W, "{from: detect, ratio: 4}", "{from: detect, gather: true}", 11, "operators.read.inputs.0", "no fan-out is open"),
    Broken("gather and ratio", W, "gather: true", "gather: true, ratio: 0.25", 14, "operators.label.inputs.0", "exclude each other"),
    Broken("ratio of a strange variant", W, "ratio: 4", "ratio: {small: 3, large: 4, huge: 5}", 11, "operators.read.inputs.0.ratio.huge", "detect has no variant 'huge'", "variants: small, large"),
    Broken("ratio of a mistyped variant", W, "ratio: 4", "ratio: {small: 3, lage: 4}", 11, "operators.read.inputs.0.ratio.lage", "detect has no variant 'lage'", "did you mean 'large'?"),
    Broken("ratio without a variant", W, "ratio: 4", "ratio: {small: 3}", 11, "operators.read.inputs.0.ratio", "no ratio for variant large of detect", "measured"),
    Broken("ratio of a variant below 0", W, "ratio: 4", "ratio: {small: 3, large: -4}", 11, "operators.read.inputs.0.ratio.large", "must not be negative: -4"),
    Broken("ratio of a variant that is text", W, "ratio: 4", "ratio: {small: 3, large: four}", 11, "operators.read.inputs.0.ratio.large", "'four'"),
    Broken("ratio of no variant", W, "ratio: 4", "ratio: {}", 11, "operators.read.inputs.0.ratio", "is empty"),
    Broken("ratio that is a list", W, "ratio: 4", "ratio: [3, 4]", 11, "operators.read.inputs.0.ratio", "ratio"),
    Broken("ratio of a source by variant", W, "inputs: [camera]", "inputs: [{from: camera, ratio: {small: 3}}]", 8, "operators.detect.inputs.0.ratio", "camera is a source", "one number", others=1),
    Broken("ratio that is not measured", W, "ratio: 4", "ratio: measured", 6, "operators.detect.small", "the ratio to read is measured", "jellybean profile", where=P, others=1),
    Broken("ratio by variant closed by a number", W, "{from: detect, ratio: 4}]\n    variants: [cnn]\n  label:\n    inputs: [{from: read, gather: true}", "{from: detect, ratio: {small: 3, large: 4}}]\n    variants: [cnn]\n  label:\n    inputs: [{from: read, ratio: 0.25}", 14, "operators.label.inputs.0", "closes the fan-out of detect, whose ratio depends on the variant", "gather: true"),
    Broken("ratio of 0", W, "ratio: 4", "ratio: 0", 11, "operators.read.inputs.0.ratio", "above 0"),
    Broken("output of a source", W, "[camera]", "[{from: camera, output: x}]", 8, "operators.detect.inputs.0.output", "is a source"),
    Broken("labels without metric", W, "slo:", "labels: a.npz#b\nslo:", 16, "labels", "labels without metric", others=3),
    # tiers and links
    Broken("source in no tier", W, "scale: {tier: edge", "scale: {tier: egde", 5, "sources.scale.tier", "no tier 'egde'", "'edge'"),
    Broken("worker in no tier", I, "tier: cloud", "tier: clod", 5, "workers.gpu.tier", "no tier 'clod'", "'cloud'"),
    Broken("link to no tier", I, "to: cloud", "to: hub", 7, "links.0.to", "no tier 'hub'", "edge, cloud"),
    Broken("link down", I, "from: edge, to: cloud", "from: cloud, to: edge", 7, "links.0", "goes from cloud back to edge"),
    Broken("link inside", I, "to: cloud", "to: edge", 7, "links.0", "is inside tier edge"),
    Broken("link twice", I, "limits:", "  - {from: edge, to: cloud}\nlimits:", 8, "links.1", "a second link from edge to cloud"),
    Broken("tier twice", I, "[edge, cloud]", "[edge, cloud, edge]", 2, "tiers", "'edge' is listed twice"),
    Broken("no workers left", I, "count: 4", "count: 0", 0, "", ""),
    # profiles
    Broken("unknown operator", P, "  label:\n", "  lable:\n", 14, "operators.lable", "no operator 'lable'", "'label'"),
    Broken("unknown variant", P, "    large:\n", "    larg:\n", 9, "operators.detect.larg", "no variant 'larg'", "'large'"),
    Broken("variant without a profile", W, "[cnn]", "[cnn, mlp]", 12, "operators.read.variants.1", "variant 'mlp' of read has no profile"),
    Broken("type without a profile", I, "type: t4", "type: t5", 5, "workers.gpu.type", "no profile has the worker type 't5'", "types with profiles: box, t4"),
    Broken("misspelt worker type", P, "{box: 8 ms, t4: 1 ms}", "{bx: 8 ms, t4: 1 ms}", 13, "operators.read.cnn.latency.bx", "no worker has the type 'bx'", "'box'"),
    Broken("no latency", P, "{box: 100 us, t4: 50 us}", "{}", 15, "operators.label.rules.latency", "empty"),
    Broken("latency on no worker", P, "{box: 100 us, t4: 50 us}", "{tpu: 1 ms}", 15, "operators.label.rules.latency", "no latency for any worker type"),
    Broken("no batch of 1", P, "{1: 20 ms, 8", "{2: 20 ms, 8", 11, "operators.detect.large.latency.t4", "no latency at batch size 1 (only 2, 8)"),
    Broken("bad batch size", P, "{1: 20 ms, 8", "{1: 20 ms, many", 11, "operators.detect.large.latency.t4.many", "not a batch size"),
    Broken("falling percentiles", P, "p50: 4.8 ms", "p50: 7 ms", 8, "operators.detect.small.latency.t4", "p50 7 ms is above p90 6 ms"),
    Broken("no message size", P, "message: 10 KiB\n      l", "l", 6, "operators.detect.small", "missing key 'message'"),
    Broken("message to nobody", P, "{read: 12 KiB}", "{read: 12 KiB, raed: 1 B}", 10, "operators.detect.large.message.raed", "does not read", "'read'"),
    Broken("figure that capacity counts", I, "sharing: shared", "sharing: shared, load_from: p90", 8, "operators.detect.small.latency.box", "no p90 latency", where=P, others=6),
    Broken("unknown selection", P, "{detect: large}", "{detect: huge}", 19, "accuracy.end_to_end.1.selection.detect", "no variant 'huge'", "small, large"),
    Broken("unknown operator of a selection", P, "{detect: large}", "{detct: large}", 19, "accuracy.end_to_end.1.selection.detct", "no operator 'detct'", "'detect'"),
    Broken("selection left open", P, "{detect: large}", "{read: cnn}", 19, "accuracy.end_to_end.1.selection", "does not give a variant of detect"),
    Broken("selection twice", P, "{detect: large}", "{detect: small}", 19, "accuracy.end_to_end.1", "same selection as accuracy.end_to_end.0"),
    Broken("accuracy as a share", W, "accuracy: 90", "accuracy: 0.9", 16, "slo.accuracy", "accuracy is in percent: 0.9 is below all measured ones (91.5 to 95)", "write 90"),
    Broken("no accuracy", P, ACCURACY, "", 16, "slo.accuracy", "have no accuracy", where=W),
    Broken("two accuracies", P, "accuracy:\n", "accuracy:\n  independent: {detect: {small: 91, large: 95}}\n", 17, "accuracy", "exactly one form, but has end_to_end and independent"),
    Broken("accuracy of a variant missing", P, ACCURACY, "accuracy: {independent: {detect: {small: 91}}}\n", 16, "accuracy.independent.detect", "no accuracy for variant large"),
    Broken("share above 100", P, ACCURACY, "accuracy: {independent: {detect: {small: 91, large: 191}}}\n", 16, "accuracy.independent.detect.large", "must be at most 100, not 191"),
    Broken("point with too many inputs", P, ACCURACY, "accuracy: {per_operator: {detect: {small: 91, large: [{inputs: [3], output: 9}]}}}\n", 16, "accuracy.per_operator.detect.large.0", "1 input accuracies, but detect has none"),
]  # fmt: skip
SOUND = {"join of levels at one rate", "no workers left"}


@pytest.mark.parametrize("case", [case for case in CASES if case.name not in SOUND], ids=lambda case: case.name)
def test_one_problem_at_its_line(case: Broken, breaking: Callable[..., tuple[DocumentProblem, ...]]) -> None:
    problems = breaking(case.file, case.old, case.new)
    told = "\n".join(str(problem) for problem in problems)
    matching = [p for p in problems if case.message in p.message and Path(p.file).name == (case.where or case.file)]
    assert matching, told
    problem = matching[0]
    assert (problem.line, case.hint in problem.hint) == (case.line, True), told
    assert problem.path == case.path or not case.path, told
    assert len(problems) == 1 + case.others, told


@pytest.mark.parametrize("case", [case for case in CASES if case.name in SOUND], ids=lambda case: case.name)
def test_close_but_sound(case: Broken, breaking: Callable[..., tuple[DocumentProblem, ...]]) -> None:
    assert breaking(case.file, case.old, case.new) == ()


def test_there_are_more_than_thirty_kinds() -> None:
    assert len({case.name for case in CASES}) == len(CASES) > 60


def test_the_sound_project_is_sound(folder: Path) -> None:
    assert load_project(folder).workflow.name == "parcels"


def test_every_problem_at_once_sorted_by_file_and_line(folder: Path) -> None:
    for file, old, new in [
        (W, "800 ms", "800"),
        (W, "[camera]", "[camra]"),
        (I, "tier: cloud", "tier: clod"),
        (I, "count: 4", "count: four"),
        (P, "hop: 0.9 ms", "hop: 0.9 KiB"),
        (P, "    larg", "    LARG"),
    ]:
        path = folder / file
        path.write_text(path.read_text(encoding="utf-8").replace(old, new, 1), encoding="utf-8")
    with pytest.raises(DocumentError) as raised:
        load_project(folder)
    told = [(Path(p.file).name, p.line) for p in raised.value.problems]
    assert told == [(W, 8), (W, 16), (I, 4), (I, 5), (P, 3), (P, 9)]
    assert len(str(raised.value).splitlines()) == len(told)


def test_an_error_in_a_field_hides_no_other_of_its_entry(folder: Path) -> None:
    """An entry that cannot be read is still looked at for names of tiers and inputs."""
    for file, old, new in [
        (I, "tier: cloud", "tier: clod"),
        (I, "count: 4", "count: 2.5"),
        (I, "tier: edge", "tier: egde"),
        (W, "[camera]", "[camra]"),
        (W, "[camra]", "[camra]\n    nonsense: 1"),
    ]:
        path = folder / file
        path.write_text(path.read_text(encoding="utf-8").replace(old, new, 1), encoding="utf-8")
    with pytest.raises(DocumentError) as raised:
        load_project(folder)
    told = [problem.message for problem in raised.value.problems]
    assert any("'clod'" in message for message in told), told
    assert any("'egde'" in message for message in told), told
    assert any("'camra'" in message for message in told), told
    assert any("nonsense" in message for message in told), told
    assert len(set(told)) == len(told) == 5, told


@pytest.mark.slow
def test_one_slip_is_told_in_few_lines(breaking: Callable[..., tuple[DocumentProblem, ...]], folder: Path) -> None:
    """Any one word of any document misspelt: what only follows from it is left out."""
    told: dict[str, str] = {}
    for file in (W, I, P):
        text = (folder / file).read_text(encoding="utf-8")
        for word in re.finditer(r"[A-Za-z][A-Za-z0-9_-]{2,}", text):
            (folder / file).write_text(f"{text[: word.end()]}q{text[word.end() :]}", encoding="utf-8")
            try:
                load_project(folder)
            except DocumentError as error:
                told[f"{file}: {word[0]} at {word.start()}"] = str(error)
            (folder / file).write_text(text, encoding="utf-8")
    assert len(told) > 80
    assert {slip: text for slip, text in told.items() if len(text.splitlines()) > 2} == {}


@pytest.mark.parametrize(("file", "other"), [(W, I), (I, W), (P, W), (W, P)])
def test_a_document_in_anothers_place_is_one_problem(folder: Path, file: str, other: str) -> None:
    (folder / file).write_text((folder / other).read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(DocumentError) as raised:
        load_project(folder)
    (problem,) = raised.value.problems
    assert (Path(problem.file).name, problem.path) == (file, "kind")
    assert problem.hint.endswith(f"move it to {other}")


def test_a_problem_of_many_lines_is_told_once(folder: Path) -> None:
    (folder / I).write_text(
        (folder / I).read_text(encoding="utf-8").replace("sharing: shared", "sharing: shared, load_from: p90"),
        encoding="utf-8",
    )
    with pytest.raises(DocumentError) as raised:
        load_project(folder)
    assert len(raised.value.problems) == 7
    (line,) = str(raised.value).splitlines()
    assert "profiles.yaml:8:22: " in line
    assert line.endswith("(also in lines 11, 13, 15)")
    with pytest.raises(DocumentError, match=r"profiles.yaml:8 and 6 more") as by_option:
        load_project(folder, ["limits.load_from=p99"])
    assert len(by_option.value.problems) == 1


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("nowhere", "folder not found", "jellybean init"),
        ("parcel", "folder not found", "did you mean {}/parcels?"),
        ("parcels/workflow.yaml", "is a file", "name its folder: {}/parcels"),
        (".", "it has no workflow.yaml", "did you mean {}/parcels?"),
        ("parcels/models", "it has no workflow.yaml", "jellybean init"),
    ],
)
def test_what_is_no_project_is_one_problem(tmp_path: Path, name: str, message: str, hint: str) -> None:
    (tmp_path / "parcels" / "models").mkdir(parents=True)
    (tmp_path / "parcels" / W).write_text("kind: Workflow\n", encoding="utf-8")
    with pytest.raises(DocumentError) as raised:
        load_project(tmp_path / name)
    (problem,) = raised.value.problems
    assert message in problem.message
    assert hint.format(tmp_path) in problem.hint


def test_files_that_are_no_documents(folder: Path, breaking: Callable[..., tuple[DocumentProblem, ...]]) -> None:
    def only(content: bytes) -> DocumentProblem:
        (folder / W).write_bytes(content)
        (problem,) = [p for p in breaking(I) if Path(p.file).name == W]
        return problem

    assert "empty" in only(b"").message
    assert "empty" in only(b"# nothing\n").message
    assert "not a document" in only(b"- a\n").message
    assert only(b"kind: Workflow\nname: caf\xe9\n").line == 2
    assert "UTF-8" in only(b"kind: Workflow\nname: caf\xe9\n").message
    assert "larger than 2 MiB" in only(b"#" * (2 * 2**20 + 1)).message
    (folder / W).unlink()
    assert "file not found" in breaking(I)[0].message


def test_an_alias_bomb_is_refused_at_once(breaking: Callable[..., tuple[DocumentProblem, ...]]) -> None:
    bomb = "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nslo:"
    messages = {problem.message.split(":")[0] for problem in breaking(W, "slo:", bomb)}
    assert {"anchor &a", "alias *a", "anchor &b", "alias *b", "anchor &c"} <= messages


def test_a_problem_names_file_line_column_and_path(breaking: Callable[..., tuple[DocumentProblem, ...]]) -> None:
    (problem,) = breaking(W, "800 ms", "800")
    text = str(problem)
    assert text.endswith("workflow.yaml:16:34: slo.latency_p99: 800 has no unit; give a unit: 800 us, 800 ms or 800 s")
    assert problem.to_dict()["column"] == 34


def test_a_missing_profile_says_which_folder_to_profile(
    folder: Path, breaking: Callable[..., tuple[DocumentProblem, ...]]
) -> None:
    (problem,) = breaking(W, "[cnn]", "[cnn, mlp]")
    assert problem.hint == f"run `jellybean profile {folder}`, or write its latency"


def test_missing_profiles_say_how_to_make_them(folder: Path) -> None:
    (folder / P).unlink()
    with pytest.raises(DocumentError, match="jellybean profile"):
        load_project(folder)
    assert load_project(folder, profiles=False).profiles is None


def test_data_that_would_have_to_flow_down(folder: Path, breaking: Callable[..., tuple[DocumentProblem, ...]]) -> None:
    path = folder / W
    path.write_text(path.read_text(encoding="utf-8").replace("tier: edge", "tier: cloud"), encoding="utf-8")
    problems = breaking(P, "{box: 100 us, t4: 50 us}", "{box: 100 us}")
    assert [(problem.path, problem.line) for problem in problems] == [("operators.label", 13)]
    assert "read in cloud" in problems[0].message
    assert "box in edge" in problems[0].message


def test_the_link_is_named_that_a_tier_in_between_does_not_replace(
    folder: Path, breaking: Callable[..., tuple[DocumentProblem, ...]]
) -> None:
    path = folder / P
    path.write_text(
        path.read_text(encoding="utf-8").replace("{box: 100 us, t4: 50 us}", "{t4: 50 us}"), encoding="utf-8"
    )
    path = folder / I
    path.write_text(path.read_text(encoding="utf-8").replace("[edge, cloud]", "[edge, hub, cloud]"), encoding="utf-8")
    problems = breaking(I, "from: edge, to: cloud,", "from: edge, to: hub}\n  - {from: hub, to: cloud,")
    lacking = "no link from edge to cloud, and data does not pass through hub: add a link {from: edge, to: cloud}"
    assert [problem.path for problem in problems] == ["operators.label"]
    assert problems[0].hint == lacking


def test_other_variants_and_broken_links_are_checked_too(tmp_path: Path) -> None:
    copy_example(Example.DIGITS, tmp_path / "digits")
    folder = tmp_path / "digits"
    text = (folder / W).read_text(encoding="utf-8")
    text = re.sub(r"sha256: 6ff2102447\w+", "sha256: 6ff21", text)  # malformed: the operator is dropped
    (folder / W).write_text(
        re.sub(r", sha256: a721c17e\w+", "", text), encoding="utf-8"
    )  # missing, of the variant beside it
    fleet = (folder / I).read_text(encoding="utf-8")
    (folder / I).write_text(
        fleet.replace("from: edge, to: cloud, price: 8 USD/GiB", "from: cloud, to: edge, price: 8 USD"),
        encoding="utf-8",
    )
    with pytest.raises(DocumentError) as raised:
        load_project(folder)
    said = {problem.path: (problem.message, problem.hint) for problem in raised.value.problems}
    assert "is not a SHA-256" in said["operators.shape.variants.mlp.sha256"][0]
    assert said["operators.shape.variants.cnn-small"][1].startswith("write sha256: a721c17e")
    assert said["links.0.price"][1] == "did you mean 'USD/GiB'?"
    assert said["links.0"][0] == "the link goes from cloud back to edge"
