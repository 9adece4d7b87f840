"""`jellybean certs`: what it makes, for whom, and that a second time renews."""

from __future__ import annotations

import json
import stat
from pathlib import Path

from jellybean.serving import certificate_hosts, open_authority
from jellybean_agent import CA_FILE, CERTIFICATE_FILE, PRIVATE_KEY_FILE, parse_identity, read_credentials
from jellybean_agent.enrolment.join_token import parse_token
from tests.support.command_line import jellybean
from tests.support.scales_project import make_scales_project


def test_certificates_for_every_part_and_renewed(tmp_path: Path) -> None:
    project = tmp_path / "vqa"
    jellybean("init", "vqa", str(project))
    made = json.loads(jellybean("certs", str(project), "--client", "alice", "--json").stdout)
    folder = Path(made["folder"])
    assert folder == project / ".jellybean/certs"
    assert {"gateway", "client/alice", "admin/admin"} < set(made["identities"])
    workers = [path for path in made["identities"] if path.startswith("agent/")]
    assert len(workers) == 5
    worker = workers[0].removeprefix("agent/")
    assert parse_token(jellybean("token", str(project), "--worker", worker).stdout.strip()).identity.name == worker
    for path, uri in made["identities"].items():
        found = read_credentials(folder / path)
        assert found.identity == parse_identity(uri)
        assert stat.S_IMODE((folder / path / PRIVATE_KEY_FILE).stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "ca" / PRIVATE_KEY_FILE).stat().st_mode) == 0o600
    before = {name: (folder / "gateway" / name).read_bytes() for name in (CA_FILE, CERTIFICATE_FILE, PRIVATE_KEY_FILE)}
    told = jellybean("certs", str(project), "--new-ca").stderr  # believed, and the old one goes on signing
    assert "signs from the next `jellybean certs` on" in " ".join(told.split())
    after = {name: (folder / "gateway" / name).read_bytes() for name in (CA_FILE, CERTIFICATE_FILE, PRIVATE_KEY_FILE)}
    assert after[CA_FILE].endswith(before[CA_FILE])
    assert after[CERTIFICATE_FILE] != before[CERTIFICATE_FILE]
    assert after[PRIVATE_KEY_FILE] != before[PRIVATE_KEY_FILE]
    jellybean("certs", str(project))
    assert (folder / "gateway" / CA_FILE).read_bytes() == after[
        CA_FILE
    ]  # believed as before, and now the new one signs
    assert not (folder / "ca" / "next.key").exists()
    (folder / "ca" / PRIVATE_KEY_FILE).write_text("no key", encoding="utf-8")
    done = jellybean("certs", str(project), status=1)
    assert "remove it, and a new one is made" in done.stderr


def test_what_is_left_alone_is_said_and_the_gateway_keeps_its_hosts(tmp_path: Path) -> None:
    project, folder = make_scales_project(tmp_path / "scales"), tmp_path / "certs"
    at = ("certs", str(project), "--out", str(folder))
    jellybean(*at, "--admin", "shortlived", "--client", "alice", "--host", "gateway.example", "--host", "10.0.0.1")
    authority, identity = open_authority(folder / "ca"), read_credentials(folder / "admin/shortlived").identity
    authority.equip(folder / "admin/shortlived", identity, life_s=-1.0)
    told = " ".join(jellybean(*at).stderr.split())
    assert "admin/shortlived is not renewed (expired on " in told
    assert f"`jellybean certs {project} --out {folder} --admin shortlived` renews it" in told
    assert "client/alice is not renewed (valid until " in told
    assert certificate_hosts(folder / "gateway") == ("localhost", "gateway.example", "127.0.0.1", "::1", "10.0.0.1")
    made = json.loads(jellybean(*at, "--admin", "shortlived", "--json").stdout)
    assert set(made["not_renewed"]) == {"admin/admin", "client/alice"}
