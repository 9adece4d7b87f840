"""Files, modules, commands, options, benchmarks, extras and metrics that the documentation names exist."""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest

import benchmarks.__main__  # noqa: F401  (registers the benchmarks)
from benchmarks.harness.registry import BENCHMARKS
from tests.support.command_line import jellybean
from tests.support.pages import PAGES, Page
from tests.support.paths import ROOT

PACKAGES = {  # by import name: the folder that holds it
    "jellybean": ".", "jellybean_solver": "solver", "jellybean_agent": "edge_agent", "jellybean_k8s": "k8s",
    "jellybean_protos": "protos", "benchmarks": ".", "tests": ".",
}  # fmt: skip
FOLDERS = ("jellybean", "solver", "edge_agent", "k8s", "protos", "benchmarks", "tests", "examples")
GROUPS = frozenset({"pipeline", "operator"})  # commands that have commands
READERS_FILES = frozenset({"FILE.py", "my_steps.py"})
NOT_MODULES = ("jellybean.dev", "jellybean.rules")  # the prefix of labels, a file of rules
OTHER_PROGRAMS = frozenset(
    {
        "--build-arg", "--push", "--platform",  # docker
        "--cacert", "--cert", "--key",  # curl
        "--create-namespace", "--server-side", "--for",  # helm, kubectl
        "--ignore-daemonsets", "--delete-emptydir-data",
        "--durations", "--strict", "--no-deps",  # pytest, mypy, pip
        "--logdir", "--max-restarts", "--nnodes", "--nproc-per-node", "--rdzv-backend",  # tensorboard, torchrun
        "--now", "--system", "--home",  # systemctl, useradd
        "--help",
    }
)  # fmt: skip
METRIC = r"(?<![\w./])jellybean_\w+_(?:total|seconds|ratio|bytes|percent|usd_per_h|ready|queued)\b"
OPTION = r"(?<![\w-])--[a-z][\w-]*"
METRIC_PREFIXES = ("", *(f"{part}_" for part in ("operator", "gateway", "relay", "plan", "slo", "ledger")))


@cache
def files() -> frozenset[str]:
    """Paths of the files in the repository's folders."""
    return frozenset(
        path.relative_to(ROOT).as_posix()
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if "__pycache__" not in path.parts
    )


@cache
def ends_of_files() -> frozenset[str]:
    """Every path that ends a Python file's, from the name alone to the whole path."""
    parts = [path.split("/") for path in files() if path.endswith(".py")]
    return frozenset("/".join(path[start:]) for path in parts for start in range(len(path)))


@cache
def source_text(*folders: str) -> str:
    """The Python files of these folders, one after another."""
    paths = (path for path in sorted(files()) if path.endswith(".py") and path.startswith(tuple(folders)))
    return "\n".join((ROOT / path).read_text(encoding="utf-8") for path in paths)


def is_there(name: str) -> bool:
    """True for a module, a name in it, a name that a package exports, a service of a protocol, or a key of traces."""
    if name.startswith(NOT_MODULES):
        return True
    parts = name.split(".")
    folder = ROOT / PACKAGES[parts[0]]
    depth = next(count for count in range(len(parts), 0, -1) if module_file(folder, parts[:count]) is not None)
    module = module_file(folder, parts[:depth])
    assert module is not None
    stub = module.with_suffix(".pyi")  # the names that a package loads on first use
    text = module.read_text(encoding="utf-8") + (stub.read_text(encoding="utf-8") if stub.exists() else "")
    return all(re.search(rf"\b{part}\b", text) for part in parts[depth:]) or is_said(name)


def module_file(folder: Path, parts: list[str]) -> Path | None:
    path = folder.joinpath(*parts)
    found = (path.with_suffix(".py"), path / "__init__.py", path / "__main__.py")
    return next((file for file in found if file.is_file()), None)


def is_said(name: str) -> bool:
    """True for a service of a protocol, the key of a span's attribute, or a text of the program."""
    package, _, service = name.rpartition(".")
    protos = ((ROOT / path).read_text(encoding="utf-8") for path in files() if path.endswith(".proto"))
    in_protocol = any(f"package {package};" in text and f"service {service} " in text for text in protos)
    is_attribute = package == "jellybean" and f"{service}=" in source_text("jellybean", "edge_agent")
    return in_protocol or is_attribute or f'"{name}"' in source_text("jellybean", "edge_agent")


@cache
def known_options() -> frozenset[str]:
    """Options that any program of the repository reads: written out, or the name of a command's parameter."""
    text = source_text(*(folder for folder in FOLDERS if folder != "tests"), "tests/tools")
    parameters = re.findall(r"^    ([a-z]\w*): ", source_text("jellybean/cli"), flags=re.MULTILINE)
    written = re.findall(r"""["'/,](--[a-z][\w-]*)""", text)
    return frozenset({*written, *("--" + name.replace("_", "-") for name in parameters), *OTHER_PROGRAMS})


def uses() -> dict[tuple[str, ...], dict[str, str]]:
    """Options by command of `jellybean`, each with a page that names it; also of `plan --add`, without the program."""
    found: dict[tuple[str, ...], dict[str, str]] = defaultdict(dict)
    for page in PAGES:
        for program, words in page.commands:
            if program == "jellybean" and words and re.fullmatch("[a-z][a-z0-9-]*", words[0]):
                name = words[: 2 if words[0] in GROUPS else 1]
                found[name].update(dict.fromkeys(options_in(words), page.name))
    for page in PAGES:
        for line in page.code:
            words = tuple(line.split())
            if words[:1] in found and len(words) > 1 and words[1].startswith("--"):
                found[words[:1]].update(dict.fromkeys(options_in(words[:2]), page.name))
    return found


def options_in(words: tuple[str, ...]) -> list[str]:
    return [match[0] for word in words if (match := re.match(r"--[a-z][\w-]*", word))]


USES = {
    name: options for name, options in uses().items() if all(re.fullmatch("[a-z][a-z0-9-]*", word) for word in name)
}


def missing(pattern: str, is_known: Callable[[str], object], among: Sequence[Page] = PAGES) -> list[tuple[str, str]]:
    """What the pattern finds in the pages' code and is not known, with its page."""
    return [(page.name, word) for page in among for word in sorted(page.words(pattern)) if not is_known(word)]


def test_python_files_exist() -> None:
    def is_file(name: str) -> bool:
        project = re.sub(r"^my-\w+/", "", name)  # a file of an example that was copied
        names = {project, re.sub(r"^agent/", "jellybean_agent/", project)}
        return name in READERS_FILES or not names.isdisjoint(ends_of_files())

    assert missing(r"(?<![\w./<-])[\w./-]+\.py\b", is_file) == []


def test_folders_and_files_of_the_repository_exist() -> None:
    top = "|".join((*FOLDERS, "docs"))
    made_by_readers = "k8s/images/EXTRA.txt"
    paths = rf"(?<![\w./{{$-])(?:{top})/[\w./*-]*\w"
    assert missing(paths, lambda name: name == made_by_readers or any(ROOT.glob(name))) == []


def test_modules_exist() -> None:
    assert missing(rf"(?<![\w./\"-])(?:{'|'.join(PACKAGES)})(?:\.\w+)+", is_there) == []


@pytest.mark.parametrize("name", sorted(USES), ids=" ".join)
def test_commands_have_the_options_that_pages_name(name: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    shown = set(re.findall(OPTION, jellybean(*name, "--help").stdout))
    assert {option: page for option, page in USES[name].items() if option not in shown} == {}


def test_options_exist_somewhere() -> None:
    assert missing(OPTION, known_options().__contains__) == []


def test_modules_that_are_run_and_benchmarks_exist() -> None:
    runs = {(program.split()[-1], words) for page in PAGES for program, words in page.commands if " -m " in program}
    assert {module for module, _ in runs if module != "pytest" and not is_there(module)} == set()
    named = {
        word for module, words in runs if module == "benchmarks" for word in words if re.fullmatch(r"[a-z]\w+", word)
    }
    assert named - set(BENCHMARKS) == set()


def test_targets_of_make_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    named = {
        words[0]
        for page in PAGES
        for program, words in page.commands
        if program == "make" and words and not words[-1].endswith(":")  # "make it with:" is a message
    }
    assert named - targets == set()


def test_extras_exist_and_name_nothing_on_an_index() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(project["optional-dependencies"])
    assert missing(r"pip install '\.\[([\w,-]+)\]'", lambda names: set(names.split(",")) <= extras) == []
    assert missing(rf"pip install '?{project['name']}", lambda _: False) == []


def test_metrics_exist() -> None:
    text = source_text("jellybean", "edge_agent")

    def is_metric(name: str) -> bool:
        rest = name.removeprefix("jellybean_")
        ends = [rest.removeprefix(prefix).removesuffix("_total") for prefix in METRIC_PREFIXES]
        return any(f"{before}{end}" in text for end in ends for before in '"_}')

    assert missing(METRIC, is_metric) == []


def test_there_is_something_to_check() -> None:
    commands = [command for page in PAGES for command in page.commands]
    assert sum(program == "jellybean" for program, _ in commands) > 100
    assert sum(program == "python -m benchmarks" for program, _ in commands) > 30
    assert len(USES) > 30
    assert sum(map(len, USES.values())) > 100
    assert len({name for page in PAGES for name in page.words(r"[\w/]+\.py\b")}) > 200
    assert len({name for page in PAGES for name in page.words(METRIC)}) > 30


def test_what_does_not_exist_is_found() -> None:
    assert is_there("jellybean.planning.explain.explain_project")
    assert not is_there("jellybean.planning.nothing")
    assert "ledger/queries/source.py" in ends_of_files()
    assert "ledger/source.py" not in ends_of_files()
    assert "--nothing-of-this-name" not in known_options()
