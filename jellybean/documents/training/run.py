"""How processes of a run work together, in training.yaml: sums of gradients, checkpoints, export. Imports no torch."""

from __future__ import annotations

import ipaddress
from pathlib import PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from jellybean.documents.schema.fields import DocumentModel, Name, Size
from jellybean.documents.training.data import Count, Processes
from jellybean.quantities import InvalidValueError, did_you_mean, quoted
from jellybean_solver.pipeline import WAYS

TORCH = "torch"
PARAMETER_SERVER = "parameter-server"
MESSAGE_WAYS = tuple(name for name in WAYS if name != PARAMETER_SERVER)  # all-reduces among the ranks
SYNC_WAYS = (TORCH, *MESSAGE_WAYS, PARAMETER_SERVER)
LOOPBACK = "127.0.0.1"
_SERVER_KEYS = ("servers", "mode", "staleness", "address")


def _way(text: str) -> str:
    if text not in SYNC_WAYS:
        hint = did_you_mean(text, SYNC_WAYS) or f"known ways: {', '.join(SYNC_WAYS)}"
        raise InvalidValueError(f"unknown way to sum gradients {quoted(text)}", hint)
    return text


def _address(text: str) -> str:
    hint = "write that of the machine with the servers, for example 10.0.0.5"
    try:
        address = ipaddress.ip_address(text)
    except ValueError as error:
        raise InvalidValueError(f"{quoted(text)} is no IP address", hint) from error
    if address.is_unspecified:
        raise InvalidValueError(f"{quoted(text)} is no address to which workers could connect", hint)
    return str(address)


class SyncSpec(DocumentModel):
    """How replicas sum their gradients."""

    way: Annotated[str, AfterValidator(_way)] = Field(
        default=TORCH,
        description="torch: all_reduce of torch.distributed. ring, tree, butterfly, naive: by messages, in buckets. "
        "parameter-server: further processes add them and keep the weights.",
    )
    servers: Annotated[int, Field(ge=1, le=64)] = Field(
        default=1, description="Parameter servers, among which the weights are divided."
    )
    mode: Literal["bsp", "asp"] = Field(
        default="bsp",
        description="Of parameter servers. bsp: an update takes a gradient of every replica. asp: every gradient is an "
        "update, and replicas do not wait for each other.",
    )
    staleness: Annotated[int, Field(ge=0)] | None = Field(
        default=None,
        description="With asp, s: a worker begins no update while it has completed more than s more than the slowest.",
    )
    address: Annotated[str, AfterValidator(_address)] = Field(
        default=LOOPBACK, description="IP address at which parameter servers listen, of their machine."
    )
    bucket_bytes: Size = Field(
        default=25 * 2**20, alias="bucket", gt=0, description="Bytes of gradients that are summed together."
    )

    @model_validator(mode="after")
    def _check_bucket(self) -> Self:
        if self.way == TORCH and "bucket_bytes" in self.model_fields_set:
            raise InvalidValueError(
                "torch sums a stage's gradients at once", "remove `bucket`, or choose a way", keys=("way", "bucket")
            )
        if self.has_servers and "bucket_bytes" in self.model_fields_set:
            raise InvalidValueError(
                "a parameter server takes all gradients at once", "remove `bucket`", keys=("way", "bucket")
            )
        return self

    @model_validator(mode="after")
    def _check_server_keys(self) -> Self:
        given = next((key for key in _SERVER_KEYS if key in self.model_fields_set), None)
        if given is not None and not self.has_servers:
            raise InvalidValueError(
                f"`{given}` is of parameter servers",
                f"remove it, or write way: {PARAMETER_SERVER}",
                keys=("way", given),
            )
        if self.staleness is not None and self.mode == "bsp":
            raise InvalidValueError(
                "bsp has no staleness: every update waits for all replicas",
                "write mode: asp",
                keys=("mode", "staleness"),
            )
        return self

    @property
    def has_servers(self) -> bool:
        """True if processes beside the ranks of the replicas keep the weights."""
        return self.way == PARAMETER_SERVER

    @property
    def server_processes(self) -> int:
        """Number of processes beside those of the replicas."""
        return self.servers if self.has_servers else 0


class CheckpointSpec(DocumentModel):
    """Checkpoints, from which a run can resume."""

    every: Count = Field(default=1, description="Epochs between checkpoints.")
    keep: Count = Field(default=2, description="Number of newest checkpoints kept.")
    updates: Count | None = Field(
        default=None, description="Updates between checkpoints within an epoch, for schedules with a flush."
    )


def _model_file(text: str) -> str:
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or path.suffix != ".onnx" or "\\" in text or "\0" in text:
        raise InvalidValueError(
            f"{quoted(text)} is not the path of an ONNX file in the project folder",
            "write for example models/tuned.onnx",
        )
    return text


class ExportSpec(DocumentModel):
    """Export of the trained model as a variant of the workflow in the same folder."""

    operator: Name
    variant: Name
    model: Annotated[str, AfterValidator(_model_file)] = Field(
        description="ONNX file to write, relative to the folder: models/tuned.onnx"
    )
    opset: int = Field(default=17, ge=13, le=23)


class ParallelKeys(DocumentModel):
    """The keys of training.yaml that leave the number of processes open."""

    parallel: Literal["auto"] | None = Field(
        default=None,
        description="auto: those of devices, replicas, tensor and microbatches that are not given are chosen, and as "
        "few processes are used as are fastest.",
    )
    processes: Processes | None = Field(
        default=None,
        description="With parallel: auto, how many processes to start at most; by default one per core that the "
        "process may use.",
    )

    @model_validator(mode="after")
    def _check_processes(self) -> ParallelKeys:
        if self.processes is not None and self.parallel is None:
            raise InvalidValueError(
                "`processes` needs `parallel: auto`",
                "write it, or `devices` and `replicas` in place of `processes`",
                keys=("processes", "parallel"),
            )
        return self

    def leaves_open(self, key: str) -> bool:
        """Whether `parallel: auto` chooses the value of this key: it is not given."""
        return self.parallel == "auto" and key not in self.model_fields_set
