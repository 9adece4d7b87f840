"""The authority on disk: who signs and who is believed are changed apart, and only by who is asked to."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography import x509

from jellybean.serving import ServingError, open_authority, read_authority
from jellybean.serving.enrolment import authority
from jellybean_agent import CA_FILE, PRIVATE_KEY_FILE


def test_a_new_authority_is_believed_and_signs_only_when_certs_is_run_again(tmp_path: Path) -> None:
    old = open_authority(tmp_path)
    for _ in range(2):  # asked twice: still the one that waits
        assert open_authority(tmp_path, renew=True).certificate == old.certificate
    for _ in range(3):  # boxes that renew at the gateway meanwhile
        between = read_authority(tmp_path)
        assert between.certificate == old.certificate
        assert between.bundle.endswith(old.bundle)
        assert len(x509.load_pem_x509_certificates(between.bundle)) == 2
    after = open_authority(tmp_path)
    assert after.certificate == x509.load_pem_x509_certificates(after.bundle)[0] != old.certificate
    assert after.bundle == between.bundle


def test_a_stop_while_one_is_made_leaves_the_old_one_signing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = open_authority(tmp_path)
    real = authority.write_private_file

    def write(path: Path, data: bytes) -> None:
        if path.name == CA_FILE:
            raise OSError("no space left on device")
        real(path, data)

    monkeypatch.setattr(authority, "write_private_file", write)
    with pytest.raises(OSError, match="no space"):
        open_authority(tmp_path, renew=True)
    monkeypatch.undo()
    assert open_authority(tmp_path).certificate == read_authority(tmp_path).certificate == old.certificate


def test_reading_makes_none(tmp_path: Path) -> None:
    with pytest.raises(ServingError, match="`jellybean certs` makes one"):
        read_authority(tmp_path / "mistyped")
    assert not (tmp_path / "mistyped").exists()
    open_authority(tmp_path / "ca")
    open_authority(tmp_path / "other")
    (tmp_path / "ca" / PRIVATE_KEY_FILE).write_bytes((tmp_path / "other" / PRIVATE_KEY_FILE).read_bytes())
    with pytest.raises(ServingError, match="is not the key of"):
        read_authority(tmp_path / "ca")
