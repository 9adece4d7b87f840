"""Floating-point operations of a training iteration."""

from __future__ import annotations

from jellybean_solver.pipeline.estimates.transformer import Transformer


def iteration_flops(transformer: Transformer, samples: int, recompute: str = "none") -> float:
    """Operations of the matrix multiplications of one iteration over `samples`.

    A forward pass has 24Bsh² + 4Bs²h per layer and 2BshV in the output layer, a backward pass twice that. With full
    recomputation the layers' forward runs again: 96BsLh²(1 + s/6h + V/16Lh) (Narayanan et al. 2021, equation 3). With
    selective recomputation only the attention scores' part, 4Bs²h, does (Korthikanti et al. 2022).
    """
    tokens, hidden = samples * transformer.seq, transformer.hidden
    matrices, scores = 24.0 * tokens * hidden**2, 4.0 * tokens * transformer.seq * hidden
    again = {"none": 0.0, "selective": scores, "full": matrices + scores}[recompute]
    return transformer.layers * (3 * (matrices + scores) + again) + 6.0 * tokens * hidden * transformer.vocab
