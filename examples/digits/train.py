"""Trains, quantises and exports the networks of this example, and writes its held-out data.

How to run, from the repository's root (about 12 minutes on two cores; the results are committed):

    pip install -e '.[all,train-examples]'
    python examples/digits/train.py

Seeds are fixed: the same versions on the same kind of processor give the same files. Prints each network's accuracy
on held-out crops, then rewrites the sha256s in workflow.yaml.
"""

from __future__ import annotations

import jellybean  # noqa: F401  # isort: skip -- turns the telemetry of onnxruntime off, before it is loaded

import ctypes
import dataclasses
import hashlib
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import nets
import numpy as np
import onnxruntime as ort
import strips
import torch
from nets import Net, Spec
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from PIL import Image
from torch import nn

HERE = Path(__file__).resolve().parent
HELDOUT_STRIPS = 300
FIND = Spec(convs=((16, 1), (32, 2)), outputs=1)
CLASSIFIERS = {
    ("shape", "mlp"): Spec(hidden=96),
    ("shape", "cnn-small"): Spec(enlarge=2, convs=((16, 1), (32, 1), (32, 2), (32, 1), (32, 2)), hidden=32, looks=5),
    ("shape", "cnn-large"): Spec(
        enlarge=3, convs=((16, 1), (64, 1), (64, 1), (64, 2), (64, 1), (64, 2), (64, 1)), looks=5
    ),
    ("strokes", "linear"): Spec(strokes=True, pool=4),
    ("strokes", "cnn"): Spec(strokes=True, enlarge=2, convs=((64, 1), (64, 1), (64, 2), (64, 1), (64, 2)), looks=5),
}
PASSES = {"mlp": (0, 6), "cnn-small": (0, 4), "cnn-large": (4, 2), "linear": (0, 6), "cnn": (4, 2)}
QUANTISED = {("shape", "cnn-large"): "cnn-large-int8", ("strokes", "cnn"): "cnn-int8"}
VIEWS = {False: 60, True: 16}  # photographs of every scan per pass: many for nets without convolutions, which are fast


def train(spec: Spec, pictures: strips.Bytes, labels: strips.Ints, passes: tuple[int, int], seed: int) -> Net:
    """Passes over the data, first on crops enlarged one step less, then as the spec says.

    Progressive resizing: most is learned while pictures are small and passes are cheap.
    """
    torch.manual_seed(seed)
    net = Net(spec)
    x, y = torch.from_numpy(pictures), torch.from_numpy(labels)
    for enlarge, count in zip((max(1, spec.enlarge - 1), spec.enlarge), passes, strict=True):
        net.spec = dataclasses.replace(spec, enlarge=enlarge)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-2)
        steps = max(1, count * -(-len(x) // 128))
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
        net.train()
        for _ in range(count):
            for batch in torch.randperm(len(x)).split(128):
                loss = _loss(net(x[batch].float()), y[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
    return net.eval()


def _loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if scores.shape[1] == 1:
        return nn.functional.binary_cross_entropy_with_logits(scores[:, 0], labels.float())
    return nn.functional.cross_entropy(scores, labels, label_smoothing=0.02)


def calibrate(net: Net, pictures: strips.Bytes, labels: strips.Ints) -> None:
    """The temperature under which the network's confidence is honest, so that the fusion may trust it."""
    scores, y = net.scores(torch.from_numpy(pictures).float()), torch.from_numpy(labels)
    candidates = np.linspace(0.3, 3.0, 109)
    losses = [float(nn.functional.cross_entropy(scores / float(value), y)) for value in candidates]
    net.temperature = float(candidates[int(np.argmin(losses))])


def finder(rng: np.random.Generator) -> Net:
    """Is there a digit in the slot?"""
    pictures, _, held = strips.strips(strips.load_scans("train"), 6000, rng)
    slots = pictures.reshape(-1, strips.SIDE, strips.SLOTS, strips.SIDE).transpose(0, 2, 1, 3)
    flat = np.ascontiguousarray(slots.reshape(-1, strips.SIDE, strips.SIDE))
    return train(FIND, flat, held.reshape(-1).astype(np.int64), (0, 2), seed=1)


class Calibration(CalibrationDataReader):
    """Crops that tell the quantiser the range of every activation."""

    def __init__(self, pictures: strips.Bytes) -> None:
        self._batches: Iterator[strips.Bytes] = iter(np.array_split(pictures, 16))

    def get_next(self) -> dict[str, strips.Bytes] | None:
        batch = next(self._batches, None)
        return None if batch is None else {"find": batch}


def quantise(source: Path, target: Path, pictures: strips.Bytes) -> None:
    """Static quantisation of the convolutions to 8 bits; heads and what surrounds them stay as they are."""
    with tempfile.TemporaryDirectory() as folder:
        prepared = Path(folder) / "prepared.onnx"
        quant_pre_process(source, prepared, skip_symbolic_shape=True)
        quantize_static(
            prepared,
            target,
            Calibration(pictures),
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            op_types_to_quantize=["Conv"],
        )


def log_probabilities(model: Path, pictures: strips.Bytes) -> np.ndarray:
    """What the exported file says of crops, [n, 10]."""
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, {"find": part})[0] for part in np.array_split(pictures, 16)])


def fusion(models: Path, pictures: strips.Bytes, labels: strips.Ints) -> dict[str, np.ndarray]:
    """Weights per class that fuse any pair of variants, learned over all pairs on scans that no network has seen."""
    known = {path.stem: torch.from_numpy(log_probabilities(path, pictures)) for path in sorted(models.glob("s*.onnx"))}
    shapes = [value for name, value in known.items() if name.startswith("shape")]
    strokes = [value for name, value in known.items() if name.startswith("strokes")]
    pairs = [(one, other) for one in shapes for other in strokes]
    first, second = torch.cat([pair[0] for pair in pairs]), torch.cat([pair[1] for pair in pairs])
    y = torch.from_numpy(labels).repeat(len(pairs))
    weights = {"shape": torch.full((10,), 0.5), "strokes": torch.full((10,), 0.5), "bias": torch.zeros(10)}
    for weight in weights.values():
        weight.requires_grad_()
    optimizer = torch.optim.Adam(weights.values(), lr=0.02)
    for _ in range(300):
        fused = first * weights["shape"] + second * weights["strokes"] + weights["bias"]
        loss = nn.functional.cross_entropy(fused, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {name: weight.detach().numpy() for name, weight in weights.items()}


def write_heldout() -> None:
    """Held-out strips, their numbers, and one of them as a picture."""
    scans = strips.load_scans("heldout")
    pictures, numbers, held = strips.strips(scans, HELDOUT_STRIPS, np.random.default_rng(7))
    (HERE / "data").mkdir(exist_ok=True)
    np.savez_compressed(HERE / "data/heldout.npz", strips=pictures, labels=numbers, held=held)
    (HERE / "samples").mkdir(exist_ok=True)
    Image.fromarray(pictures[0]).save(HERE / "samples/strip.png")
    sheet = np.full((6 * 20 - 4, 2 * 100 - 4), 255, np.uint8)  # twelve strips, for the eye
    for index, picture in enumerate(pictures[:12]):
        row, column = divmod(index, 2)
        sheet[20 * row : 20 * row + 16, 100 * column : 100 * column + 96] = picture
    Image.fromarray(sheet).resize((4 * sheet.shape[1], 4 * sheet.shape[0]), Image.Resampling.NEAREST).save(
        HERE / "samples/strips.png", optimize=True
    )
    print(f"held out: {HELDOUT_STRIPS} strips, {held.sum(1).mean():.3f} digits each; sample: {numbers[0]}")


def write_hashes() -> None:
    """The sha256 of every model file, in workflow.yaml."""
    document = HERE / "workflow.yaml"
    if not document.exists():
        return
    text = document.read_text(encoding="utf-8")
    for path in sorted((HERE / "models").glob("*.onnx")):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        text = re.sub(rf"(models/{re.escape(path.name)}, sha256: )[0-9a-f]*", rf"\g<1>{digest}", text)
    document.write_text(text, encoding="utf-8")


def keep_memory() -> None:
    """Tells glibc to keep freed memory: else every large activation is fetched from the system anew, 4 times slower."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(-3, 2**30)  # M_MMAP_THRESHOLD
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


def main() -> None:
    keep_memory()
    torch.use_deterministic_algorithms(True)
    models = HERE / "models"
    models.mkdir(exist_ok=True)
    write_heldout()
    train_scans, tune_scans = strips.load_scans("train"), strips.load_scans("tune")
    tune, tune_digits = strips.crops(tune_scans, 8, np.random.default_rng(3))
    unseen, unseen_digits = strips.crops(strips.load_scans("heldout"), 4, np.random.default_rng(4))
    nets.save_finder(finder(np.random.default_rng(2)), models / "find.onnx")
    for (operator, variant), spec in CLASSIFIERS.items():
        began = time.monotonic()
        pictures, digits = strips.crops(train_scans, VIEWS[bool(spec.convs)], np.random.default_rng(5))
        net = train(spec, pictures, digits, PASSES[variant], seed=6)
        calibrate(net, tune, tune_digits)
        path = models / f"{operator}-{variant}.onnx"
        nets.save_classifier(net, path)
        if (operator, variant) in QUANTISED:
            quantise(path, models / f"{operator}-{QUANTISED[operator, variant]}.onnx", tune[:512])
        print(f"{operator} {variant}: trained in {time.monotonic() - began:.0f} s", flush=True)
    nets.save_fusion(fusion(models, tune, tune_digits), models / "read.onnx")
    nets.save_number(models / "number.onnx")
    for path in sorted(models.glob("s*.onnx")):
        right = log_probabilities(path, unseen).argmax(1) == unseen_digits
        print(f"{path.stem}: {100 * right.mean():.2f} % of held-out crops, {path.stat().st_size / 1024:.0f} KiB")
    write_hashes()


if __name__ == "__main__":
    main()
