"""Completes a copy of this example: the network from its wheel, in two variants, and the held-out recordings.

`jellybean init listen DIR` runs it. To make another held-out set: python DIR/make.py --only sounds --seed 2 --count 40.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import silero
import sounds

HERE = Path(__file__).resolve().parent
HELD_OUT, SEED, SECONDS = 20, 1, 6.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("models", "sounds"))
    parser.add_argument("--count", type=int, default=HELD_OUT, help="recordings")
    parser.add_argument("--seed", type=int, default=SEED)
    chosen = parser.parse_args()
    try:
        if chosen.only != "sounds":
            make_models()
    except silero.ModelSourceError as error:
        sys.exit(str(error))
    if chosen.only != "models":
        make_sounds(chosen.count, chosen.seed)


def make_models() -> None:
    """Write models/*.onnx."""
    (HERE / "models").mkdir(exist_ok=True)
    network = silero.take()
    for name, rate_hz in silero.RATES_HZ.items():
        data = silero.listener(network, rate_hz).SerializeToString(deterministic=True)
        (HERE / f"models/{name}.onnx").write_bytes(data)


def make_sounds(count: int, seed: int) -> None:
    """Write data/heldout.npz, whose rows are the chunks of one recording after the other, and a recording to try."""
    for folder in ("data", "samples"):
        (HERE / folder).mkdir(exist_ok=True)
    made = [sounds.chunks(*sounds.recording(np.random.default_rng((seed, n)), SECONDS)) for n in range(count)]
    rows, labels = (np.concatenate(arrays) for arrays in zip(*made, strict=True))
    streams = np.repeat(np.arange(count), [len(chunks) for chunks, _ in made])
    np.savez(HERE / "data/heldout.npz", chunks=rows, labels=labels, streams=streams)
    np.save(HERE / "samples/talk.npy", made[0][0])
    print(f"{count} recordings of {SECONDS:g} s, seed {seed}", flush=True)


if __name__ == "__main__":
    main()
