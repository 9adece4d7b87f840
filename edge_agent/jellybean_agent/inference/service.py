"""The gRPC service of the Open Inference Protocol (KServe V2), over the models that a process serves.

Requests are parsed here and not by gRPC, so that invalid bytes get a clear status. Every refusal is a status with a
reason; no request ends in a traceback.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from importlib import metadata
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from jellybean_agent.admission.steps import StepTurns
from jellybean_agent.errors import AgentError, InvalidInputError, StatusError, status_of
from jellybean_agent.inference.models import InferenceBackend, Sequence, ServedModel, find_model, ports_of_model
from jellybean_agent.inference.tensors import DATATYPE_BY_DTYPE, inputs_of, outputs_of
from jellybean_agent.inference.typed_contents import has_large_contents, make_raw
from jellybean_agent.rpc.parsed_size import SMALL_BYTES, has_large_overhead, overhead_steps
from jellybean_agent.security.identity import current_caller
from jellybean_agent.telemetry.logs import about, log_fields
from jellybean_protos.inference.v2 import inference_pb2 as pb

LOG = logging.getLogger("jellybean.inference")
INFERENCE_SERVICE_NAME = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
EXTENSIONS = ("model_repository", "model_configuration", "statistics")
MAX_IN_STREAM = 64  # most requests in flight of one stream; then the next is read once one is answered
MODEL_INFER_METHOD = f"/{INFERENCE_SERVICE_NAME}/ModelInfer"
_NOT_SERVED = {
    **{
        f"{kind}SharedMemory{what}": "shared memory is not served: send tensors in the request"
        for kind in ("System", "Cuda")
        for what in ("Status", "Register", "Unregister")
    },
    "TraceSetting": "there is nothing to trace here: read the metrics instead",
    "LogSettings": "log settings cannot be changed from here",
}
_MAX_REASON = 2000  # most characters of a reason, as it is sent in a header
_UNEXPECTED = (grpc.StatusCode.INTERNAL, "failed unexpectedly: the server's log says why")
MAX_SEQUENCE_ID_BYTES = 256
_SEQUENCES = ("sequence_id", "sequence_start", "sequence_end")

Kind = TypeVar("Kind", bound=Message)
Answer = Callable[[Any, float | None], Awaitable[Message]]  # request, seconds left -> response


class InferenceService:
    """GRPCInferenceService; `handler()` goes to a grpc.aio server.

    `on_refused(error)` is called for each request whose model or tensors are invalid, which the backend does not see.
    """

    def __init__(self, served: InferenceBackend, on_refused: Callable[[AgentError], None] = lambda error: None) -> None:
        self._served, self._on_refused = served, on_refused
        self._large = StepTurns()

    def handler(self) -> Any:
        """The gRPC handler of all methods of the protocol; Triton's extensions that do not apply are refused."""
        answers: Mapping[type[Message], Answer] = {
            pb.ServerLiveRequest: self.server_live,
            pb.ServerReadyRequest: self.server_ready,
            pb.ServerMetadataRequest: self.server_metadata,
            pb.ModelReadyRequest: self.model_ready,
            pb.ModelMetadataRequest: self.model_metadata,
            pb.ModelConfigRequest: self.model_config,
            pb.ModelStatisticsRequest: self.model_statistics,
            pb.RepositoryIndexRequest: self.repository_index,
            pb.RepositoryModelLoadRequest: self.refuse_loading,
            pb.RepositoryModelUnloadRequest: self.refuse_loading,
        }
        methods = {kind.__name__.removesuffix("Request"): _unary(kind, answer) for kind, answer in answers.items()}
        methods["ModelInfer"] = _unary(pb.ModelInferRequest, self.model_infer, self._read)
        methods |= {name: _refused(reason) for name, reason in _NOT_SERVED.items()}
        methods["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
            self.model_stream_infer, response_serializer=pb.ModelStreamInferResponse.SerializeToString
        )
        return grpc.method_handlers_generic_handler(INFERENCE_SERVICE_NAME, methods)

    # -- the server ---------------------------------------------------------------------------------------------------

    async def server_live(self, _request: pb.ServerLiveRequest, _left_s: float | None = None) -> Message:
        return pb.ServerLiveResponse(live=True)

    async def server_ready(self, _request: pb.ServerReadyRequest, _left_s: float | None = None) -> Message:
        return pb.ServerReadyResponse(ready=self._served.is_ready)

    async def server_metadata(self, _request: pb.ServerMetadataRequest, _left_s: float | None = None) -> Message:
        return pb.ServerMetadataResponse(name=self._served.name, version=_version(), extensions=EXTENSIONS)

    # -- its models ---------------------------------------------------------------------------------------------------

    async def model_ready(self, request: pb.ModelReadyRequest, _left_s: float | None = None) -> Message:
        return pb.ModelReadyResponse(ready=not find_model(self._served, request.name, request.version).reason)

    async def model_metadata(self, request: pb.ModelMetadataRequest, _left_s: float | None = None) -> Message:
        model = find_model(self._served, request.name, request.version)
        inputs, outputs = ports_of_model(model)
        found = pb.ModelMetadataResponse(name=model.name, versions=[model.version], platform=model.platform)
        for port in inputs:
            found.inputs.add(name=port.name, datatype=DATATYPE_BY_DTYPE[port.dtype], shape=port.shape)
        for port in outputs:
            found.outputs.add(name=port.name, datatype=DATATYPE_BY_DTYPE[port.dtype], shape=port.shape)
        return found

    async def model_config(self, request: pb.ModelConfigRequest, _left_s: float | None = None) -> Message:
        model = find_model(self._served, request.name, request.version)
        inputs, outputs = ports_of_model(model)
        config = pb.ModelConfig(name=model.name, platform=model.platform, backend="jellybean")
        config.model_transaction_policy.decoupled = False
        for port in inputs:
            config.input.add(name=port.name, data_type=_data_type(port.dtype), dims=port.shape)
        for port in outputs:
            config.output.add(name=port.name, data_type=_data_type(port.dtype), dims=port.shape)
        return pb.ModelConfigResponse(config=config)

    async def model_statistics(self, request: pb.ModelStatisticsRequest, _left_s: float | None = None) -> Message:
        named = (
            [find_model(self._served, request.name, request.version)]
            if request.name
            else self._served.models().values()
        )
        return pb.ModelStatisticsResponse(model_stats=[self._statistics(model) for model in named])

    def _statistics(self, model: ServedModel) -> pb.ModelStatistics:
        figures = self._served.figures(model.name)
        found = pb.ModelStatistics(
            name=model.name,
            version=model.version,
            last_inference=int(figures.last_unix_s * 1e3),
            inference_count=figures.answered,
            execution_count=figures.runs,
        )
        stats = found.inference_stats
        stats.success.count, stats.success.ns = figures.answered, int((figures.answered_s or 0.0) * 1e9)
        stats.fail.count, stats.fail.ns = figures.failed, int((figures.failed_s or 0.0) * 1e9)
        if figures.busy_s is not None:
            stats.compute_infer.count, stats.compute_infer.ns = figures.runs, int(figures.busy_s * 1e9)
        return found

    async def repository_index(self, request: pb.RepositoryIndexRequest, _left_s: float | None = None) -> Message:
        _refuse_repository(request.repository_name)
        found = pb.RepositoryIndexResponse()
        for model in self._served.models().values():
            if not (request.ready and model.reason):
                state = "UNAVAILABLE" if model.reason else "READY"
                found.models.add(name=model.name, version=model.version, state=state, reason=model.reason)
        return found

    async def refuse_loading(
        self,
        request: pb.RepositoryModelLoadRequest | pb.RepositoryModelUnloadRequest,
        _left_s: float | None = None,
    ) -> Message:
        """Load and unload: refused, as the plan decides what is loaded."""
        _refuse_repository(request.repository_name)
        model = find_model(self._served, request.model_name, "")
        reason = f"the plan decides what is loaded, {model.name} too: plan again, then `jellybean apply`"
        raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, reason)

    # -- requests -----------------------------------------------------------------------------------------------------

    async def model_infer(self, request: pb.ModelInferRequest, left_s: float | None = None) -> pb.ModelInferResponse:
        """One request to one model."""
        try:
            model, names, timeout_s = resolve_request(self._served, request)
            inputs, sequence = inputs_of(request), _sequence(request)
        except AgentError as error:
            self._on_refused(error)
            raise
        limits = [limit_s for limit_s in (left_s, timeout_s) if limit_s is not None]
        tensors = await self._served.infer(model.name, inputs, min(limits, default=None), sequence, request.id)
        return outputs_of(request, model.version, names, tensors)

    async def model_stream_infer(
        self, requests: AsyncIterator[bytes], context: Any
    ) -> AsyncIterator[pb.ModelStreamInferResponse]:
        """Requests run concurrently and are answered in their order; a failure ends its request only."""
        in_flight: asyncio.Queue[asyncio.Task[pb.ModelStreamInferResponse] | None] = asyncio.Queue(MAX_IN_STREAM)

        async def read() -> None:
            async for data in requests:
                await in_flight.put(asyncio.create_task(self._streamed(data, context.time_remaining())))
            await in_flight.put(None)

        reader = asyncio.create_task(read())
        task: asyncio.Task[pb.ModelStreamInferResponse] | None = None
        try:
            while (task := await in_flight.get()) is not None:
                yield await task
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            while task is not None:
                task.cancel()
                task = in_flight.get_nowait() if not in_flight.empty() else None

    async def _streamed(self, data: bytes, left_s: float | None) -> pb.ModelStreamInferResponse:
        request = pb.ModelInferRequest()
        try:
            request = await self._read(data)
            response = await self.model_infer(request, left_s)
        except AgentError as error:
            return _failed(request, *refusal_of(error))
        except Exception:  # top-level boundary: this request fails, the others of the stream continue
            LOG.exception("a request of a stream failed unexpectedly")
            return _failed(request, *_UNEXPECTED)
        response.parameters["triton_final_response"].bool_param = True  # one response per request
        return pb.ModelStreamInferResponse(infer_response=response)

    async def _read(self, data: bytes | memoryview) -> pb.ModelInferRequest:
        """Parse a request; typed contents that are large become raw ones. AgentError if it is invalid."""
        try:
            if len(data) <= SMALL_BYTES:
                return _parsed(pb.ModelInferRequest, data)
            client = current_caller()
            is_too_large = await self._large.run(client, overhead_steps(pb.ModelInferRequest.DESCRIPTOR, data))
            _check_parts(pb.ModelInferRequest, is_too_large=is_too_large)
            async with self._large.turn(client):
                request = _message(pb.ModelInferRequest, data)
                if has_large_contents(request):
                    await make_raw(request)
                return request
        except AgentError as error:
            self._on_refused(error)
            raise


def resolve_request(
    served: InferenceBackend, request: pb.ModelInferRequest
) -> tuple[ServedModel, tuple[str, ...], float | None]:
    """A request's model, output names and timeout in seconds. AgentError when they are invalid."""
    model = find_model(served, request.model_name, request.model_version)
    _, outputs = ports_of_model(model)
    return model, _wanted(request, tuple(port.name for port in outputs)), _timeout_s(request)


def _failed(request: pb.ModelInferRequest, status: grpc.StatusCode, reason: str) -> pb.ModelStreamInferResponse:
    response = pb.ModelInferResponse(model_name=request.model_name, id=request.id)
    response.parameters["triton_final_response"].bool_param = True
    return pb.ModelStreamInferResponse(error_message=f"{reason} ({status.name})", infer_response=response)


def _unary(kind: type[Message], answer: Answer, read: Callable[[memoryview], Awaitable[Message]] | None = None) -> Any:
    """The handler of a method. `read`: parses its requests in place of protobuf."""

    async def handle(data: memoryview, context: Any) -> Any:
        try:
            request = _parsed(kind, data) if read is None else await read(data)
            found = await answer(request, context.time_remaining())
            return found.SerializeToString()
        except AgentError as error:
            refusal = refusal_of(error)
        except Exception:  # top-level boundary: this call fails, the process continues
            LOG.exception("a call failed unexpectedly")
            refusal = _UNEXPECTED
        return await context.abort(*refusal)  # which raises

    return grpc.unary_unary_rpc_method_handler(handle)  # parses its requests itself


def log_refusal(error: AgentError) -> None:
    """Log a call that was refused, unless that was done already."""
    if not error.is_logged:
        fields = log_fields(status=status_of(error).name)
        LOG.info("refused: %s", str(error)[:_MAX_REASON], extra=fields | about(current_caller()))


def _refused(reason: str) -> Any:
    async def handle(_data: memoryview, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, reason)

    return grpc.unary_unary_rpc_method_handler(handle)


def refusal_of(error: AgentError) -> tuple[grpc.StatusCode, str]:
    """Log a failed call; returns status and reason for its client."""
    log_refusal(error)
    return status_of(error), str(error)[:_MAX_REASON]


def _parsed(kind: type[Kind], data: bytes | memoryview) -> Kind:
    _check_parts(kind, is_too_large=has_large_overhead(kind.DESCRIPTOR, data))
    return _message(kind, data)


def _check_parts(kind: type[Message], *, is_too_large: bool) -> None:
    if is_too_large:
        raise InvalidInputError(f"the {kind.__name__} has too many small parts: send raw_input_contents")


def _message(kind: type[Kind], data: bytes | memoryview) -> Kind:
    request = kind()
    try:
        request.ParseFromString(data)  # type: ignore[arg-type] # its stub leaves memoryviews out
    except DecodeError as error:
        raise InvalidInputError(f"the bytes are no {kind.__name__}") from error
    return request


def _wanted(request: pb.ModelInferRequest, known: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the requested outputs, in the request's order; `known`, all of the model's, if none is named."""
    for output in request.outputs:
        for parameter in ("classification", "shared_memory_region"):
            if parameter in output.parameters:
                reason = f"output {output.name[:60]!r}: {parameter} is not served: take the tensor as it is"
                raise StatusError(grpc.StatusCode.UNIMPLEMENTED, reason)
    names = tuple(output.name for output in request.outputs)
    wrong = next((name for name in names if name not in known), None)
    if wrong is not None:
        raise InvalidInputError(f"no output {wrong[:60]!r}; {request.model_name} gives {', '.join(known)}")
    if len(set(names)) < len(names):
        raise InvalidInputError(f"an output is asked for twice: {', '.join(names[:16])}")
    return names or known


def _timeout_s(request: pb.ModelInferRequest) -> float | None:
    """The request's timeout parameter in seconds; None without one. Others, such as priority, have no effect."""
    if "timeout" not in request.parameters:
        return None
    timeout = request.parameters["timeout"]
    kind = timeout.WhichOneof("parameter_choice")
    if kind not in ("int64_param", "uint64_param") or getattr(timeout, kind) < 0:
        raise InvalidInputError("parameter timeout: microseconds, a whole number from 0 (no limit)")
    return getattr(timeout, kind) / 1e6 or None


def _sequence(request: pb.ModelInferRequest) -> Sequence | None:
    """The request's place in a sequence; None if it is of none. InvalidInputError for a parameter of another type."""
    given = {name: request.parameters[name] for name in _SEQUENCES if name in request.parameters}
    if not given:
        return None
    kinds = {name: parameter.WhichOneof("parameter_choice") or "" for name, parameter in given.items()}
    for name in _SEQUENCES[1:]:
        if kinds.get(name, "bool_param") != "bool_param":
            raise InvalidInputError(f"parameter {name}: true or false")
    kind = kinds.get("sequence_id", "")
    name = str(getattr(given["sequence_id"], kind)) if kind in ("string_param", "int64_param", "uint64_param") else ""
    if not 0 < len(name.encode()) <= MAX_SEQUENCE_ID_BYTES:
        reason = f"parameter sequence_id: a whole number, or text of 1 to {MAX_SEQUENCE_ID_BYTES} bytes"
        raise InvalidInputError(reason)
    start, end = (name in given and given[name].bool_param for name in _SEQUENCES[1:])
    return Sequence(name, start, end)


def _refuse_repository(name: str) -> None:
    if name:
        raise StatusError(grpc.StatusCode.NOT_FOUND, f"no repository {name[:60]!r}: leave the name empty")


def _data_type(dtype: str) -> Any:
    return pb.DataType.Value(f"TYPE_{DATATYPE_BY_DTYPE[dtype]}")


def _version() -> str:
    try:
        return metadata.version("jellybean-serving")
    except metadata.PackageNotFoundError:  # run from a source tree
        return "unknown"
