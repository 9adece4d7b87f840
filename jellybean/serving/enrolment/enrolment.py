"""The gateway's enrolment service: a box exchanges a token for a certificate, then fetches its plan and models.

Tokens are files in a folder, named by the sha256 of their secret: `jellybean token` makes one without calling the
gateway, and reading the folder discloses no secret. Using a token writes the sha256 of the box's public key beside it:
the token is bound to that key.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from jellybean.ledger.readings import Moment
from jellybean.serving.enrolment.authority import LIFE_S, Authority, read_authority
from jellybean.serving.enrolment.rollout import PlanRollout
from jellybean.serving.errors import ServingError
from jellybean_agent import (
    GATEWAY,
    TOKEN_SECRET_BYTES,
    AgentError,
    Identity,
    InvalidInputError,
    JoinToken,
    ListeningPort,
    OpenPolicy,
    PlanViewError,
    Role,
    RpcServer,
    SharedLimit,
    StatusError,
    Transport,
    caller_identity,
    describe_error,
    file_sha256,
    make_server,
    printable,
    status_of,
    stays_inside_folder,
    write_private_file,
)
from jellybean_protos.enrol.v1 import enrol_pb2, enrol_pb2_grpc

LOG = logging.getLogger("jellybean.gateway")
TOKEN_S = 900.0
_REFUSED = "the token is unknown, was used, or its time is over: make another"
_CHUNK_BYTES = 2**20
_MAX_REASON = 1000  # characters of a reason that a box gives
_MAX_REQUEST_BYTES = 16 * 2**10
MAX_DOWNLOADS = 16  # concurrent model downloads, shared by boxes
_Stamp = tuple[int, int, int]  # size, time of the last change, inode


def make_token(folder: Path, authority: Authority, identity: Identity, *, life_s: float = TOKEN_S) -> JoinToken:
    """A token for one worker, valid for one key and `life_s` seconds."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _remove_expired(folder)
    secret = secrets.token_bytes(TOKEN_SECRET_BYTES)
    path = folder / hashlib.sha256(secret).hexdigest()
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        now = Moment.now()
        life = {"until": now.unix_s + life_s, "boot": now.boot, "until_boot_s": now.boot_s + life_s}
        json.dump({"identity": identity.uri, **life}, file)
    return JoinToken(secret, identity, authority.bundle)


def identity_of(folder: Path, secret: bytes) -> str:
    """The identity (a URI) of a token, by its secret. StatusError when there is no such token, or it has expired."""
    try:
        found = json.loads((folder / hashlib.sha256(secret).hexdigest()).read_text(encoding="utf-8"))
        if not _has_expired(found):
            return str(found["identity"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StatusError(grpc.StatusCode.PERMISSION_DENIED, _REFUSED) from error
    raise StatusError(grpc.StatusCode.PERMISSION_DENIED, _REFUSED)


def take_token(folder: Path, secret: bytes, key: bytes) -> str:
    """Bind a token to a public key (its bytes); returns the token's identity.

    The same key may use the token again until it expires: the answer to the first use may have been lost. StatusError
    for any other key.
    """
    identity = identity_of(folder, secret)
    taken = folder / f"{hashlib.sha256(secret).hexdigest()}.key"
    mine = hashlib.sha256(key).hexdigest().encode()
    part = taken.with_name(f"{taken.name}.{secrets.token_hex(8)}")
    try:
        write_private_file(part, mine)
        with contextlib.suppress(FileExistsError):
            os.link(part, taken)  # atomic: one of two concurrent uses wins
        first = taken.read_bytes()
    except OSError as error:
        reason = f"the token cannot be taken: {describe_error(error, file=part)}"
        raise StatusError(grpc.StatusCode.UNAVAILABLE, reason) from error
    finally:
        part.unlink(missing_ok=True)
    if first != mine:
        raise StatusError(grpc.StatusCode.PERMISSION_DENIED, _REFUSED)
    return identity


def _has_expired(token: Mapping[str, Any]) -> bool:
    """True once a token's life is over. Setting the clock neither shortens nor lengthens it, until the machine starts
    again.
    """
    now = Moment.now()
    if token.get("boot") == now.boot and "until_boot_s" in token:
        return now.boot_s > float(token["until_boot_s"])
    return now.unix_s > float(token["until"])


def _remove_expired(folder: Path) -> None:
    """Remove expired tokens and the keys bound to them."""
    for path in folder.iterdir():
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            if not path.suffix and _has_expired(json.loads(path.read_text(encoding="utf-8"))):
                path.unlink()
                path.with_name(f"{path.name}.key").unlink()


@dataclass(frozen=True, slots=True)
class EnrolmentFiles:
    """Folders that enrolment reads: those of the authority and the tokens, and the root of model paths."""

    authority: Path
    tokens: Path
    root: Path


@dataclass(frozen=True, slots=True)
class Enrolment:
    """The Enrolment service of a gateway.

    `rollout`: the plan of the boxes. `life_s`: lifetime of issued certificates, in seconds. `on_blocked(worker,
    problem)`: a box asked for a model of the plan that is served; `problem`: why it does not get it, empty if it does.
    Or it refuses this plan; `problem`: why.
    """

    rollout: PlanRollout
    files: EnrolmentFiles
    life_s: float = LIFE_S
    on_blocked: Callable[[str, str], None] = lambda worker, problem: None
    downloads: SharedLimit = field(default_factory=lambda: SharedLimit(MAX_DOWNLOADS))  # those in progress
    digests: dict[Path, tuple[_Stamp, str]] = field(default_factory=dict)  # of model files, while they do not change
    problems: dict[Path, str] = field(default_factory=dict)  # model file -> what was logged last; none if it is fine

    async def Enrol(self, request: enrol_pb2.EnrolRequest, context: Any) -> enrol_pb2.Certificate:
        """Exchange a token for a certificate.

        The only call that needs no certificate: the token's secret authenticates the caller.
        """
        try:
            uri = identity_of(self.files.tokens, request.secret)  # first: who has no token costs next to nothing
            key = _public_key(request.request)
            identity = next((found for found in self._agents() if found.uri == uri), None)
            if identity is None:
                reason = f"the token is for {uri}, which is no worker of the plan"
                raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, reason)
            authority = self._authority()  # before the token is used: an error here must not use it up
            take_token(self.files.tokens, request.secret, _bytes_of(key))
            LOG.info("%s enrols from %s", identity, context.peer())
            return self._certificate(authority, identity, key)
        except AgentError as error:
            await context.abort(status_of(error), str(error))
            raise  # context.abort signals by an exception

    async def Renew(self, request: enrol_pb2.RenewRequest, context: Any) -> enrol_pb2.Certificate:
        try:
            return self._certificate(self._authority(), _agent_of(context), _public_key(request.request))
        except AgentError as error:
            await context.abort(status_of(error), str(error))
            raise  # context.abort signals by an exception

    async def Plan(self, request: enrol_pb2.PlanRequest, context: Any) -> enrol_pb2.PlanResponse:
        try:
            worker = _agent_of(context).name
            request.problem = printable(request.problem, _MAX_REASON)
            if request.problem and request.problem_plan == self.rollout.served.view.hash:
                self.on_blocked(worker, f"it refuses the plan: {request.problem}")
            return await self.rollout.answer(worker, request)
        except AgentError as error:
            await context.abort(status_of(error), str(error))
            raise  # context.abort signals by an exception

    async def Model(self, request: enrol_pb2.ModelRequest, context: Any) -> AsyncIterator[enrol_pb2.ModelPart]:
        try:
            agent = _agent_of(context)
            share = self.downloads.share_of(agent.uri)
            if not share.take():
                held = f"{self.downloads.held} downloads are under way, {share.held} of them of this box"
                raise StatusError(grpc.StatusCode.UNAVAILABLE, f"{held}: ask again later")  # boxes retry it
        except AgentError as error:
            await context.abort(status_of(error), str(error))
            return
        try:
            async with contextlib.aclosing(self._parts(agent, request)) as parts:
                async for part in parts:
                    yield part
        except (AgentError, OSError) as error:
            status = status_of(error) if isinstance(error, AgentError) else grpc.StatusCode.NOT_FOUND
            await context.abort(status, str(error))
        finally:
            share.give()

    async def _parts(self, agent: Identity, request: enrol_pb2.ModelRequest) -> AsyncGenerator[enrol_pb2.ModelPart]:
        """The file of a model from an offset on."""
        path = await self._model(agent, request.sha256)
        size = path.stat().st_size
        if request.offset > size:
            raise InvalidInputError(f"offset {request.offset}: the model has {size} bytes")
        with path.open("rb") as file:
            file.seek(request.offset)
            while data := await asyncio.to_thread(file.read, _CHUNK_BYTES):
                yield enrol_pb2.ModelPart(data=data, size=size)

    def _agents(self) -> Iterator[Identity]:
        for offer in self.rollout.offers:
            yield from (Identity(offer.view.name, Role.AGENT, worker) for worker in offer.view.workers)

    async def _model(self, identity: Identity, sha256: str) -> Path:
        """The file of a model that a plan assigns to this worker; no other file is sent.

        StatusError if the file here is no longer the plan's: its download would be for nothing.
        """
        for offer in self.rollout.offers:
            view = offer.view.seen_by(identity.name)
            worker = view.workers.get(identity.name)
            for operator in (view.operators[name] for name in (worker.operators if worker else ())):
                for path, digest in operator.model_files:
                    if digest == sha256 and stays_inside_folder(path):
                        problem = await self._problem_of(path, sha256)
                        if offer is self.rollout.served:
                            self.on_blocked(identity.name, problem)
                        if problem:
                            raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, problem)
                        return self.files.root / path
        reason = f"the plan gives {identity} no model of sha256 {sha256[:12]}"
        raise StatusError(grpc.StatusCode.NOT_FOUND, reason)

    async def _problem_of(self, name: str, sha256: str) -> str:
        """Why a model file of the plan cannot be sent, which is logged once until it changes; empty if it can."""
        path, problem = self.files.root / name, ""
        try:
            found = await self._digest(path)
            if found != sha256:
                problem = (
                    f"model file {name} at the gateway has sha256 {found[:12]}..., the plan says {sha256[:12]}...: it "
                    "was overwritten after the plan was made; put that file back, or plan with the new one, and then "
                    "`jellybean apply`"
                )
        except OSError as error:
            problem = f"model file {name} at the gateway: {describe_error(error)}; put the plan's file back"
        if problem and self.problems.get(path) != problem:
            LOG.warning("boxes cannot download: %s", problem)
        self.problems[path] = problem
        return problem

    async def _digest(self, path: Path) -> str:
        """sha256 of a file, computed again only after a change."""
        stat = path.stat()
        stamp = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
        known = self.digests.get(path)
        if known is None or known[0] != stamp:
            known = self.digests[path] = (stamp, await asyncio.to_thread(file_sha256, path))
        return known[1]

    def _authority(self) -> Authority:
        try:
            return read_authority(self.files.authority)
        except ServingError as error:
            raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, str(error)) from error

    def _certificate(self, authority: Authority, identity: Identity, key: Any) -> enrol_pb2.Certificate:
        chain = authority.sign(identity, key, life_s=self.life_s)
        return enrol_pb2.Certificate(chain=chain, ca=authority.bundle, gateway=self.rollout.served.addresses[GATEWAY])


async def serve_enrolment(enrolment: Enrolment, transport: Transport, address: str) -> RpcServer:
    """Serve the method Enrol alone, to callers without a certificate; the gateway shows its own."""
    if transport.certificate is None:
        reason = "enrolment needs the gateway's certificate: --tls FOLDER"
        raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, reason)
    server = make_server(OpenPolicy(), admission=transport.admission)
    enrol = grpc.unary_unary_rpc_method_handler(
        enrolment.Enrol, enrol_pb2.EnrolRequest.FromString, enrol_pb2.Certificate.SerializeToString
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("jellybean.enrol.v1.Enrolment", {"Enrol": enrol}),)
    )
    try:
        transport.bind(server, address, ListeningPort.ENROLMENT)
    except PlanViewError as error:
        raise StatusError(grpc.StatusCode.UNAVAILABLE, str(error)) from error
    await server.start()
    return server


def add_enrolment(server: RpcServer, enrolment: Enrolment) -> None:
    """Add the methods for agents with a certificate to the gateway's own server."""
    enrol_pb2_grpc.add_EnrolmentServicer_to_server(enrolment, server)  # type: ignore[no-untyped-call]


def _agent_of(context: Any) -> Identity:
    found = caller_identity(context)
    if found is None:
        raise StatusError(grpc.StatusCode.UNAUTHENTICATED, "this is for agents with a certificate")
    return found


def _bytes_of(key: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    found: bytes = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return found


def _public_key(request: bytes) -> Any:
    """The public key of a certificate signing request, whose signature proves that the sender holds the private key."""
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec

    if len(request) > _MAX_REQUEST_BYTES:
        raise InvalidInputError(f"a certificate request of {len(request)} bytes")
    try:
        found = x509.load_der_x509_csr(request)
        key = found.public_key()
        # Only this kind of key: checking the signature of a long one of another kind takes a tenth of a second.
        if not isinstance(key, ec.EllipticCurvePublicKey) or not found.is_signature_valid:
            raise InvalidInputError("the certificate request is not signed with an elliptic-curve key")
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidInputError("the bytes are no certificate request") from error
    return key
