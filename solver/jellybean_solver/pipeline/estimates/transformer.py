"""A transformer by its size, as published estimates describe one."""

from __future__ import annotations

from dataclasses import dataclass

from jellybean_solver.errors import SolverError


@dataclass(frozen=True, slots=True)
class Transformer:
    """L `layers` of width h (`hidden`), a vocabulary of V (`vocab`), a attention `heads`, s tokens per sample (`seq`).

    Each layer has attention and an MLP of width 4h; the embedding and the output layer share their weights.
    """

    layers: int
    hidden: int
    vocab: int
    heads: int
    seq: int

    def __post_init__(self) -> None:
        if min(self.layers, self.hidden, self.vocab, self.heads, self.seq) < 1:
            raise SolverError("a transformer's layers, hidden, vocab, heads and seq must be positive")
        if self.hidden % self.heads:
            raise SolverError(f"hidden {self.hidden} is not a multiple of {self.heads} heads")

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer, 12h² + 13h: attention 4h² + 4h, MLP 8h² + 5h, two layer norms 4h."""
        return 12 * self.hidden**2 + 13 * self.hidden

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the token embedding, Vh. Position embeddings (sh at most) are left out."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters, 12Lh² + 13Lh + Vh (Narayanan et al. 2021, equation 2, without positions)."""
        return self.layers * self.layer_parameters + self.embedding_parameters
