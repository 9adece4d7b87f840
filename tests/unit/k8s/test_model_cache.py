"""The cache of models that pods of a node or a cluster share: processes of the init container's script, over HTTP."""

from __future__ import annotations

import errno
import hashlib
import http.server
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jellybean_k8s import prepare
from tests.unit.k8s.test_prepare import SCRIPT

FILES = {name: name.encode() * 1000 for name in ("a", "b", "c")}  # 1000 bytes each
SHA256 = {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}


class Store:
    """An HTTP server with the files. `asked`: names of those that were fetched."""

    def __init__(self) -> None:
        store, self.asked, self.wait_s = self, list[str](), 0.0

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.strip("/")
                store.asked.append(name)
                time.sleep(store.wait_s)
                self.send_response(200)
                self.send_header("Content-Length", str(len(FILES[name])))
                self.end_headers()
                self.wfile.write(FILES[name])

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def store() -> Iterator[Store]:
    found = Store()
    thread = threading.Thread(target=found.server.serve_forever)
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


class Node:
    """A node with a cache, on which pods start."""

    def __init__(self, folder: Path, store: Store, most_bytes: int = 10_000) -> None:
        self.folder, self._store, self.most_bytes = folder, store, most_bytes
        self.cache = folder / "cache"
        self.cache.mkdir()
        self._pods = 0

    def start(self, *names: str) -> subprocess.Popen[str]:
        self._pods += 1
        pod = self.folder / f"pod-{self._pods}"
        (pod / "secret").mkdir(parents=True)
        for name in ("2.crt", "2.key", "ca.crt"):
            (pod / "secret" / name).touch()
        arguments = [f"--tls-from={pod / 'secret'}", "--tls-name=2", f"--tls-to={pod / 'tls'}", f"--root={pod}"]
        arguments += [f"--url={self._store.url}", f"--cache={self.cache}", f"--cache-bytes={self.most_bytes}"]
        arguments += [f"{SHA256[name]}:{name}" for name in names]
        command = [sys.executable, "-P", str(SCRIPT), *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, *names: str) -> str:
        """A pod that must start; what it says of the cache."""
        return self.ended(self.start(*names), *names)

    def ended(self, process: subprocess.Popen[str], *names: str) -> str:
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
        for name in names:
            assert any(
                (pod / name).read_bytes() == FILES[name] for pod in self.folder.glob("pod-*") if (pod / name).exists()
            )
        return said

    @property
    def entries(self) -> set[str]:
        names = {digest: name for name, digest in SHA256.items()}
        return {names.get(path.name, path.name) for path in self.cache.iterdir() if not path.name.startswith("lock.")}


def test_pods_of_a_node_fetch_each_file_once(tmp_path: Path, store: Store) -> None:
    node = Node(tmp_path, store)
    store.wait_s = 0.3
    for process in [node.start("a", "b") for _ in range(3)]:
        assert node.ended(process, "a", "b") == ""
    assert sorted(store.asked) == ["a", "b"]
    assert node.run("b") == ""  # a pod that starts later
    assert sorted(store.asked) == ["a", "b"]
    assert node.entries == {"a", "b"}


def test_a_damaged_entry_is_fetched_again_and_replaced(tmp_path: Path, store: Store) -> None:
    node = Node(tmp_path, store)
    node.run("a")
    (node.cache / SHA256["a"]).write_bytes(b"other")
    assert "is damaged" in node.run("a")
    assert node.run("a") == ""
    assert store.asked == ["a", "a"]


def test_a_link_in_a_shared_folder_is_not_followed(tmp_path: Path, store: Store) -> None:
    node = Node(tmp_path, store)
    (node.cache / SHA256["a"]).symlink_to("/dev/zero")
    os.mkfifo(node.cache / SHA256["b"])
    assert "cannot be read" in node.run("a", "b")
    assert store.asked == ["a", "b"]
    assert node.run("a", "b") == ""  # both were replaced
    assert store.asked == ["a", "b"]


def test_what_was_used_least_recently_makes_room(tmp_path: Path, store: Store) -> None:
    node = Node(tmp_path, store, most_bytes=2500)
    node.run("a")
    node.run("b")
    os.utime(node.cache / SHA256["b"], (1e9, 2e9 - 2))
    os.utime(node.cache / SHA256["a"], (1e9, 1e9))
    node.run("a")  # which makes it the newer one
    os.utime(node.cache / SHA256["b"], (1e9, 1e9))
    left = node.cache / f"{SHA256['c']}.0000.part"
    left.write_bytes(b"x" * 5000)  # of a pod that was killed a long time ago
    os.utime(left, (1e9, 1e9))
    node.run("c")
    assert node.entries == {"a", "c"}
    node.most_bytes = 500
    assert "1000 bytes do not fit into 500" in node.run("b")
    assert store.asked == ["a", "b", "c", "b"]


def test_a_cache_that_cannot_be_written_costs_fetches_alone(tmp_path: Path, store: Store) -> None:
    node = Node(tmp_path, store)
    node.run("a")
    node.cache = tmp_path / "missing"
    assert "cannot be written" in node.run("a")
    node.cache = tmp_path / "pod-1" / "a"  # no folder
    assert "cannot be written" in node.run("a")
    assert store.asked == ["a"] * 3


def test_a_full_disk_keeps_nothing_of_a_file(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node(tmp_path, store)

    def full(_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(prepare.os, "fsync", full)
    cache = prepare.Cache(node.cache, node.most_bytes)
    cache.fetched(SHA256["a"], f"{store.url}/a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == FILES["a"]
    assert "is not kept: [Errno 28] No space left on device" in capsys.readouterr().err
    assert node.entries == set()


def test_a_read_only_cache_is_read(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path, store)
    node.run("a")

    def refused(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    opened = os.open
    monkeypatch.setattr(
        prepare.os, "open", lambda path, flags, *mode: refused() if flags & os.O_CREAT else opened(path, flags)
    )
    monkeypatch.setattr(prepare.os, "utime", refused)
    cache = prepare.Cache(node.cache, node.most_bytes)
    for name in ("a", "b"):
        cache.fetched(SHA256[name], f"{store.url}/{name}", tmp_path / name)
        assert (tmp_path / name).read_bytes() == FILES[name]
    assert store.asked == ["a", "b"]
    assert node.entries == {"a"}


def test_a_wrong_file_is_refused_and_not_kept(tmp_path: Path, store: Store) -> None:
    node = Node(tmp_path, store)
    store.wait_s = 0.0
    wanted = hashlib.sha256(b"what the plan names").hexdigest()
    cache = prepare.Cache(node.cache, node.most_bytes)
    with pytest.raises(ValueError, match="the plan names"):
        prepare.bring(tmp_path / "a", "a", wanted, store.url, cache)
    assert node.entries == set()


def test_a_pod_that_waits_too_long_for_another_fetches_by_itself(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node(tmp_path, store)
    monkeypatch.setattr(prepare, "_LOCK_S", 0.1)
    other = prepare.Cache(node.cache, node.most_bytes)
    with other._locked(SHA256["a"][:2]):
        prepare.Cache(node.cache, node.most_bytes).fetched(SHA256["a"], f"{store.url}/a", tmp_path / "a")
    assert "another pod has held a lock for 0.1 s" in capsys.readouterr().err
    assert (tmp_path / "a").read_bytes() == FILES["a"]
