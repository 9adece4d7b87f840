"""Wrong options of relay and tunnel: status 2 and one sentence."""

from __future__ import annotations

import json
import logging
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from jellybean.serving import open_authority
from jellybean_agent import Identity, Role
from jellybean_agent.relay.__main__ import main as relay
from jellybean_agent.tunnel.__main__ import main as tunnel
from tests.support.ports import free_port


@pytest.fixture(autouse=True)
def _process_settings() -> Iterator[None]:
    """Keep the handlers of pytest and its limit on open files: the processes set both."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    root.handlers = handlers
    root.setLevel(level)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of a relay and of worker edge-1, and files of ports and targets."""
    found = tmp_path_factory.mktemp("options")
    authority = open_authority(found / "ca")
    authority.equip(found / "relay", Identity("tiny", Role.RELAY, "relay"))
    authority.equip(found / "edge-1", Identity("tiny", Role.AGENT, "edge-1"))
    authority.equip(found / "expired", Identity("tiny", Role.RELAY, "relay"), life_s=-60.0)
    (found / "workers.json").write_text(json.dumps({str(free_port()): "edge-1"}), encoding="utf-8")
    (found / "targets.json").write_text(json.dumps({"": "127.0.0.1:7000"}), encoding="utf-8")
    (found / "ports.json").write_text(json.dumps({"http": "edge-1"}), encoding="utf-8")
    (found / "empty.json").write_text(json.dumps({"7101": ""}), encoding="utf-8")
    (found / "both.json").write_text(json.dumps({"edge-1": "127.0.0.1:7001"}), encoding="utf-8")
    (found / "address.json").write_text(json.dumps({"": "7000"}), encoding="utf-8")
    (found / "list.json").write_text("[]", encoding="utf-8")
    (found / "mixed.json").write_text(json.dumps({"7101": "edge-1", "7102": 5}), encoding="utf-8")
    return found


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"listen": "7443"}, "'7443' is no address: write HOST:PORT"),
        ({"listen": None}, "the following arguments are required: --listen"),
        ({"workers": None}, "the following arguments are required: --workers"),
        ({"tls": None}, "the following arguments are required: --tls"),
        ({"workers": "nowhere.json"}, "nowhere.json: there is no such file or folder"),
        ({"workers": "ports.json"}, "ports.json: 'http' is no port"),
        ({"workers": "empty.json"}, "empty.json: a worker has an empty name, which is the gateway's"),
        ({"workers": "list.json"}, "list.json: not a JSON object of ports to names"),
        ({"workers": "mixed.json"}, "mixed.json: not a JSON object of ports to names"),
        ({"targets": "both.json"}, "both.json: edge-1 is a remote worker too, in "),
        ({"targets": "address.json"}, "address.json: '7000' is no address: write HOST:PORT"),
        ({"tls": "edge-1"}, "edge-1: the certificate is of jellybean://tiny/agent/edge-1, not of a relay or gateway"),
        ({"tls": "expired"}, "tls.crt: the certificate has expired; "),
        ({"drain-s": "soon"}, "argument --drain-s: 'soon' is no number of seconds"),
        ({"health-port": "70000"}, "argument --health-port: '70000' is no port"),
        ({"bind": "203.0.113.1"}, "cannot listen on 203.0.113.1:"),
        ({"deployment": "a" * 129}, "is no ID: at most 128 bytes, all printable"),
    ],
)
def test_what_a_relay_refuses(
    folder: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, str | None], told: str
) -> None:
    options = {"listen": f"127.0.0.1:{free_port()}", "workers": "workers.json", "targets": "targets.json"}
    _refused(relay, folder, {**options, "tls": "relay"} | changes, capsys, told)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"relay": "relay.example"}, "'relay.example' is no address: write HOST:PORT"),
        ({"agent": "unix:/tmp/a.sock"}, "'unix:/tmp/a.sock' is no address: write HOST:PORT"),
        ({"worker": "edge-2"}, "is of jellybean://tiny/agent/edge-1, this is jellybean://tiny/agent/edge-2"),
        ({"workflow": "other"}, "is of jellybean://tiny/agent/edge-1, this is jellybean://other/agent/edge-1"),
        ({"tls": "relay"}, "the certificate is of jellybean://tiny/relay/relay, this is jellybean://tiny/agent/edge-1"),
        ({"plan": "list.json"}, "argument --plan: not allowed with argument --workflow"),
        ({"peers": "ports.json"}, "ports.json: 'http' is no port"),
        ({"peers": "workers.json", "bind": "203.0.113.1"}, "cannot listen on 203.0.113.1:"),
        ({"deployment": "a\n"}, "argument --deployment: 'a\\n' is no ID: at most 128 bytes, all printable"),
    ],
)
def test_what_a_tunnel_refuses(
    folder: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, str | None], told: str
) -> None:
    options = {"relay": "127.0.0.1:7443", "agent": "127.0.0.1:7001", "worker": "edge-1", "workflow": "tiny"}
    _refused(tunnel, folder, {**options, "tls": "edge-1"} | changes, capsys, told)


def _refused(
    main: object, folder: Path, options: dict[str, str | None], capsys: pytest.CaptureFixture[str], told: str
) -> None:
    files = ("tls", "workers", "targets", "peers", "plan")
    argv = [f"--{name}={folder / text if name in files else text}" for name, text in options.items() if text]
    try:
        status = main(argv)  # type: ignore[operator]
    except SystemExit as error:
        status = error.code
    (line,) = capsys.readouterr().err.splitlines()
    assert status == 2
    assert told in line
