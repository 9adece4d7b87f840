"""How a certificate in a folder is renewed: the command of the authority that made it."""

from __future__ import annotations

import datetime
import shlex
from pathlib import Path

from jellybean_agent.errors import PlanViewError
from jellybean_agent.security.identity import Identity, Role

_CERTIFICATE_FILE, _PRIVATE_KEY_FILE = "tls.crt", "tls.key"
_AUTHORITY_FOLDER = "ca"
_STATE_FOLDER, _CERTIFICATES_FOLDER = ".jellybean", "certs"  # of a project, in which `jellybean certs` writes
_JOINED_FILE = "gateway"  # in the state folder of a box that joined: the gateway's address
_NAMED = {Role.CLIENT: "client", Role.ADMIN: "admin"}  # made under these names where `certs` gets no other one


class ExpiredCertificateError(PlanViewError):
    """The certificate in `folder`, of `identity`, has expired; the text ends with what renews it."""

    def __init__(self, folder: Path, certificate: Path, identity: Identity) -> None:
        self.what = f"{certificate}: the certificate has expired"
        self.folder, self.identity = folder, identity
        super().__init__(f"{self.what}; {renewal_advice(folder, identity)}")


def renewal_advice(folder: Path, identity: Identity, directory: Path | None = None) -> str:
    """What renews the certificate in a folder, as the next step of a sentence. `directory`: the project, if known.

    A folder that its authority does not stand beside was copied: it is renewed where it was made. Links stand for files
    that Kubernetes mounts.
    """
    root = _root(folder, identity)
    if identity.role is Role.AGENT and (folder.parent / _JOINED_FILE).is_file():
        return (
            "a box that joined renews it while it reaches the gateway, and its log says why that fails; once it has "
            "expired, join with a new token (`jellybean token`)"
        )
    if (folder / _CERTIFICATE_FILE).is_symlink():
        return (
            "it is mounted from a Secret, which `jellybean certs DIR --renew` renews where its authority is, or the "
            "operator of the deployment"
        )
    if (root / _AUTHORITY_FOLDER / _PRIVATE_KEY_FILE).exists():
        return f"run `{renewal_command(root, identity, directory)}`"
    return f"run `jellybean certs DIR{_name_option(identity)}` in the project that made it, and copy its folder here"


def renewal_command(root: Path, identity: Identity, directory: Path | None = None) -> str:
    """The command that renews the certificate of an identity in the folder `root`, which has the authority too."""
    root = root.absolute()
    is_default = root.name == _CERTIFICATES_FOLDER and root.parent.name == _STATE_FOLDER
    project = str(directory or (root.parent.parent if is_default else "DIR"))
    if is_default and (directory is None or directory.resolve() == root.parent.parent.resolve()):
        return f"jellybean certs {shlex.quote(project)}{_name_option(identity)}"
    return f"jellybean certs {shlex.quote(project)} --out {shlex.quote(str(root))}{_name_option(identity)}"


def _root(folder: Path, identity: Identity) -> Path:
    """The folder in which `jellybean certs` made a process's folder: ROOT/gateway, or ROOT/ROLE/NAME.

    That of a client of one of several workflows is ROOT/client/WORKFLOW/NAME.
    """
    folder = folder.absolute()
    if identity.role is Role.GATEWAY:
        return folder.parent
    return folder.parent.parent.parent if identity.own_workflow else folder.parent.parent


def _name_option(identity: Identity) -> str:
    """The option of `jellybean certs` for a client or an admin; empty for what it makes in any case."""
    if identity.role is Role.RELAY:
        return " --relay"
    name = "/".join(filter(None, (identity.own_workflow, identity.name)))
    return "" if name == _NAMED.get(identity.role, name) else f" --{identity.role.value} {shlex.quote(name)}"


def utc_minute(unix_s: float) -> str:
    """A time of certificates for a person."""
    return f"{datetime.datetime.fromtimestamp(unix_s, datetime.UTC):%Y-%m-%d %H:%M} UTC"
