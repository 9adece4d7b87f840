"""Errors of serving; their messages are for users."""

from __future__ import annotations

from jellybean.errors import InputError
from jellybean_solver import JellyBeanError


class ServingError(JellyBeanError):
    """Serving could not start, stop or answer."""


class LaunchError(ServingError):
    """A process of the run did not come up; names it and ends with the last lines of its log."""


class SettingsError(InputError, LaunchError):
    """Settings of a run that exclude each other, cannot be used, or lack what the plan needs."""


class DeviceError(InputError, ServingError):
    """Models cannot run here on the device of a worker; says why and what to install."""


class CertificateError(InputError, ServingError):
    """A certificate is missing, expired or of somebody else; says how to make it."""


class NotRunningError(ServingError):
    """No plan of this project is being served."""


class NoAccessError(ServingError):
    """This user may not see whether a plan of the project is being served."""


class OtherVersionError(NotRunningError):
    """Another version of JellyBean started this project's run, or another program wrote its state file."""


class AlreadyRunningError(ServingError):
    """A plan of this project is being served already."""


class RequestError(ServingError):
    """A request was refused or failed. `status` is the gRPC status code's name."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(f"{reason} ({status})")
        self.status = status
        self.reason = reason


class HandshakeError(CertificateError, RequestError):
    """A gateway cannot be reached because of a certificate, or of TLS on one side only; says what to do."""

    def __init__(self, reason: str) -> None:
        RequestError.__init__(self, "UNAVAILABLE", reason)


class KeptError(RequestError):
    """There is no answer yet: the request is on disk and will be answered. `request_id`: to ask for the answer."""

    def __init__(self, request_id: str) -> None:
        super().__init__("KEPT", f"request {request_id!r} has no answer yet; it is kept: ask for it by its id")
        self.request_id = request_id
