"""Options of a run that are refused are invalid input: exit status 2, before anything is planned or started."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jellybean.cli.failures import status_of
from jellybean.serving import SettingsError, open_authority
from jellybean.serving.local.commands import require_allowed
from jellybean.serving.local.launcher import _Launch
from jellybean_agent import Identity, Role
from tests.support.command_line import jellybean
from tests.support.scales_project import make_scales_project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def started(*_arguments: object, **_more: object) -> None:
        raise AssertionError("a run was started")

    monkeypatch.setattr(_Launch, "__init__", started)
    return make_scales_project(tmp_path / "scales")


def said(text: str) -> str:
    """A message without the box that it is printed in."""
    return " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--port", "8472"), "a port is open to every user of this machine: --tls FOLDER"),
        (("--http-port", "8472"), "a port is open to every user of this machine: --tls FOLDER"),
        (("--port", "8472", "--tls", "certs", "--insecure"), "--tls and --insecure exclude each other"),
        (("--port", "8472", "--metrics-port", "8472", "--insecure"), "--port and --metrics-port are both 8472"),
    ],
)
def test_options_of_up_that_exclude_each_other(project: Path, options: tuple[str, ...], message: str) -> None:
    done = jellybean("up", str(project), "--detach", *options, status=2)
    assert message in said(done.stderr)
    assert not (project / "plan.json").exists()
    answer = json.loads(jellybean("up", str(project), "--detach", "--json", *options, status=2).stdout)
    assert answer["error"]["kind"] == "usage"


def test_a_certificate_that_up_cannot_use(project: Path) -> None:
    done = jellybean("up", str(project), "--port", "0", "--tls", "missing", status=2)
    assert f"there is no such file or folder; run `jellybean certs {project}`" in said(done.stderr)


@pytest.mark.parametrize("option", ["--listen", "--enrol"])
def test_an_address_that_gateway_cannot_use(project: Path, option: str) -> None:
    authority = open_authority(project / ".jellybean/certs/ca")
    authority.equip(project / ".jellybean/certs/gateway", Identity("scales", Role.GATEWAY))
    peers = {name: f"127.0.0.1:{7000 + number}" for number, name in enumerate(("", "box-1", "server-1"))}
    (project / "peers.json").write_text(json.dumps(peers), encoding="utf-8")
    done = jellybean("gateway", str(project), "--peers", str(project / "peers.json"), option, "nowhere", status=2)
    assert "'nowhere' is no address: write HOST:PORT, or [IPV6]:PORT" in said(done.stderr)


def test_ports_of_gateway_that_are_the_same(project: Path) -> None:
    done = jellybean("gateway", str(project), "--peers", "x", "--port", "8472", "--http-port", "8472", status=2)
    assert "--port and --http-port are both 8472" in said(done.stderr)
    assert not (project / ".jellybean").exists()


def test_a_function_that_is_not_allowed() -> None:
    operator = SimpleNamespace(name="look", variant="thirds", python=SimpleNamespace(function="my_steps:thirds"))
    view: Any = SimpleNamespace(variants=[operator])
    with pytest.raises(SettingsError, match=r"look/thirds: .* --allow-python my_steps:thirds") as refusal:
        require_allowed(view, frozenset())
    assert status_of(refusal.value) == 2


def test_a_workflow_where_there_is_only_one(project: Path) -> None:
    done = jellybean("bench", str(project), "--workflow", "barn", status=2)
    assert "--workflow barn: the project has no workflow 'barn'; it has scales" in said(done.stderr)
    done = jellybean("bench", str(project), "--workflow", "scales", status=1)
    assert "no workflow" not in said(done.stderr)


def test_a_clients_name_that_is_no_folder(project: Path) -> None:
    jellybean("certs", str(project), "--client", "../alice", status=2)


@pytest.mark.parametrize(
    "command", ["down --timeout", "apply --timeout", "profile --seconds", "pipeline profile --seconds"]
)
@pytest.mark.parametrize("value", ["inf", "nan", "1e300"])
def test_times_without_an_end_are_refused(project: Path, command: str, value: str) -> None:
    *words, option = command.split()
    assert f"Invalid value for '{option}'" in said(
        jellybean(*words, str(project), f"{option}={value}", status=2).stderr
    )
