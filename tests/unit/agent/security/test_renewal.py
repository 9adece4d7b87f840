"""The command that renews an expired certificate, by the folder that has it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from jellybean.serving import CertificateError, open_authority, usable_certificates
from jellybean_agent import CertificateFolder, ExpiredCertificateError, Identity, Role


@pytest.mark.parametrize(
    ("role", "name", "option"),
    [
        (Role.ADMIN, "admin", ""),
        (Role.ADMIN, "shortlived", " --admin shortlived"),
        (Role.CLIENT, "alice b", " --client 'alice b'"),
        (Role.AGENT, "box-1", ""),
        (Role.RELAY, "relay", " --relay"),
        (Role.GATEWAY, "", ""),
    ],
)
@pytest.mark.parametrize("out", [".jellybean/certs", "elsewhere"])
def test_an_expired_certificate_names_the_command_that_renews_it(
    tmp_path: Path, role: Role, name: str, option: str, out: str
) -> None:
    project = tmp_path / "my-digits"
    root = project / out
    folder = root / role.value / name
    open_authority(root / "ca").equip(folder, Identity("w", role, name), life_s=-1.0)
    is_default = out.startswith(".jellybean")
    at = "" if is_default else f" --out {root}"
    with pytest.raises(ExpiredCertificateError) as caught:
        CertificateFolder(folder)
    command = f"run `jellybean certs {project if is_default else 'DIR'}{at}{option}`"
    assert str(caught.value) == f"{folder / 'tls.crt'}: the certificate has expired; {command}"
    with (
        pytest.raises(CertificateError, match="has expired; run `jellybean certs ") as known,
        usable_certificates(project),
    ):
        CertificateFolder(folder)
    assert str(known.value).endswith(f"run `jellybean certs {project}{at}{option}`")


def test_a_copied_folder_is_renewed_where_it_was_made(tmp_path: Path) -> None:
    made = tmp_path / "certs/admin/shortlived"
    open_authority(tmp_path / "certs/ca").equip(made, Identity("w", Role.ADMIN, "shortlived"), life_s=-1.0)
    copy = shutil.copytree(made, tmp_path / "copy/admin")
    advice = "run `jellybean certs DIR --admin shortlived` in the project that made it, and copy its folder here"
    with pytest.raises(ExpiredCertificateError, match=advice):
        CertificateFolder(copy)


def test_a_mounted_certificate_is_renewed_in_its_secret(tmp_path: Path) -> None:
    made = tmp_path / "secret"
    open_authority(tmp_path / "certs/ca").equip(made, Identity("w", Role.AGENT, "box-1"), life_s=-1.0)
    (tmp_path / "tls").mkdir()
    for file in made.iterdir():
        (tmp_path / "tls" / file.name).symlink_to(file)
    with pytest.raises(
        ExpiredCertificateError, match="mounted from a Secret, which `jellybean certs DIR --renew` renews"
    ):
        CertificateFolder(tmp_path / "tls")
