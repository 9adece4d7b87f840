"""A certificate that is about to expire is in its process's log, once, with the command that renews it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from prometheus_client.core import Metric

from jellybean.serving import open_authority
from jellybean_agent import CertificateFolder, Identity, Role, certificate_metrics
from jellybean_agent.security.expiry import ExpiryLog

HOUR_S = 3600.0


def messages(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    found = [(record.levelname, record.getMessage()) for record in caplog.records]
    caplog.clear()
    return found


def test_the_log_before_and_after_the_expiry(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    authority, gateway = open_authority(tmp_path / ".jellybean/certs/ca"), Identity("w", Role.GATEWAY)
    path = tmp_path / ".jellybean/certs/gateway"
    authority.equip(path, gateway, life_s=HOUR_S)
    folder = CertificateFolder(path)
    log, expires_unix_s = ExpiryLog(folder), folder.current().expires_unix_s
    assert 1.0 <= log.check(expires_unix_s - 0.5 * HOUR_S) <= 60.0
    assert messages(caplog) == []
    for left_s, level, words in ((300.0, "WARNING", "expires on"), (-1.0, "ERROR", "expired on")):
        for _ in range(2):
            log.check(expires_unix_s - left_s)
        ((said, text),) = messages(caplog)
        assert said == level
        assert f"the certificate of this process, in {path}, {words} 20" in text
        assert text.endswith(f"; run `jellybean certs {tmp_path}`")
    authority.equip(path, gateway, life_s=HOUR_S)
    log.check(expires_unix_s - 0.5 * HOUR_S)
    assert [level for level, _ in messages(caplog)] == ["INFO"]  # renewed


def test_a_box_that_joined_needs_a_token_in_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    open_authority(tmp_path / "ca").equip(tmp_path / "box/tls", Identity("w", Role.AGENT, "box-1"), life_s=HOUR_S)
    (tmp_path / "box/gateway").write_text("gateway.example:7000", encoding="utf-8")
    folder = CertificateFolder(tmp_path / "box/tls")
    ExpiryLog(folder).check(folder.current().expires_unix_s + 1.0)
    ((_, text),) = messages(caplog)
    assert "join with a new token (`jellybean token`)" in text


def test_metrics_of_the_expiry(tmp_path: Path) -> None:
    open_authority(tmp_path / "ca").equip(tmp_path / "tls", Identity("w", Role.AGENT, "box-1"), life_s=HOUR_S)
    folder = CertificateFolder(tmp_path / "tls")
    found: list[Metric] = list(certificate_metrics("box-1", folder))
    samples = {sample.name: (sample.labels, sample.value) for metric in found for sample in metric.samples}
    assert samples == {
        "jellybean_certificate_expires_timestamp_seconds": ({"process": "box-1"}, folder.current().expires_unix_s),
        "jellybean_certificate_lifetime_seconds": ({"process": "box-1"}, folder.current().lifetime_s),
    }
    assert HOUR_S <= folder.current().lifetime_s < 1.2 * HOUR_S
    assert not list(certificate_metrics("box-1", None))
