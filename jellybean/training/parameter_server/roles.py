"""What the processes of a run with parameter servers are: workers first, then servers; and how they divide an epoch."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass

from jellybean.documents.training import TrainingDocument
from jellybean.documents.training.run import SyncSpec
from jellybean.training.data.loaded_rows import LoadedRows
from jellybean.training.data.loading import TrainingData
from jellybean.training.data.sampler import MicrobatchSampler
from jellybean.training.errors import TrainingError, UntrainableError
from jellybean.training.loss_trial import over_batch
from jellybean.training.losses import BATCH
from jellybean.training.parameter_server.rendezvous import key_from_environment
from jellybean_solver.pipeline import ONE_DEVICE_SCHEDULE


@dataclass(frozen=True)
class Role:
    """A process of the run: worker `number`, or server `number` if `serves`."""

    number: int
    serves: bool


def role_of_process(document: TrainingDocument) -> Role:
    """The role by the rank that the launcher gave this process.

    TrainingError if the run has several machines, and servers listen where no other machine can connect; and if they
    listen beyond loopback without a key (`key_from_environment`).
    """
    if os.environ.get("GROUP_WORLD_SIZE", "1") != "1" and ipaddress.ip_address(document.sync.address).is_loopback:
        raise TrainingError(
            f"parameter servers listen at {document.sync.address}, to which other machines cannot connect: --set "
            "sync.address=ADDRESS names the IP address of their machine, which has the last ranks"
        )
    key_from_environment(document.sync.address, os.environ)  # before the rows are loaded
    rank, workers = int(os.environ["RANK"]), document.replicas
    return Role(rank - workers, True) if rank >= workers else Role(rank, False)


def document_alone(document: TrainingDocument, role: Role) -> TrainingDocument:
    """The document as a run of this process alone: one device, with a worker's share of the batch.

    Servers compute in host memory.
    """
    alone = {"replicas": 1, "devices": 1, "min_devices": None, "sync": SyncSpec(), "schedule": ONE_DEVICE_SCHEDULE}
    device = {"device": "cpu"} if role.serves else {}
    return document.model_copy(update={**alone, "batch": document.batch // document.replicas, **device})


def divide_epoch(document: TrainingDocument, data: TrainingData) -> MicrobatchSampler:
    """The division of an epoch into work items. TrainingError if there are too few rows, or if they have one order.

    In BSP an iteration is an update of all workers, in ASP that of one.
    """
    for source in (data.train, data.test):
        if isinstance(source, LoadedRows) and not source.source.skips:
            raise TrainingError(
                f"{data.name}: a parameter server hands out rows in any order, and a stream has one order: return "
                "arrays or a map-style data set, or take another `sync.way`"
            )
    workers, rows = document.replicas, data.train.rows
    if data.counts == BATCH and document.sync.mode == "bsp" and workers > 1:
        raise UntrainableError(over_batch(document, f"{workers} workers divide a batch"))
    if document.sync.mode == "bsp":
        sampler = MicrobatchSampler(rows, document.batch, document.microbatches, workers)
    else:
        sampler = MicrobatchSampler(rows, document.batch // workers, document.microbatches, 1)
    if sampler.updates < 1:
        parts = document.microbatches * workers
        raise TrainingError(
            f"{rows} rows are too few for one update of {parts} micro-batches; lower batch, microbatches or replicas"
        )
    return sampler
