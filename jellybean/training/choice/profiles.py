"""Profiles of a model by the size of a micro-batch, from two sizes that are measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from jellybean.pipeline.torch_profile import TorchProfile
from jellybean_solver.pipeline import Layer, LayerGraph


@dataclass(frozen=True)
class SizedProfiles:
    """Profiles of micro-batches of `sizes` samples, the smallest and the largest that are considered."""

    sizes: tuple[int, int]
    profiles: tuple[TorchProfile, TorchProfile]

    @classmethod
    def measured(cls, sizes: Sequence[int], measure: Callable[[int], TorchProfile]) -> SizedProfiles:
        """Measure the smallest and the largest size."""
        least, most = min(sizes), max(sizes)
        small = measure(least)
        return cls((least, most), (small, small if least == most else measure(most)))

    def at(self, size: int) -> TorchProfile:
        """The profile of micro-batches of `size` samples: times and bytes are interpolated.

        Straight lines between two sizes: each operation takes a fixed time and one per sample.
        """
        (least, most), (small, large) = self.sizes, self.profiles
        if small is large or small.members != large.members:
            return _scaled(large, size / most)
        share = (size - least) / (most - least)
        layers = [
            _between(one, other, share) for one, other in zip(small.graph.layers, large.graph.layers, strict=True)
        ]
        return replace(large, graph=LayerGraph(tuple(layers), large.graph.edges))


def _between(small: Layer, large: Layer, share: float) -> Layer:
    return replace(
        large,
        forward_s=small.forward_s + share * (large.forward_s - small.forward_s),
        backward_s=small.backward_s + share * (large.backward_s - small.backward_s),
        activation_bytes=small.activation_bytes + share * (large.activation_bytes - small.activation_bytes),
    )


def _scaled(profile: TorchProfile, factor: float) -> TorchProfile:
    layers = [
        replace(
            layer,
            forward_s=factor * layer.forward_s,
            backward_s=factor * layer.backward_s,
            activation_bytes=factor * layer.activation_bytes,
        )
        for layer in profile.graph.layers
    ]
    return replace(profile, graph=LayerGraph(tuple(layers), profile.graph.edges))
