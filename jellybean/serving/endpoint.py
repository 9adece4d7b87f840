"""Where the commands of a run's owner call its gateway, and the certificates that this needs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jellybean.errors import InputError
from jellybean.folders import STATE_FOLDER, shell_text
from jellybean.serving.errors import CertificateError, ServingError
from jellybean.serving.run_processes import GATEWAY_NAME
from jellybean.serving.run_state import running_state
from jellybean_agent import (
    PRIVATE_KEY_FILE,
    AgentError,
    CertificateFolder,
    ExpiredCertificateError,
    Transport,
    is_loopback,
    renewal_advice,
)

_ADMINS = Path("certs", "admin")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a gateway: its owner's socket, or HOST:PORT with the folder of an admin's certificate (`tls`).

    `workflow`: which one is meant, if it serves several; empty: all of them.
    """

    address: str
    tls: Path | None = None
    workflow: str = ""

    def transport(self) -> Transport:
        """The transport of calls to the gateway."""
        return Transport(
            certificate=None if self.tls is None else CertificateFolder(self.tls), insecure=self.tls is None
        )


def owner_endpoint(directory: Path) -> Endpoint:
    """The private socket of the gateway of a project that is up on this machine. NotRunningError if none is."""
    state = running_state(directory.resolve())
    return Endpoint(next(process.address for process in state.processes if process.name == GATEWAY_NAME))


def remote_endpoint(directory: Path, address: str, tls: Path | None = None) -> Endpoint:
    """A gateway's port for clients or for workers, `tls` by default an admin's certificate of the project.

    CertificateError for a certificate that is missing or cannot be used, InputError for an invalid address.
    """
    found = Endpoint(address, tls or admin_certificate(directory))
    try:
        with usable_certificates(directory, elsewhere=not has_authority(directory)):
            transport = found.transport()
    except CertificateError as error:
        if tls is not None or not is_on_this_machine(address):
            raise
        own = "for a gateway on this machine, leave out --gateway and name its project's folder as DIR"
        raise CertificateError(f"{error}; {own}") from error
    try:
        transport.check(address)
    except AgentError as error:
        raise InputError(str(error)) from error
    return found


def admin_certificate(directory: Path) -> Path:
    """Where the certificate of a project's admin is, or would be."""
    admins = directory / STATE_FOLDER / _ADMINS
    return next(iter(sorted(admins.glob("*"))), admins / "admin")


def is_on_this_machine(address: str) -> bool:
    """True if the host of HOST:PORT is this machine by its name: localhost, or an address of the loopback interface."""
    return is_loopback(address.rpartition(":")[0])


def has_authority(directory: Path) -> bool:
    """True if the project's folder has the authority that signs its certificates: it is no copy of another project."""
    return (directory / STATE_FOLDER / "certs" / "ca" / PRIVATE_KEY_FILE).exists()


@contextlib.contextmanager
def usable_certificates(directory: Path, *, elsewhere: bool = False) -> Iterator[None]:
    """Raise the errors of certificates as CertificateError, with the command that makes or renews them.

    `elsewhere`: the gateway's authority is not in this folder, where the command would make another one.
    """
    try:
        yield
    except ExpiredCertificateError as error:
        raise CertificateError(f"{error.what}; {renewal_advice(error.folder, error.identity, directory)}") from error
    except (AgentError, ServingError) as error:
        advice = f"run `jellybean certs {shell_text(directory)}`"
        if elsewhere:
            advice = (
                "copy the folder .jellybean/certs/admin/admin from the gateway's project, where `jellybean certs` "
                "makes and renews it, and give it as --tls"
            )
        raise CertificateError(f"{str(error).partition('; ')[0]}; {advice}") from error
