"""Folders of certificates that are wrong, replaced or about to expire."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from jellybean.serving import open_authority
from jellybean_agent import (
    CertificateFolder,
    ExpiredCertificateError,
    Identity,
    PlanViewError,
    Role,
    read_credentials,
    watch_expiry,
)
from jellybean_agent.security import expiry
from tests.support.simulated_time import run_in_simulated_time

ME, OTHER = Identity("w", Role.AGENT, "a"), Identity("w", Role.AGENT, "b")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    authority = open_authority(tmp_path / "ca")
    authority.equip(tmp_path / "a", ME)
    authority.equip(tmp_path / "b", OTHER)
    return tmp_path


def copied(name: str) -> Callable[[Path], object]:
    return lambda root: shutil.copy(root / "b" / name, root / "a" / name)


def written(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda root: (root / "a" / name).write_bytes(content)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda root: (root / "a/tls.crt").unlink(), "tls.crt: there is no such file or folder"),
        (lambda root: (root / "a/tls.key").chmod(0o644), "others may read the key; chmod 600 it"),
        (copied("tls.key"), "tls.key is not the key of tls.crt"),
        (written("tls.crt", b"nonsense"), "not a certificate, its CA and its key"),
        (written("tls.key", b"nonsense"), "not a certificate, its CA and its key"),
        (written("ca.crt", b"nonsense"), "not a certificate, its CA and its key"),
        (written("ca.crt", bytes(2**20 + 1)), "above 1048576 bytes: that is no certificate"),
    ],
)
def test_folders_that_are_wrong(root: Path, change: Callable[[Path], object], reason: str) -> None:
    change(root)
    with pytest.raises(PlanViewError, match=reason):
        CertificateFolder(root / "a")


def test_an_expired_certificate_is_refused_at_first(root: Path) -> None:
    open_authority(root / "ca").equip(root / "a", ME, life_s=-60.0)
    with pytest.raises(ExpiredCertificateError, match=r"tls.crt: the certificate has expired; "):
        CertificateFolder(root / "a")
    assert read_credentials(root / "a").identity == ME


def test_a_replaced_certificate_is_read_and_a_wrong_one_is_not(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    folder = CertificateFolder(root / "a")
    before = folder.current()
    assert (before.identity, folder.current() is before) == (ME, True)
    assert before.lifetime_s > 3600.0
    shutil.copy(root / "b/tls.crt", root / "a/tls.crt")
    os.utime(root / "a/tls.crt", ns=(1, 1))
    assert folder.current() is before, "the key does not fit it yet"
    assert "the last valid certificate stays in use" in caplog.messages[-1]
    shutil.copy(root / "b/tls.key", root / "a/tls.key")
    os.utime(root / "a/tls.key", ns=(2, 2))
    assert folder.current().identity == OTHER
    assert caplog.messages[-1] == "certificate of agent b renewed"
    count = len(caplog.messages)
    folder.current()
    assert len(caplog.messages) == count
    shutil.rmtree(root / "a")
    assert folder.current().identity == OTHER


def test_the_operator_is_told_before_and_after_the_end(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = CertificateFolder(root / "a")
    end_s, life_s = folder.current().expires_unix_s, folder.current().lifetime_s

    async def run() -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        monkeypatch.setattr(expiry.time, "time", lambda: end_s - 0.1 * life_s - 100.0 + loop.time() - began_s)
        watching = asyncio.create_task(watch_expiry(folder))
        await asyncio.sleep(90.0)
        assert caplog.messages == []
        await asyncio.sleep(120.0)
        (line,) = caplog.messages
        assert line.startswith(f"the certificate of this process, in {root}/a, expires on ")
        await asyncio.sleep(1000.0)
        assert len(caplog.messages) == 1, "it is said once"
        monkeypatch.setattr(expiry.time, "time", lambda: end_s + 1.0)
        await asyncio.sleep(61.0)
        assert " expired on " in caplog.messages[1]
        assert caplog.records[1].levelname == "ERROR"
        shutil.rmtree(root / "a")
        await asyncio.sleep(61.0)
        assert not watching.done()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await watch_expiry(None)

    run_in_simulated_time(run)
