"""Files of other formats that are taken for ONNX models: what they are, and how to get the model."""

from __future__ import annotations

from pathlib import Path

_BEGIN_BYTES = 512
_TORCH = "export the model with torch.onnx.export"
_TENSORFLOW = "convert the model with tf2onnx, or export it with Keras's model.export(format='onnx')"
_PAGE = "a page of HTML or XML", "download the file itself: the page may say why it is not there"
_BEGINS: tuple[tuple[int, bytes, str, str], ...] = (  # place and bytes of the begin, what it is, what to do
    (0, b"version https://git-lfs", "a pointer of Git LFS, not the file itself", "run git lfs pull"),
    (0, b"PK\x03\x04", "a zip archive, as torch.save writes", f"{_TORCH}, or unpack it"),
    (0, b"\x80\x02", "a pickle", _TORCH),
    (0, b"\x80\x03", "a pickle", _TORCH),
    (0, b"\x80\x04", "a pickle", _TORCH),
    (0, b"\x80\x05", "a pickle", _TORCH),
    (4, b"TFL3", "a model of TensorFlow Lite", "convert it with tf2onnx --tflite"),
    (4, b"ORTM", "in onnxruntime's own format (.ort)", "give the ONNX file that it was made from"),
    (0, b"\x89HDF", "a file of HDF5, as Keras writes", _TENSORFLOW),
    (0, b"GGUF", "a model of llama.cpp (GGUF)", "export the model that it was made from"),
    (8, b'{"', "a file of safetensors, which has weights and no model", _TORCH),
    (0, b"\x1f\x8b", "compressed with gzip", "unpack it"),
    *((0, begin, *_PAGE) for begin in (b"<!", b"<?", b"<html", b"<HTML", b"<head", b"<Error")),
)


DAMAGED = "it is damaged or cut off", "copy or export it again"  # what it is, what to do


def foreign_format(path: Path) -> tuple[str, str] | None:
    """What a file is that is no ONNX model, and what to do; None if that is not known. OSError if it is unreadable."""
    with path.open("rb") as file:
        begin = file.read(_BEGIN_BYTES)
    if not begin:
        return "it is empty", "copy or export it again"
    text = begin.lstrip(b"\xef\xbb\xbf \t\r\n")
    for place, magic, what, advice in _BEGINS:
        if begin[place:].startswith(magic) or (place == 0 and text.startswith(magic)):
            return f"it is {what}", advice
    if begin.isascii() and b"\0" not in begin:
        return "it is text", "give the file that the exporter wrote"
    return None
