"""Completes a copy of this example: models from the wheels, their int8 versions, and the held-out pictures.

`jellybean init ocr DIR` runs it. To make another held-out set: python DIR/make.py --only pictures --seed 2 --count 200.
"""

from __future__ import annotations

import jellybean  # noqa: F401  # isort: skip -- turns the telemetry of onnxruntime off, before it is loaded

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import ocr_steps
import onnx
import onnxruntime
import pictures
import ppocr

HERE = Path(__file__).resolve().parent
HELD_OUT, SEED = 60, 1
CALIBRATION, CALIBRATION_SEED = 12, 77  # pictures from which the ranges of int8 variants are taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("models", "pictures"))
    parser.add_argument("--count", type=int, default=HELD_OUT)
    parser.add_argument("--seed", type=int, default=SEED)
    chosen = parser.parse_args()
    try:
        if chosen.only != "pictures":
            make_models()
        if chosen.only != "models":
            make_pictures(chosen.count, chosen.seed)
    except ppocr.ModelSourceError as error:
        sys.exit(str(error))


def make_pictures(count: int, seed: int) -> None:
    """Write data/heldout.npz, and one picture as a file to try the workflow on."""
    files, texts = pictures.pictures(count, seed)
    labels = pictures.as_rows([text.encode() for text in texts])
    for folder in ("data", "samples"):
        (HERE / folder).mkdir(exist_ok=True)
    np.savez(HERE / "data/heldout.npz", pictures=pictures.as_rows(files), labels=labels)
    (HERE / "samples/receipt.jpg").write_bytes(files[1])
    print(f"{count} pictures, seed {seed}", flush=True)


def make_models() -> None:
    """Write models/*.onnx."""
    (HERE / "models").mkdir(exist_ok=True)
    _save("classify", ppocr.classifier(ppocr.take("classify")))
    seen = [ocr_steps.decode({"picture": _bytes(file)})["pixels"] for file in _calibration()]
    detectors = {version: ppocr.take(f"detect-{version}") for version in ("v4", "v6")}
    lines = list(_lines(seen, ppocr.detector(detectors["v6"], max(ppocr.SIZES))))
    for version, detector in detectors.items():
        int8 = ppocr.quantised(detector, ({"x": ppocr.normalised(pixels)} for pixels in _scaled(seen)))
        for name, model in ((version, detector), (f"{version}-int8", int8)):
            for size in ppocr.SIZES:
                _save(f"detect-{name}-{size}", ppocr.detector(model, size))
        recogniser = ppocr.take(f"recognise-{version}")
        _save(f"recognise-{version}", ppocr.recogniser(recogniser))
        int8 = ppocr.quantised(recogniser, ({"x": ppocr.normalised(line)} for line in lines))
        _save(f"recognise-{version}-int8", ppocr.recogniser(int8))


def _save(name: str, model: onnx.ModelProto) -> None:
    data = model.SerializeToString(deterministic=True)
    (HERE / f"models/{name}.onnx").write_bytes(data)
    print(f"{name}: {len(data) / 2**20:.1f} MiB", flush=True)


def _calibration() -> list[bytes]:
    return pictures.pictures(CALIBRATION, CALIBRATION_SEED)[0]


def _bytes(file: bytes) -> np.ndarray:
    return np.frombuffer(file, np.uint8)[np.newaxis]


def _scaled(seen: list[np.ndarray]) -> Iterator[np.ndarray]:
    """The calibration pictures in one of the detectors' sizes."""
    from jellybean_agent.steps import resize

    for pixels in seen:
        yield resize({"picture": pixels}, height=640, width=640)["picture"]


def _lines(seen: list[np.ndarray], detector: onnx.ModelProto) -> Iterator[np.ndarray]:
    """Some lines of the calibration pictures, as a recogniser gets them."""
    session = onnxruntime.InferenceSession(detector.SerializeToString(), providers=["CPUExecutionProvider"])
    upright = np.array([[1, 0]], np.float32)
    for pixels in seen:
        (text,) = session.run(None, {"pixels": pixels})
        for line in ocr_steps.cut_lines({"detect": text, "decode": pixels})["lines"][:4]:
            yield ocr_steps.turn({"lines": line[np.newaxis], "classify": upright})["line"]


if __name__ == "__main__":
    main()
