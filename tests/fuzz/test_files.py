"""Files that a person or a crash may have changed: documents, traces, tables, arrays, counters."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from jellybean.documents import load_kubernetes, load_training, read_rate_trace
from jellybean.documents.draft.models import group_variants, read_models
from jellybean.documents.draft.wiring import wire
from jellybean.errors import DocumentError, InputError
from jellybean.ledger import COLUMNS
from jellybean.pictures import read_picture
from jellybean.serving.gateway.accounting.serving_log import ServingLog
from jellybean.tensor_files import read_npy, read_npz
from jellybean_agent import LiveCounters
from jellybean_agent.errors import CountersError
from tests import report_plans
from tests.support.examples import examples
from tests.support.exported_models import sklearn_classifier
from tests.support.fuzzing import at_most, changed_bytes, kept, seeds
from tests.support.made_inputs import png_bytes, tiff_bytes
from tests.support.paths import EXAMPLES
from tests.support.tiny_models import positives, recurrent

many = settings(
    max_examples=examples(180, nightly=5_000),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
KUBERNETES = b"""\
kind: Kubernetes
images: {agent: registry.example/agent:0.1.0, gateway: registry.example/gateway:0.1.0}
models: {url: https://models.example/digits, cache: {claim: models-cache, size: 50 GiB}}
pods: {env: {A: b}, patch: {spec: {priorityClassName: high}}}
pools:
  camera-box: {cpu: 0.5, memory: 512 MiB, nodes: {gpu.example/kind: t4}}
gateway: {tier: cloud, service: {type: LoadBalancer, annotations: {a: b}}, ledger: {url: postgresql+psycopg://u@h/n}}
drain: 30 s
"""
YAML = [
    *(
        b"\n",
        b": ",
        b"- ",
        b"{",
        b"}",
        b"[",
        b"]",
        b"&a ",
        b"*a",
        b"<<: ",
        b"!!python/object:os.system ",
        b"|",
        b">",
        b"?",
    ),
    *(
        b"'",
        b'"',
        b"#",
        b"---\n",
        b"\t",
        b"\x00",
        b"\xef\xbb\xbf",
        b"null",
        b"1e999",
        b".nan",
        b"-1",
        b"0x7f",
        b"\xff",
    ),
    *(b"../../../etc/passwd", b"99999999999999999999 GiB", b"1 KiB", b"3 %", b"a" * 3000),
]


@pytest.mark.parametrize(
    ("name", "original", "load"),
    [
        ("training.yaml", (EXAMPLES / "digits/training.yaml").read_bytes(), load_training),
        ("kubernetes.yaml", KUBERNETES, load_kubernetes),
    ],
)
@many
@given(data=st.data())
def test_documents(
    tmp_path: Path, name: str, original: bytes, load: Callable[[Path], Any], data: st.DataObject
) -> None:
    """A document is read, or its problems are told, each in one line with its place."""
    (tmp_path / name).write_bytes(data.draw(changed_bytes([original, *seeds("yaml")], YAML)))
    try:
        load(tmp_path)
    except DocumentError as error:
        assert error.problems
        for problem in error.problems:
            assert "\n" not in str(problem)
            assert problem.line is None or problem.line >= 1


TRACE = b"time_s,source,rate_per_s\n0,image,10\n0,speech,10\n60,image,20\n60,speech,20\n"
CSV = [
    b",",
    b"\n",
    b'"',
    b"nan",
    b"1e999",
    b"-1",
    b"\x00",
    b"\xff",
    b"image",
    b"\xef\xbb\xbf",
    b"\r",
    b"9" * 400,
]


@many
@given(changed_bytes([TRACE], CSV))
def test_rate_traces(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(content)
    with contextlib.suppress(DocumentError):
        assert read_rate_trace(path, report_plans.vqa()).trace.length_s > 0


def _arrays(save: Callable[..., None], **arrays: Any) -> bytes:
    file = BytesIO()
    save(file, *arrays.pop("first", ()), **arrays)
    return file.getvalue()


ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)
NPY = [
    _arrays(np.save, first=(ROWS,)),
    _arrays(np.save, first=(np.array([{"a": 1}], object),), allow_pickle=True),
]
NPZ = [_arrays(np.savez, x=ROWS), _arrays(np.savez_compressed, x=ROWS, labels=np.arange(3))]
HEADER = [
    *(
        b"'<f4'",
        b"'|O'",
        b"'<U99999999'",
        b"(3, 4)",
        b"(4611686018427387904, 4)",
        b"(-1, 4)",
        b"True",
        b"PK\x03\x04",
    ),
    *(b"\x93NUMPY", b"\xff\xff\xff\xff", b"__import__('os')", b"(" * 300, b"\0" * 9),
]


@many
@given(data=changed_bytes([*NPY, *NPZ, *seeds("arrays")], HEADER))
@kept("arrays")
def test_arrays(tmp_path: Path, data: bytes) -> None:
    """No file of arrays runs code, or takes more memory than its size lets expect."""
    path = tmp_path / "rows.npz"
    path.write_bytes(data)
    for read in (read_npy, lambda path: read_npz(path, "x")):
        with at_most(8), contextlib.suppress(InputError):
            assert read(path).dtype != object


def _picture(kind: str, mode: str, **options: Any) -> bytes:
    file = BytesIO()
    pixels = np.arange(7 * 5 * 3, dtype=np.uint8).reshape(7, 5, 3)
    Image.fromarray(pixels).convert(mode).save(file, kind, **options)
    return file.getvalue()


PICTURES = [
    *(_picture(kind, "RGB") for kind in ("PNG", "JPEG", "TIFF", "BMP", "PPM", "GIF", "WEBP", "JPEG2000", "AVIF")),
    *(_picture("PNG", mode) for mode in ("1", "P", "LA", "RGBA")),
    *(_picture("TIFF", mode, compression=how) for mode, how in (("L", "tiff_lzw"), ("CMYK", "raw"), ("F", "raw"))),
    png_bytes(np.ones((3, 4, 1), np.uint8), 0, bits=2, clear=1),
    tiff_bytes(np.ones((3, 4, 5), np.uint8), ">", photometric=2, extra=[0, 0]),
]
MARKS = [
    b"IHDR",
    b"tRNS",
    b"IDAT",
    b"acTL",
    b"\xff\xd8",
    b"\xff\xda",
    b"II*\0",
    b"MM\0*",
    b"\xff" * 4,
    b"\0" * 8,
    b"P5 ",
    b"65535",
]


@many
@given(data=changed_bytes([*PICTURES, *seeds("pictures")], MARKS))
def test_pictures(tmp_path: Path, data: bytes) -> None:
    """A picture is read, or refused in one line."""
    (tmp_path / "x").write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, of what it finds damaged
        try:
            assert read_picture(tmp_path / "x", 2**20).pixels.nbytes <= 2**20
        except InputError as error:
            assert "\n" not in str(error)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Files of a classifier, of a model with a state, and of one that fans out."""
    folder = tmp_path_factory.mktemp("models")
    for name, make in (("a", sklearn_classifier), ("b", recurrent), ("c", positives)):
        make(folder / f"{name}.onnx")
    return [path.read_bytes() for path in sorted(folder.glob("*.onnx"))]


FIELDS = [
    b"\xff",
    b"\x0a\x01\xff",
    b"\x08\x07",
    b"\x12\x00",
    b"\xff" * 9 + b"\x01",
    b"com.acme",
    b"\0" * 8,
    b"location",
]


@many
@given(data=st.data())
def test_models(tmp_path: Path, models: list[bytes], data: st.DataObject) -> None:
    """An ONNX file becomes an operator of a draft, or is refused in one line."""
    kept_models = seeds("models")
    content = data.draw(st.sampled_from(kept_models) | changed_bytes([*models, *kept_models], FIELDS))
    (tmp_path / "m.onnx").write_bytes(content)
    try:
        assert wire(group_variants(read_models([tmp_path / "m.onnx"]))).operators
    except InputError as error:
        assert "\n" not in str(error)


@pytest.fixture(scope="module")
def counters(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file of counters with two rows."""
    path = tmp_path_factory.mktemp("counters") / "live"
    with LiveCounters(path, COLUMNS, 16) as live:
        log = ServingLog(live, "shop")
        log.received("jellybean://shop/client/ann")
        log.received("")
    return path.read_bytes()[:2000]


@many
@given(data=st.data())
def test_counters_of_the_ledger(tmp_path: Path, counters: bytes, data: st.DataObject) -> None:
    """After whatever a crash left, the file is read or moved away: the gateway starts, and counts."""
    path = tmp_path / "live"
    pieces = [
        b"\xff" * 8,
        b"\0" * 8,
        b'[["a"]]',
        b'["a"]',
        b"{}",
        b'["a","b","c"]',
        b"\x07\0\0\0\0\0\0\0",
        b"null",
        b"[1,2]",
    ]
    path.write_bytes(data.draw(changed_bytes([counters, *seeds("counters")], pieces)))
    with contextlib.suppress(CountersError), LiveCounters(path, COLUMNS, 16) as live:
        log = ServingLog(live, "shop")
        log.received("jellybean://shop/client/bob")
        requests = log.requests()
        assert all(isinstance(text, str) for key in requests for text in (key.workflow, key.client))
        assert json.dumps([list(counts) for counts in requests.values()])
    for other in tmp_path.iterdir():
        other.unlink()
