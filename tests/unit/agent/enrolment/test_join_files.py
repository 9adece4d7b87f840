"""A box's certificate on disk: whatever stops a renewal, key and certificate fit each other."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from jellybean.serving import Authority, open_authority
from jellybean_agent import (
    CA_FILE,
    CERTIFICATE_FILE,
    PRIVATE_KEY_FILE,
    CertificateFolder,
    Identity,
    ModelError,
    Role,
    file_sha256,
    plan_view,
    read_credentials,
    steps,
)
from jellybean_agent.brain.plan_view import PythonView
from jellybean_agent.enrolment import join
from jellybean_agent.security.certificates import CREDENTIAL_FILES
from jellybean_agent.system import private_files
from jellybean_protos.enrol.v1 import enrol_pb2
from tests.support.tiny_models import make_plan

ME = Identity("tiny", Role.AGENT, "edge-1")


def issue(authority: Authority) -> tuple[bytes, enrol_pb2.Certificate]:
    key, request = join._key_and_request(ME)
    public = x509.load_der_x509_csr(request).public_key()
    return key, enrol_pb2.Certificate(chain=authority.sign(ME, public), ca=authority.bundle)


@pytest.mark.parametrize("as_before", [False, True], ids=["links", "plain files"])
def test_a_renewal_that_stops_anywhere_leaves_a_whole_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_before: bool
) -> None:
    authority, tls = open_authority(tmp_path / "ca"), tmp_path / "tls"
    if as_before:
        authority.equip(tls, ME)
    else:
        join.write_credentials(tls, *issue(authority))
    used, first, steps = CertificateFolder(tls), read_credentials(tls).chain, 0
    real = Path.replace

    for stop_at in range(20):
        left = [stop_at]

        def replace(path: Path, target: Path, left: list[int] = left) -> Path:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, "no space left on device")
            return real(path, target)

        monkeypatch.setattr(Path, "replace", replace)
        try:
            join.write_credentials(tls, *issue(authority))
        except OSError:
            steps += 1
            assert read_credentials(tls).chain == first
        else:
            break
        finally:
            monkeypatch.undo()
    assert steps >= 4  # three files and the link
    assert used.current().chain == read_credentials(tls).chain != first
    assert all((tls / name).is_symlink() for name in CREDENTIAL_FILES)
    assert len([path for path in tls.iterdir() if path.is_dir() and not path.is_symlink()]) == 1
    assert (tls / PRIVATE_KEY_FILE).stat().st_mode & 0o077 == 0
    assert {path.name for path in (tls / "..data").iterdir()} == {CA_FILE, CERTIFICATE_FILE, PRIVATE_KEY_FILE}


def test_the_renewing_task_outlives_a_folder_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    join.write_credentials(tmp_path / "tls", *issue(open_authority(tmp_path / "ca")))
    (tmp_path / "tls" / CERTIFICATE_FILE).unlink()
    sleeps: list[float] = []

    async def sleep(seconds: float) -> Any:
        sleeps.append(seconds)
        if len(sleeps) == 2:
            raise asyncio.CancelledError

    monkeypatch.setattr(join.asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(join.keep_renewed(tmp_path))
    assert "tried again" in caplog.text


def test_paths_that_lead_out() -> None:
    inside = {path: private_files.stays_inside_folder(path) for path in ("a/b..c", "..", "a/../b", "/a")}
    assert inside == {"a/b..c": True, "..": False, "a/../b": False, "/a": False}


def test_a_plan_with_another_version_of_a_step_is_refused_before_it_is_served(tmp_path: Path) -> None:
    document = make_plan(tmp_path, {"o": (["x"], "0" * 64)}, [(1.0, {"o": "edge-1"})], sources={"x": "edge"})
    view = plan_view(document)
    for sha256 in (file_sha256(Path(steps.__file__)), "0" * 64):
        step = replace(view.operators["o"], python=PythonView("jellybean_agent.steps:softmax", "{}", sha256))
        is_other = sha256 == "0" * 64
        with pytest.raises(ModelError, match=r"o: .* another version") if is_other else contextlib.nullcontext():
            join._require_python(replace(view, operators={"o": step}), view.workers["edge-1"], frozenset())


def test_a_full_disk_leaves_the_old_pair_and_no_part_of_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, tls = open_authority(tmp_path / "ca"), tmp_path / "tls"
    join.write_credentials(tls, *issue(authority))
    before, names = read_credentials(tls).chain, sorted(path.name for path in tls.iterdir())

    def full(_path: Path, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(join, "write_private_file", full)
    with pytest.raises(OSError, match="No space left"):
        join.write_credentials(tls, *issue(authority))
    assert read_credentials(tls).chain == before
    assert sorted(path.name for path in tls.iterdir()) == names
