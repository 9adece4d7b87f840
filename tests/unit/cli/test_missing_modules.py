"""Modules that are not installed: one sentence with the extra that brings them, and what to type; never a traceback."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from jellybean.cli.command_table import PROGRAM, rows_of
from jellybean_protos.extras import DISTRIBUTION, MODULES_OF_EXTRAS, PACKAGES, install_command, missing_module_text
from tests.support.missing_modules import run_without
from tests.support.paths import ROOT

ALL = [module for modules in MODULES_OF_EXTRAS.values() for module in modules]
MODULE_OF = {  # requirement -> its module, where that has another name
    "PyYAML": "yaml",
    "prometheus-client": "prometheus_client",
    "grpcio-health-checking": "grpc_health",
    "grpcio-reflection": "grpc_reflection",
    "ruamel.yaml": "ruamel",
    "pillow": "PIL",
    "opentelemetry-sdk": "opentelemetry",
    "opentelemetry-exporter-otlp": "opentelemetry",
    "scikit-learn": "sklearn",
    "rapidocr-onnxruntime": "rapidocr_onnxruntime",
    "opencv-python-headless": "cv2",
}

DEPENDENCIES = {"urllib3", "pydantic_core", "annotated_types", "markupsafe"}  # of libraries that an extra names
OPTIONAL = {"pynvml"}  # does without where it is not installed


def test_the_base_alone_has_version_and_help_and_names_the_extra_of_each_command() -> None:
    commands = [["jellybean", name] for name in rows_of(PROGRAM)]
    version, shown, *refused = run_without(ALL, ["jellybean", "--version"], ["jellybean", "--help"], *commands)
    assert (version.status, version.err, shown.status, shown.err) == (0, "", 0, "")
    assert re.fullmatch(r"jellybean \d+\.\S+\n", version.out)
    assert "validate" in shown.out
    for (_, name), ended in zip(commands, refused, strict=True):
        extras = ["plan", *rows_of(PROGRAM)[name].extras]
        reason = f"jellybean {name}: typer is not installed; the extra `plan` brings it: {install_command(*extras)}\n"
        assert ended == (1, "", reason)


def test_json_has_the_sentence_as_an_error() -> None:
    (ended,) = run_without(ALL, ["jellybean", "plan", "my-digits", "--json"])
    assert json.loads(ended.out) == {"error": {"kind": "failure", "message": ended.err.rstrip(), "problems": []}}
    assert (ended.status, ended.err.count("\n")) == (1, 1)


def test_an_agent_says_so_too() -> None:
    reason = f"jellybean-agent: numpy is not installed; the extra `agent` brings it: {install_command('agent')}\n"
    assert run_without(ALL, ["jellybean-agent", "--help"], ["jellybean-agent"]) == [(1, "", reason)] * 2


def test_an_import_in_a_program_of_a_user_says_so_too() -> None:
    (ended,) = run_without(ALL, ["import", "jellybean", "Client"])
    assert ended.err.endswith(
        f"\nImportError: jellybean.Client: numpy is not installed; the extra `agent` brings it: "
        f"{install_command('agent')}\n"
    )


@pytest.mark.slow
def test_what_other_commands_need_is_not_asked_for() -> None:
    others = [module for module in ALL if module not in MODULES_OF_EXTRAS["plan"] + MODULES_OF_EXTRAS["agent"]]
    definition, operator = run_without(others, ["jellybean", "operator", "crd"], ["jellybean", "operator", "run"])
    assert (definition.status, definition.err) == (0, "")
    assert operator == (
        1,
        "",
        f"jellybean operator: kopf is not installed; the extra `operator` brings it: {install_command('operator')}\n",
    )


@pytest.mark.parametrize(
    ("importer", "module", "is_blamed"),
    [
        ("jellybean.training.models.lora", "peft", True),
        ("jellybean_k8s.cluster.cluster", "kubernetes.client", True),
        ("my_steps", "peft", False),
        ("jellybean.cli.app", "jellybean.cli.no_module", False),
        ("jellybean.cli.app", "my_steps", False),
    ],
)
def test_only_this_projects_imports_are_a_matter_of_extras(
    importer: str, module: str, is_blamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in {module, module.partition(".")[0]} - {"jellybean"}:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError) as refused:
        exec(f"import importlib\nimportlib.import_module({module!r})", {"__name__": importer})
    assert bool(missing_module_text(refused.value)) is is_blamed


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ({}, "pip install 'jellybean-serving[http,otel]'"),
        ({"url": "file://{here}/my%20wheels/it.whl"}, "pip install '{here}/my wheels/it.whl[http,otel]'"),
        ({"url": "file://{here}/gone.whl"}, "pip install 'jellybean-serving[http,otel]'"),
        ({"url": "file://{here}", "dir_info": {}}, "pip install '{here}[http,otel]'"),
        ({"url": "file://{here}", "dir_info": {"editable": True}}, "pip install -e '{here}[http,otel]'"),
        ({"url": "https://x.example/it.whl"}, "pip install 'jellybean-serving[http,otel] @ https://x.example/it.whl'"),
        (
            {"url": "https://x.example/it", "vcs_info": {"vcs": "git", "commit_id": "1a2b"}},
            "pip install 'jellybean-serving[http,otel] @ git+https://x.example/it@1a2b'",
        ),
    ],
)
def test_what_to_type_depends_on_where_the_installation_came_from(
    origin: dict[str, Any], command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my wheels").mkdir()
    (tmp_path / "my wheels" / "it.whl").touch()
    installed = tmp_path / f"{DISTRIBUTION.replace('-', '_')}-9.9.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: 9.9\n", encoding="utf-8"
    )
    if origin:
        text = json.dumps(origin).replace("{here}", str(tmp_path))
        (installed / "direct_url.json").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert install_command("http", "otel", "http") == command.replace("{here}", str(tmp_path))


def test_the_table_has_every_module_of_the_extras_and_the_extra_that_names_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    modules = {
        extra: [_module(each) for each in needed if DISTRIBUTION not in each] for extra, needed in extras.items()
    }
    modules["agent"] += modules["agent-core"]
    for extra, of_extra in MODULES_OF_EXTRAS.items():
        assert {*of_extra} - DEPENDENCIES <= {*modules[extra]}, extra
    assert {each for extra in MODULES_OF_EXTRAS for each in modules[extra]} | DEPENDENCIES == {*ALL}


def test_the_table_has_every_module_that_the_project_imports_and_the_base_lacks() -> None:
    line = re.compile(r"^ *(?:from (\w+)[\w.]* import |import (\w+)[\w.]*(?: as \w+)?(?: +#.*)?$)", re.MULTILINE)
    folders = [ROOT / "jellybean", *(ROOT / each for each in ("solver", "protos", "edge_agent", "k8s"))]
    texts = (file.read_text(encoding="utf-8") for folder in folders for file in folder.rglob("*.py"))
    imported = {name for text in texts for names in line.findall(text) for name in names if name}
    assert {"numpy", "kubernetes", "torch", "urllib3"} <= imported
    base = {"grpc", "google", "lazy_loader"}
    assert imported - {*sys.stdlib_module_names} - PACKAGES - base - OPTIONAL - {*ALL} == set()


def _module(requirement: str) -> str:
    name = re.split(r"[\[<>=!;, ]", requirement)[0]
    return MODULE_OF.get(name, name)
