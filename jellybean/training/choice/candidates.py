"""What `schedule: auto` and `parallel: auto` choose among: devices, replicas, tensor sizes, micro-batches, schedules.

The batch and one update per batch stay as the document has them, so every candidate trains with the same mathematics,
except schedules without a flush, which `staleness: true` allows. A further dimension is one more field here, one more
loop in `enumerate_candidates` and its costs in `costs.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from jellybean.documents.training import AUTO, TrainingDocument
from jellybean_solver import SolverError
from jellybean_solver.pipeline import ONE_DEVICE_SCHEDULE, SCHEDULES, make_schedule

_ALL_SIZES = 8  # up to so many processes, all numbers of devices and replicas are considered; above, powers of two too
_MICROBATCHES_PER_DEVICE = 8  # with more, a pipeline idles less than 1 / 9 of the time already


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run the document: processes, micro-batches per replica, a schedule.

    `tensor`: processes that share each device's layers.
    """

    devices: int
    replicas: int
    microbatches: int
    schedule: str
    chunks: int | None = None
    tensor: int = 1

    @property
    def processes(self) -> int:
        """Number of processes that it uses."""
        return self.devices * self.replicas * self.tensor

    @property
    def layout(self) -> tuple[int, int, int]:
        """(devices, replicas, tensor size): how its processes work together."""
        return self.devices, self.replicas, self.tensor

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """(devices, replicas, tensor size, micro-batches)."""
        return *self.layout, self.microbatches

    def applied(self, document: TrainingDocument) -> TrainingDocument:
        """The document that asks for this candidate and leaves nothing free."""
        values = {
            "devices": self.devices,
            "replicas": self.replicas,
            "tensor": document.tensor.model_copy(update={"ways": self.tensor}),
            "microbatches": self.microbatches,
            "schedule": self.schedule,
            "chunks": self.chunks if self.schedule == "interleaved" else None,
            "parallel": None,
            "processes": None,
        }
        return document.model_copy(update=values)

    def __str__(self) -> str:
        tensor = f" x tensor {self.tensor}" if self.tensor > 1 else ""
        return (
            f"{self.schedule}, {_count(self.devices, 'device')} x {_count(self.replicas, 'replica')}{tensor}, "
            f"{_count(self.microbatches, 'micro-batch', 'es')}"
        )


def enumerate_candidates(document: TrainingDocument, processes: int) -> tuple[list[Candidate], dict[str, str]]:
    """(candidates on at most so many processes, reasons against schedules that are defined for none of them)."""
    names, rejected = _schedules(document)
    defined: list[Candidate] = []
    for devices, replicas, tensor in _layouts(document, processes):
        for microbatches in _microbatches(document, devices, replicas):
            for name in _defined_on(names, devices, document):
                chunks = document.chunks if name == "interleaved" else None
                try:
                    make_schedule(name, devices, microbatches, chunks)
                except SolverError as error:
                    rejected.setdefault(name, str(error))
                else:
                    defined.append(Candidate(devices, replicas, microbatches, name, chunks, tensor))
    used = {one.schedule for one in defined}
    return defined, {name: why for name, why in rejected.items() if name not in used}


def leaves_freedom(document: TrainingDocument, processes: int) -> bool:
    """Whether more than one candidate may be usable, so that a run must search.

    A plan has its own stages. With `conv: data` predictions alone choose the schedule: trials give the processes of a
    device the same rows.
    """
    if document.plan is not None or document.objective is not None or document.tensor.by_rows:
        return False
    return processes > 1 and AUTO in (document.schedule, document.parallel)


def has_one_stage(document: TrainingDocument) -> bool:
    """Whether every candidate has a single stage, of whole layers, so that the model need not be cut."""
    if document.plan is not None or document.objective is not None or document.tensor.ways > 1:
        return False
    if document.devices > 1 or document.leaves_open("devices") or document.leaves_open("tensor"):
        return False
    return document.schedule == AUTO or make_schedule(document.schedule, 1, 1, document.chunks).stages == 1


def _schedules(document: TrainingDocument) -> tuple[list[str], dict[str, str]]:
    if document.schedule != AUTO:
        return [document.schedule], {}
    stale = {name for name in SCHEDULES if not make_schedule(name, 2, 2).flushes}
    refused = set() if document.staleness else stale
    why = "its gradients are of older weights; `staleness: true` allows it"
    return [name for name in SCHEDULES if name not in refused], dict.fromkeys(refused, why)


def _defined_on(names: list[str], devices: int, document: TrainingDocument) -> list[str]:
    """Of one device's schedules, one; several stages on one device only add messages to itself."""
    return [ONE_DEVICE_SCHEDULE] if devices == 1 and document.schedule == AUTO else names


def _layouts(document: TrainingDocument, processes: int) -> list[tuple[int, int, int]]:
    """(devices, replicas, tensor size) that the document leaves open, on at most `processes`."""
    given = {"devices": document.devices, "replicas": document.replicas, "tensor": document.tensor.ways}
    sizes = [_sizes(processes) if document.leaves_open(key) else [size] for key, size in given.items()]
    return [(one, two, three) for one, two, three in product(*sizes) if one * two * three <= processes]


def _sizes(processes: int) -> list[int]:
    if processes <= _ALL_SIZES:
        return list(range(1, processes + 1))
    powers = {2**exponent for exponent in range(processes.bit_length())}
    return sorted(powers | {size for size in range(1, processes + 1) if processes % size == 0})


def _microbatches(document: TrainingDocument, devices: int, replicas: int) -> list[int]:
    """Numbers of micro-batches per replica: given, or powers of two that divide the batch evenly."""
    if not document.leaves_open("microbatches"):
        return [document.microbatches] if document.microbatches * replicas <= document.batch else []
    powers = [2**exponent for exponent in range((_MICROBATCHES_PER_DEVICE * devices).bit_length())]
    return [count for count in powers if document.batch % (count * replicas) == 0]


def _count(number: int, name: str, plural: str = "s") -> str:
    return f"{number} {name}{plural if number != 1 else ''}"
