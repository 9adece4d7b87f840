"""Memory of one device in training: weights, gradients, optimizer states, activations."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jellybean_solver.pipeline.estimates.training_setup import TrainingSetup
from jellybean_solver.pipeline.estimates.transformer import Transformer


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of one device by their use."""

    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float = 0.0

    @property
    def total_bytes(self) -> float:
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes + self.activations_bytes


def model_state_memory(parameters: float, setup: TrainingSetup) -> DeviceMemory:
    """Memory of that many parameters with their gradients and optimizer states, without activations.

    With replicas, ZeRO partitions the optimizer states (stage 1), also the gradients (2), also the weights (3)
    (Rajbhandari et al. 2020, figure 1).
    """
    weights_bytes = parameters * setup.precision.weight_bytes
    shards = [setup.replicas if setup.zero >= stage else 1 for stage in (3, 2, 1)]
    return DeviceMemory(
        weights_bytes / shards[0], weights_bytes / shards[1], weights_bytes * setup.optimizer_states / shards[2]
    )


def layer_activation_bytes(transformer: Transformer, setup: TrainingSetup) -> float:
    """Bytes that a device keeps of one layer and micro-batch, from forward to backward.

    In 16 bit sbh(10 + 24/T + 5as/hT), so sbh(34 + 5as/h) on one device; selective recomputation leaves out the
    attention scores (5as/h), full recomputation keeps the layer's input, 2sbh (Korthikanti et al. 2022, table 2).
    With e bytes per value: 10 = 4e + 2, 24 = 12e, 5 = 2e + 1, because dropout masks always have one byte per value.
    """
    size = setup.precision.activation_bytes
    tokens_bytes = transformer.seq * setup.micro_batch * transformer.hidden
    if setup.recompute == "full":
        return tokens_bytes * size
    scores = (2 * size + 1) * transformer.heads * transformer.seq / transformer.hidden
    kept = scores if setup.recompute == "none" else 0.0
    return tokens_bytes * (4 * size + 2 + (12 * size + kept) / setup.tensor)


def device_memory(transformer: Transformer, setup: TrainingSetup) -> DeviceMemory:
    """Memory of the first pipeline stage, which has the embedding and the most micro-batches in flight (1F1B).

    It keeps activations of min(P, M) micro-batches, and with recomputation those of the layer that is being
    recomputed (Narayanan et al. 2021, section 3.5). If it is the only stage, it also keeps the inputs of the output
    layer and the last layer norm, and float32 logits. SolverError if the transformer cannot be divided this way.
    """
    setup.check(transformer)
    layers = -(-transformer.layers // setup.pipeline)
    parameters = (layers * transformer.layer_parameters + transformer.embedding_parameters) / setup.tensor
    kept = layer_activation_bytes(transformer, setup)
    recomputed = layer_activation_bytes(transformer, replace(setup, recompute="none")) - kept
    activations = min(setup.pipeline, setup.microbatches) * layers * kept + recomputed
    if setup.pipeline == 1:
        value = 2 * setup.precision.activation_bytes * transformer.hidden + 4 * transformer.vocab / setup.tensor
        activations += transformer.seq * setup.micro_batch * value
    return replace(model_state_memory(parameters, setup), activations_bytes=activations)
