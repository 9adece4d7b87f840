"""`jellybean certs --relay` makes the certificate of a relay, which it does not renew without the option."""

from __future__ import annotations

from pathlib import Path

from jellybean_agent import Role, read_credentials
from tests.support.command_line import jellybean
from tests.support.scales_project import make_scales_project


def test_certs_makes_and_renews_the_certificate_of_a_relay(tmp_path: Path) -> None:
    project = make_scales_project(tmp_path / "scales")
    folder = project / ".jellybean/certs/relay/relay"
    jellybean("plan", str(project))
    jellybean("certs", str(project))
    assert not folder.exists()
    jellybean("certs", str(project), "--relay")
    made = read_credentials(folder)
    assert made.identity.role is Role.RELAY
    done = jellybean("certs", str(project))
    assert f"`jellybean certs {project} --relay` renews it" in " ".join((done.stdout + done.stderr).split())
    assert read_credentials(folder).chain == made.chain
    jellybean("certs", str(project), "--relay")
    assert read_credentials(folder).chain != made.chain
