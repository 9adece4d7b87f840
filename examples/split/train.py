"""Trains and exports the networks of this example, and writes its held-out data.

How to run, from the repository's root (some minutes on two cores; the results are committed):

    pip install -e '.[all,train-examples]'
    python examples/split/train.py

With names, only those networks: train.py small. Seeds are fixed: the same versions on the same kind of processor give
the same files. Prints each network's accuracy on held-out plates and rewrites the sha256s in workflow.yaml.
"""

from __future__ import annotations

import hashlib
import re
import sys
import time
from pathlib import Path

import nets
import numpy as np
import plates
import torch
from nets import Net, Spec
from torch import nn

HERE = Path(__file__).resolve().parent
HELDOUT = 120
PICTURES, PASSES, BATCH = 6_000, 6, 50
# `wide` narrows to 8 channels after its fourth convolution: 2 KiB, where the picture has 12.
NETS = {
    "small": Spec(((12, 5, 2), (24, 3, 2), (32, 3, 2), (48, 3, 2), (48, 3, 1))),
    "wide": Spec(((12, 5, 2), (24, 3, 2), (48, 3, 2), (8, 1, 1), (96, 3, 1), (96, 3, 1), (96, 3, 1))),
}


def train(spec: Spec, pictures: torch.Tensor, digits: torch.Tensor) -> Net:
    torch.manual_seed(1)
    net = Net(spec)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=PASSES * -(-len(pictures) // BATCH))
    for _ in range(PASSES):
        for batch in torch.randperm(len(pictures)).split(BATCH):
            loss = nn.functional.cross_entropy(net(pictures[batch].float()), digits[batch], label_smoothing=0.02)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return net.eval()


def write_hashes() -> None:
    """The sha256 of every model file, in workflow.yaml."""
    document = HERE / "workflow.yaml"
    text = document.read_text(encoding="utf-8")
    for path in sorted((HERE / "models").glob("*.onnx")):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        text = re.sub(rf"(models/{re.escape(path.name)}, sha256: )[0-9a-f]*", rf"\g<1>{digest}", text)
    document.write_text(text, encoding="utf-8")


def main() -> None:
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    pictures, digits = plates.plates("train", PICTURES, np.random.default_rng(1))
    unseen, labels = plates.plates("heldout", 1000, np.random.default_rng(2))
    for folder in ("models", "data"):
        (HERE / folder).mkdir(exist_ok=True)
    np.savez_compressed(HERE / "data/heldout.npz", plates=unseen[:HELDOUT], labels=labels[:HELDOUT])
    for name, spec in NETS.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        began = time.monotonic()
        net = train(spec, torch.from_numpy(pictures), torch.from_numpy(digits))
        nets.save(net, HERE / "models" / f"{name}.onnx")
        with torch.no_grad():
            right = net(torch.from_numpy(unseen).float()).argmax(1).numpy() == labels
        told = (
            f"{100 * right.mean():.1f} % of held-out plates right, {100 * right[:HELDOUT].mean():.1f} % of those kept"
        )
        print(f"{name}: {told}; {time.monotonic() - began:.0f} s", flush=True)
    write_hashes()


if __name__ == "__main__":
    main()
