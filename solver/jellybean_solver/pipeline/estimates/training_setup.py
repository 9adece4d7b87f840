"""How a transformer is trained: precision, parallelism, recomputation."""

from __future__ import annotations

from dataclasses import dataclass

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.estimates.transformer import Transformer

RECOMPUTATIONS = ("none", "selective", "full")


@dataclass(frozen=True, slots=True)
class TrainingPrecision:
    """Bytes per weight (a gradient has as many) and per activation; `states`: Adam's bytes per byte of weights.

    Adam keeps two float32 numbers per parameter, and a float32 copy of 16-bit weights.
    """

    weight_bytes: int
    activation_bytes: int
    states: float

    def bytes_per_parameter(self, states: float) -> float:
        """Bytes of weights, gradients and optimizer states (`states` bytes per byte of weights) per parameter."""
        return self.weight_bytes * (2 + states)


# The names of training.yaml. With Adam each has 16 bytes per parameter (ZeRO, Rajbhandari et al. 2020, section 3.1).
TRAINING_PRECISIONS = {
    "float32": TrainingPrecision(4, 4, 2.0),
    "bfloat16": TrainingPrecision(4, 2, 2.0),
    "float16": TrainingPrecision(4, 2, 2.0),
    "bfloat16-weights": TrainingPrecision(2, 2, 6.0),
}


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """T x P x R devices: `tensor` T per layer, `pipeline` stages P (1F1B), `replicas` R, with ZeRO stage `zero`.

    `micro_batch`: samples per micro-batch and replica. `batch`: samples per iteration; None: one micro-batch per
    pipeline stage, the fewest that keep all devices busy at some time. `states`: bytes per byte of weights; None: Adam.
    """

    precision: TrainingPrecision
    states: float | None = None
    tensor: int = 1
    pipeline: int = 1
    replicas: int = 1
    zero: int = 0
    micro_batch: int = 1
    batch: int | None = None
    recompute: str = "none"

    def __post_init__(self) -> None:
        counts = (self.tensor, self.pipeline, self.replicas, self.micro_batch, 1 if self.batch is None else self.batch)
        if min(counts) < 1:
            raise SolverError("tensor, pipeline, replicas, micro-batch and batch must be positive")
        if self.zero not in range(4):
            raise SolverError(f"ZeRO has stages 0 to 3, not {self.zero}")
        if self.recompute not in RECOMPUTATIONS:
            raise SolverError(f"unknown recomputation {self.recompute}; there are {', '.join(RECOMPUTATIONS)}")
        if self.batch is not None and self.batch % (self.micro_batch * self.replicas):
            raise SolverError(
                f"a batch of {self.batch} is not a multiple of {self.replicas} replicas with {self.micro_batch} "
                "samples per micro-batch"
            )

    @property
    def devices(self) -> int:
        return self.tensor * self.pipeline * self.replicas

    @property
    def microbatches(self) -> int:
        """Micro-batches per replica and iteration, M."""
        return self.pipeline if self.batch is None else self.batch // (self.micro_batch * self.replicas)

    @property
    def samples(self) -> int:
        """Samples per iteration, over all replicas."""
        return self.microbatches * self.micro_batch * self.replicas

    @property
    def optimizer_states(self) -> float:
        """Bytes of optimizer state per byte of weights."""
        return self.precision.states if self.states is None else self.states

    @property
    def bytes_per_parameter(self) -> float:
        """Bytes of weights, gradients and optimizer states per parameter, before ZeRO partitions them."""
        return self.precision.bytes_per_parameter(self.optimizer_states)

    def check(self, transformer: Transformer) -> None:
        """SolverError if the transformer cannot be divided this way."""
        if transformer.heads % self.tensor:
            raise SolverError(f"{transformer.heads} heads cannot be divided over {self.tensor} devices")
        if self.pipeline > transformer.layers:
            raise SolverError(f"{transformer.layers} layers are too few for {self.pipeline} pipeline stages")
