"""Options of `jellybean gateway` reach the gateway's process."""

from __future__ import annotations

from pathlib import Path

import pytest

from jellybean.serving import JoinedSettings, gateway_arguments
from jellybean.serving.errors import LaunchError
from jellybean.serving.local import launcher
from tests.support.command_line import jellybean
from tests.support.scales_project import make_scales_project


@pytest.mark.parametrize(("given", "hours"), [((), 168.0), (("--certificate-hours", "1.5"), 1.5)])
def test_the_lifetime_of_the_boxes_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], hours: float
) -> None:
    arguments: list[str] = []

    def not_served(_directory: Path, _document: object, settings: JoinedSettings, **_more: object) -> None:
        arguments.extend(settings.gateway_arguments())
        raise LaunchError("not served in this test")

    monkeypatch.setattr(launcher, "serve_joined", not_served)
    project = make_scales_project(tmp_path / "scales")
    jellybean("gateway", str(project), "--peers", "peers.json", *given, status=1)
    files = ["--plan=plan.json", "--peers=peers.json", "--links=links"]
    assert gateway_arguments.gateway_parser().parse_args([*files, *arguments]).certificate_hours == hours
