"""The script of the init container, run as pods run it: models over real HTTP, hashes, certificates."""

from __future__ import annotations

import functools
import hashlib
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import jellybean_k8s

SCRIPT = Path(jellybean_k8s.__file__).with_name("prepare.py")
MODEL = b"weights" * 1000
SHA256 = hashlib.sha256(MODEL).hexdigest()


class _Guarded(http.server.SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        if "/elsewhere/" in self.path:  # the store's own: 127.0.0.1 by another name, as another host
            port = self.server.server_address[1]
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{port}{self.path.replace('elsewhere', 'private')}")
            self.end_headers()
        elif "/moved/" in self.path:
            self.send_response(302)
            self.send_header("Location", self.path.replace("moved", "private"))
            self.end_headers()
        elif "/private/" in self.path and self.headers.get("Authorization") != "Bearer x":
            self.send_error(403)
        else:
            super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("store")
    for name in ("models", "private"):
        (folder / name).mkdir()
        (folder / name / "a b.onnx").write_bytes(MODEL)
    handler = functools.partial(_Guarded, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def prepare(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    secret = folder / "secret"
    secret.mkdir(exist_ok=True)
    for name in ("2.crt", "2.key", "ca.crt"):
        (secret / name).write_text(name, encoding="utf-8")
    tls = [f"--tls-from={secret}", f"--tls-to={folder / 'tls'}"]
    command = [sys.executable, "-P", str(SCRIPT), *tls, f"--root={folder / 'root'}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30, env=environment)


def test_models_are_fetched_verified_and_kept(tmp_path: Path, url: str) -> None:
    arguments = ("--tls-name=2", f"--url={url}/", f"{SHA256}:models/a b.onnx")
    for _ in range(2):
        done = prepare(tmp_path, *arguments)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "root/models/a b.onnx").read_bytes() == MODEL
    assert [path.name for path in (tmp_path / "root/models").iterdir()] == ["a b.onnx"]
    assert (tmp_path / "tls/tls.key").read_text(encoding="utf-8") == "2.key"
    assert (tmp_path / "tls/tls.key").is_symlink()


def test_another_content_is_refused_with_both_hashes(tmp_path: Path, url: str) -> None:
    done = prepare(tmp_path, "--tls-name=2", f"--url={url}", f"{'0' * 64}:models/a b.onnx")
    assert done.returncode == 1
    assert SHA256 in done.stderr
    assert "the plan names 0000" in done.stderr


def test_a_mounted_file_is_verified_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root/m.onnx").write_bytes(MODEL)
    assert prepare(tmp_path, "--tls-name=2", f"{SHA256}:m.onnx").returncode == 0
    done = prepare(tmp_path, "--tls-name=2", f"{SHA256}:other.onnx")
    assert done.returncode == 1
    assert "other.onnx" in done.stderr


def test_authorization_is_sent_and_a_refusal_is_told(tmp_path: Path, url: str) -> None:
    arguments = ("--tls-name=2", f"--url={url}", f"{SHA256}:private/a b.onnx")
    done = prepare(tmp_path, *arguments)
    assert done.returncode == 1
    assert "answers 403" in done.stderr
    assert "Traceback" not in done.stderr
    assert prepare(tmp_path, *arguments, AUTHORIZATION="Bearer x").returncode == 0


def test_a_missing_certificate_is_named(tmp_path: Path) -> None:
    done = prepare(tmp_path, "--tls-name=7")
    assert done.returncode == 1
    assert "certificate 7" in done.stderr


def test_the_secret_follows_a_redirect_on_its_own_host_only(tmp_path: Path, url: str) -> None:
    arguments = ("--tls-name=2", f"--url={url}")
    assert prepare(tmp_path, *arguments, f"{SHA256}:moved/a b.onnx", AUTHORIZATION="Bearer x").returncode == 0
    done = prepare(tmp_path, *arguments, f"{SHA256}:elsewhere/a b.onnx", AUTHORIZATION="Bearer x")
    assert done.returncode == 1
    assert "answers 403" in done.stderr  # it was asked without


def test_a_secret_goes_over_https_only(tmp_path: Path) -> None:
    arguments = ("--tls-name=2", "--url=http://store.invalid", f"{SHA256}:m.onnx")
    done = prepare(tmp_path, *arguments, AUTHORIZATION="Bearer x")
    assert done.returncode == 1
    assert "only https:// keeps secret" in done.stderr
