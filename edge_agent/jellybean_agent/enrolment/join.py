"""Enrols a new machine at a gateway: exchanges a token for a certificate, then downloads the plan and the models.

Everything is stored in one folder, so that a machine that restarts needs no token and downloads only missing models.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import shutil
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from jellybean_agent.brain.plan_reading import plan_view
from jellybean_agent.brain.plan_view import PlanView, WorkerView
from jellybean_agent.enrolment.join_token import JoinToken, parse_token
from jellybean_agent.enrolment.model_download import download, fetch_beside, partial_file, remove_partial_files
from jellybean_agent.enrolment.retries import RETRY_S, describe_call_error, is_refusal, retried
from jellybean_agent.errors import AgentError, ModelError, PlanViewError, describe_error
from jellybean_agent.execution.python_code import python_refusal, require_source
from jellybean_agent.security.certificates import (
    CA_FILE,
    CERTIFICATE_FILE,
    CREDENTIAL_FILES,
    PRIVATE_KEY_FILE,
    CertificateFolder,
    read_credentials,
)
from jellybean_agent.security.connection_fault import ConnectionFault, connection_fault, enrolment_fault
from jellybean_agent.security.identity import Identity, Role
from jellybean_agent.system.private_files import stays_inside_folder, write_private_file
from jellybean_agent.system.protocol_version import protocol_metadata
from jellybean_agent.transport.channels import CHANNEL_OPTIONS, Transport
from jellybean_protos.enrol.v1 import enrol_pb2, enrol_pb2_grpc

LOG = logging.getLogger("jellybean.agent")
_CALL_S = 30.0
_ASK_AGAIN_S = 1.0  # after a question for the plan that was not answered, or whose answer cannot be served here
_RENEW_AT = 2 / 3  # fraction of the lifetime left when renewal begins: early, as the gateway may be unreachable
_CHECK_EVERY_S = 60.0  # longest pause between two checks whether the certificate is due for renewal
_PENDING_KEY = "enrolling.key"  # key whose certificate has not arrived yet
_CURRENT = "..data"  # symlink to the folder with the current credentials, as in a mounted Kubernetes Secret


# Tries the models of a plan: path in the plan -> downloaded file. ModelError if one cannot be served.
Trial = Callable[[PlanView, WorkerView, Mapping[str, Path]], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Joined:
    """The files of an enrolled machine, all in its folder."""

    folder: Path
    view: PlanView
    worker: WorkerView

    @property
    def tls(self) -> Path:
        return self.folder / "tls"

    @property
    def models(self) -> Path:
        return self.folder / "models"


async def join(gateway: str, token: str | None, folder: Path) -> Joined:
    """Enrol unless done before, and download everything that serving needs. AgentError for a permanent failure.

    `gateway`: HOST:PORT of its enrolment service, used only with a token. Transient failures are retried for ever.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if token is not None and not _is_enrolled(folder):
        await _enrol(gateway, parse_token(token), folder)
    if not _is_enrolled(folder):
        reason = "no certificate, or one that has expired: join with a new token (`jellybean token`)"
        raise PlanViewError(f"{folder}: {reason}")
    identity = read_credentials(folder / "tls").identity
    async with _channel(folder) as channel:
        stub: Any = enrol_pb2_grpc.EnrolmentStub(channel)  # type: ignore[no-untyped-call]
        view = await _plan(stub, identity, folder)
        worker = view.workers.get(identity.name)
        if worker is None or not worker.operators:
            raise PlanViewError(
                f"the plan gives worker {identity.name!r} nothing to do: plan for it, then start it again"
            )
        await _fetch_models(stub, folder / "models", view, worker, fetch=download)
    return Joined(folder, view, worker)


async def keep_renewed(folder: Path) -> None:
    """Renew the certificate each time that a third of its lifetime is over. Never returns."""
    tls = folder / "tls"
    born = time.time()
    while True:
        left_s = RETRY_S[-1]
        try:
            found = read_credentials(tls)
            left_s = found.expires_unix_s - time.time()
            if left_s < _RENEW_AT * max(1.0, found.expires_unix_s - born):
                key, request = _key_and_request(found.identity)
                async with _channel(folder) as channel:
                    stub: Any = enrol_pb2_grpc.EnrolmentStub(channel)  # type: ignore[no-untyped-call]
                    given = await _call(stub.Renew, enrol_pb2.RenewRequest(request=request))
                write_credentials(tls, key, given)
                born = time.time()
                left_s = read_credentials(tls).expires_unix_s - born
        except (AgentError, grpc.aio.AioRpcError, OSError) as error:
            LOG.warning("the certificate could not be renewed, which is tried again: %s", describe_call_error(error))
        await asyncio.sleep(min(_CHECK_EVERY_S, max(1.0, left_s / 10)))


async def wait_for_new_plan(
    found: Joined, every_s: float, trial: Trial, allow_python: frozenset[str] = frozenset(), problem: str = ""
) -> None:
    """Ask the gateway for another plan; return once it is to be served here, and its models have been downloaded.

    The gateway answers when there is one, at the latest after `every_s` seconds (one of an older version: at once). It
    may want the models to be downloaded while the plan before is still served; `trial` then tries them, and what
    prevents the switch is reported to it.
    `allow_python`: functions that may run here besides the built-in steps. `problem`: why the plan of `found` cannot be
    served here, which is reported; empty if it is served.
    """
    name, have = found.worker.name, found.view.hash
    fetched, offered = "", found.view.hash  # hashes of the plan that was downloaded, and of the one that was offered
    refused = problem  # repeated with every question, as a gateway that was started again does not know it
    refusal = ""  # the last one that was logged
    while True:
        asked_s, pause_s = time.monotonic(), every_s
        try:
            async with _channel(found.folder) as channel:
                stub: Any = enrol_pb2_grpc.EnrolmentStub(channel)  # type: ignore[no-untyped-call]
                said, of_plan = (problem, offered) if problem else (refused, found.view.hash)
                request = enrol_pb2.PlanRequest(
                    have=have, fetched=fetched, wait_s=every_s, problem=said, problem_plan=of_plan
                )
                given = await stub.Plan(request, timeout=every_s + _CALL_S, metadata=protocol_metadata())
                problem = offered = refusal = ""
                if given.plan:
                    document = json.loads(given.plan)
                    offered = _stated_hash(document)
                    view = plan_view(document)
                    if view.hash == found.view.hash:
                        have = view.hash
                    elif (worker := view.workers.get(name)) is not None and worker.operators:
                        _require_python(view, worker, allow_python)
                        if fetched != view.hash:
                            fetched = ""  # its downloads may be removed
                            await _prepare(stub, found.models, view, worker, trial if given.later else None)
                        fetched = view.hash
                        if not given.later:
                            LOG.info("the gateway serves plan %s: switching to it", view.hash[:12])
                            return
                        LOG.info("plan %s is ready to be served", view.hash[:12])
                        continue
                    else:
                        have = view.hash
                        LOG.warning("the gateway serves plan %s, which does not use this machine: it waits", have[:12])
        except (PlanViewError, ModelError, OSError) as error:
            problem, pause_s = describe_error(error), min(every_s, _ASK_AGAIN_S)
            LOG.warning("another plan of the gateway cannot be served here: %s", problem)
        except (AgentError, grpc.aio.AioRpcError, ValueError, RecursionError) as error:
            refusal, pause_s = _log_failure(error, refusal, every_s)
        await asyncio.sleep(max(0.0, asked_s + pause_s - time.monotonic()))


def _log_failure(error: Exception, refusal: str, every_s: float) -> tuple[str, float]:
    """Log why a question for the plan failed; a refusal only if it differs from the last one, `refusal`.

    Returns the last refusal, and the seconds from this question to the next.
    """
    reason = describe_call_error(error)
    if not is_refusal(error):
        LOG.debug("the gateway was not asked for another plan: %s", reason)
        return refusal, min(every_s, _ASK_AGAIN_S)
    if reason != refusal:
        LOG.warning("the gateway gives no other plan: %s; asked again every %g s", reason, every_s)
    return reason, every_s


async def _prepare(stub: Any, folder: Path, view: PlanView, worker: WorkerView, trial: Trial | None) -> None:
    """Download a worker's models beside those that are served, and try them with `trial`, if any."""
    await _fetch_models(stub, folder, view, worker)
    if trial is not None:
        await trial(view, worker, _downloaded(folder, view, worker))


def _downloaded(folder: Path, view: PlanView, worker: WorkerView) -> dict[str, Path]:
    """Path in the plan -> file, of a worker's models that were downloaded beside those that are served."""
    found: dict[str, Path] = {}
    for path, sha256 in _models(folder, view, worker).items():
        part = partial_file(path, sha256)
        found[str(path.relative_to(folder))] = part if part.exists() else path
    return found


def _stated_hash(document: object) -> str:
    """The hash that a plan document states; empty if it has none. A plan of another version cannot be read further."""
    return str(document.get("hash", "")) if isinstance(document, dict) else ""


def _models(folder: Path, view: PlanView, worker: WorkerView) -> dict[Path, str]:
    """Path -> sha256 of the model files of a worker. ModelError if the plan names no file for an operator."""
    files: dict[Path, str] = {}
    for name in worker.operators:
        operator = view.operators[name]
        if operator.python is not None:
            continue  # a Python function is not downloaded: it must be installed on this machine
        if not operator.model_files:
            raise ModelError(f"{name}: the plan names no model file")
        files |= {_inside(folder, path): sha256 for path, sha256 in operator.model_files}
    return files


async def _fetch_models(
    stub: Any,
    folder: Path,
    view: PlanView,
    worker: WorkerView,
    fetch: Callable[[Any, str, Path], Coroutine[Any, Any, object]] = fetch_beside,
) -> None:
    """Download a worker's models with `fetch`, after what is left of downloads for other plans has been removed."""
    files = _models(folder, view, worker)
    remove_partial_files(folder, {partial_file(path, sha256) for path, sha256 in files.items()})
    for path, sha256 in files.items():
        await fetch(stub, sha256, path)


def _require_python(view: PlanView, worker: WorkerView, allowed: frozenset[str]) -> None:
    """ModelError if a function of the plan may not run on this machine, or is installed here in another version."""
    for name in worker.operators:
        python = view.operators[name].python
        if python is None:
            continue
        if (reason := python_refusal(python.function, allowed)) is not None:
            raise ModelError(f"{name}: {reason}")
        try:
            require_source(python.function, python.sha256)
        except ModelError as error:
            raise ModelError(f"{name}: {error}") from error


def _is_enrolled(folder: Path) -> bool:
    with contextlib.suppress(PlanViewError):
        CertificateFolder(folder / "tls")
        return (folder / "gateway").exists()
    return False


async def _enrol(gateway: str, token: JoinToken, folder: Path) -> None:
    waiting = folder / _PENDING_KEY  # reused after a restart: the token may already be bound to this key
    key, request = _key_and_request(token.identity, waiting.read_bytes() if waiting.exists() else None)
    write_private_file(waiting, key)
    wanted = Identity(token.identity.workflow, Role.GATEWAY)
    options = [*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", wanted.tls_name)]
    credentials = grpc.ssl_channel_credentials(token.ca)
    async with grpc.aio.secure_channel(gateway, credentials, options=options) as channel:
        stub: Any = enrol_pb2_grpc.EnrolmentStub(channel)  # type: ignore[no-untyped-call]
        given = await retried(
            f"enrolling at {gateway}",
            lambda: _call(stub.Enrol, enrol_pb2.EnrolRequest(secret=token.secret, request=request)),
            lambda: enrolment_fault(gateway, wanted, token.ca),
            needs_certificate=True,
        )
    write_private_file(folder / "gateway", given.gateway.encode())
    write_credentials(folder / "tls", key, given)
    waiting.unlink()
    LOG.info("%s has enrolled", token.identity)


async def _plan(stub: Any, identity: Identity, folder: Path) -> PlanView:
    """Download, check and store the gateway's plan. PlanViewError when this agent cannot read its version."""
    given = await retried(
        "asking for the plan", lambda: _call(stub.Plan, enrol_pb2.PlanRequest()), lambda: _fault(folder)
    )
    try:
        document = json.loads(given.plan)
    except (ValueError, RecursionError) as error:
        raise PlanViewError(f"the gateway's plan is not JSON: {describe_error(error)}") from error
    view = plan_view(document)
    if view.name != identity.workflow:
        raise PlanViewError(
            f"the gateway's plan is of workflow {view.name}, this machine belongs to {identity.workflow}"
        )
    write_private_file(folder / "plan.json", given.plan)
    write_private_file(folder / "peers.json", given.peers)
    return view


async def _call(method: Any, request: Any) -> Any:
    return await method(request, timeout=_CALL_S, metadata=protocol_metadata())


def _channel(folder: Path) -> grpc.aio.Channel:
    credentials = CertificateFolder(folder / "tls")
    address = (folder / "gateway").read_text(encoding="utf-8")
    return Transport(credentials.current().identity.workflow, credentials).channel(address)


def _fault(folder: Path) -> ConnectionFault | None:
    """Why the gateway that this machine has joined cannot be reached; None if it can."""
    credentials = CertificateFolder(folder / "tls")
    wanted = Identity(credentials.current().identity.workflow, Role.GATEWAY)
    return connection_fault((folder / "gateway").read_text(encoding="utf-8"), wanted, credentials)


def _key_and_request(identity: Identity, key_pem: bytes | None = None) -> tuple[bytes, bytes]:
    """(private key as PEM, certificate signing request as DER). The key is new unless given."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    if key_pem is not None:
        found = serialization.load_pem_private_key(key_pem, None)
        if not isinstance(found, ec.EllipticCurvePrivateKey):
            raise PlanViewError("the key kept for enrolling is of another kind: remove the state folder and join anew")
        key = found
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, str(identity)[:64])])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, *form), request.public_bytes(serialization.Encoding.DER)


def write_credentials(folder: Path, key: bytes, given: enrol_pb2.Certificate) -> None:
    """Write key, certificate and CA atomically, as Kubernetes does: by switching a symlink to a folder with them."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    current = folder / _CURRENT
    has_plain_files = all((folder / name).is_file() for name in CREDENTIAL_FILES)
    if not current.is_symlink() and has_plain_files:  # stored by an earlier version, without the symlink
        _point(current, _generation(folder, {name: (folder / name).read_bytes() for name in CREDENTIAL_FILES}))
    new = _generation(folder, {CA_FILE: given.ca, PRIVATE_KEY_FILE: key, CERTIFICATE_FILE: given.chain})
    for name in CREDENTIAL_FILES:
        if not (folder / name).is_symlink():
            _point(folder / name, f"{_CURRENT}/{name}")
    _point(current, new)
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink() and path.name != new:
            shutil.rmtree(path, ignore_errors=True)


def _generation(folder: Path, files: Mapping[str, bytes]) -> str:
    """Create a new subfolder with these files; returns its name."""
    made = folder / f"..{secrets.token_hex(8)}"
    made.mkdir(mode=0o700)
    try:
        for name, data in files.items():
            write_private_file(made / name, data)
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return made.name


def _point(link: Path, target: str) -> None:
    part = link.with_name(link.name + ".part")
    part.unlink(missing_ok=True)
    part.symlink_to(target)
    part.replace(link)


def _inside(folder: Path, path: str) -> Path:
    if not stays_inside_folder(path):
        raise ModelError(f"model {path} is not inside the project's folder")
    return folder / path
