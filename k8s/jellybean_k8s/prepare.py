"""Init container of agents and gateway: links certificates, fetches and verifies models. Standard library only.

Each argument is SHA256:PATH. With --url, missing files are fetched from URL/PATH; without, they must exist. Exits with
1, naming the file, unless every file has its hash. NAME.crt, NAME.key and ca.crt of a mounted Secret are symlinked as
tls.crt, tls.key and ca.crt, so that a renewed certificate takes effect.

With --cache, fetched files are kept there by their sha256, at most --cache-bytes, for all pods that mount the folder: a
file is fetched once, and verified at each use. A cache that is read-only, full or damaged costs fetches, no failure.
"""

import argparse
import contextlib
import fcntl
import hashlib
import os
import stat
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_CHUNK = 2**20
_TIMEOUT_S = 60.0
_LOCK_S = 900.0  # longest wait for another pod that fetches the same file; then it is fetched here too
_LOCK_POLL_S = 0.2
_LEFT_OVER_S = 24 * 3600.0  # age of an incomplete file that a pod left when it was killed


def main() -> int:
    """Exit status: 0 if every file exists with its hash."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tls-from", type=Path, required=True)
    parser.add_argument("--tls-name", required=True)
    parser.add_argument("--tls-to", type=Path, required=True)
    parser.add_argument("--root", type=Path, default=Path())
    parser.add_argument("--url")
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--cache-bytes", type=int, default=0)
    parser.add_argument("files", nargs="*", metavar="SHA256:PATH")
    given = parser.parse_args()
    try:
        link(given.tls_from, given.tls_name, given.tls_to)
    except OSError as error:
        print(f"certificate {given.tls_name}: {error}", file=sys.stderr)
        return 1
    cache = None if given.cache is None else Cache(given.cache, given.cache_bytes)
    for entry in given.files:
        wanted, _, path = entry.partition(":")
        try:
            bring(given.root / path, path, wanted, given.url, cache)
        except (OSError, ValueError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 1
        print(f"{path}: {wanted[:12]} verified")
    return 0


def link(secret: Path, name: str, folder: Path) -> None:
    """Link a certificate's files; OSError if the Secret has no such certificate."""
    folder.mkdir(parents=True, exist_ok=True)
    for source, target in ((f"{name}.crt", "tls.crt"), (f"{name}.key", "tls.key"), ("ca.crt", "ca.crt")):
        (secret / source).stat()
        (folder / target).unlink(missing_ok=True)
        (folder / target).symlink_to(secret / source)


class Cache:
    """A folder with files by sha256 that pods share; of all calls, only `fetched` raises, and only as `fetch` does."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder, self._most_bytes = folder, most_bytes

    def fetched(self, wanted: str, url: str, file: Path) -> None:
        """Bring the file from the cache, or fetch it, while other pods that want it wait, and keep it."""
        if self._take(wanted, file):
            return
        with self._locked(wanted[:2]) as is_locked:
            if is_locked and self._take(wanted, file):  # another pod fetched it meanwhile
                return
            fetch(url, file)
            if is_locked and digest(file) == wanted:
                self._keep(wanted, file)

    def _take(self, wanted: str, file: Path) -> bool:
        """Copy an entry; False without one. A damaged one is removed."""
        entry, part = self._folder / wanted, file.with_name(f"{file.name}.part")
        try:
            with _open_regular(entry) as source, part.open("wb") as target:
                found = _copy(source, target)
        except FileNotFoundError:
            return False
        except OSError as error:
            _say(f"cache: {wanted[:12]} cannot be read: {error}")
            return False
        if found != wanted:
            _say(f"cache: {wanted[:12]} is damaged (sha256 {found[:12]}): it is fetched again")
            with contextlib.suppress(OSError):
                entry.unlink()
            return False
        part.replace(file)
        with contextlib.suppress(OSError):
            os.utime(entry)  # the least recently used goes first
        return True

    def _keep(self, wanted: str, file: Path) -> None:
        """Store a verified file, whole or not at all."""
        size, part = file.stat().st_size, self._folder / f"{wanted}.{os.urandom(4).hex()}.part"
        try:
            with self._locked("room") as is_locked:
                if not is_locked or not self._make_room(size):
                    _say(f"cache: {wanted[:12]} is not kept: {size} bytes do not fit into {self._most_bytes}")
                    return
                with file.open("rb") as source, part.open("xb") as target:
                    _copy(source, target)
                    target.flush()
                    os.fsync(target.fileno())
                part.replace(self._folder / wanted)
        except OSError as error:
            _say(f"cache: {wanted[:12]} is not kept: {error}")
            with contextlib.suppress(OSError):
                part.unlink()

    def _make_room(self, size: int) -> bool:
        """Remove what was used least recently until `size` more bytes fit; False if they never will."""
        if size > self._most_bytes:
            return False
        entries = []
        for entry in self._folder.iterdir():
            with contextlib.suppress(OSError):
                known = entry.lstat()
                if not stat.S_ISREG(known.st_mode) or entry.name.startswith("lock."):
                    continue
                if entry.suffix == ".part" and time.time() - known.st_mtime > _LEFT_OVER_S:
                    entry.unlink()
                    continue
                entries.append((known.st_mtime, known.st_size, entry))
        used = sum(own for _, own, _ in entries)
        for _, own, entry in sorted(entries):
            if used + size <= self._most_bytes:
                break
            entry.unlink()
            used -= own
        return True

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[bool]:
        """Hold a lock that pods share; yields False where it cannot be had. The kernel frees it with its process."""
        try:
            number = os.open(self._folder / f"lock.{name}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o660)
        except OSError as error:
            _say(f"cache: cannot be written: {error}")
            yield False
            return
        try:
            yield _lock(number)
        finally:
            os.close(number)


def _lock(number: int) -> bool:
    until_s = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > until_s:
                _say(f"cache: another pod has held a lock for {_LOCK_S:g} s")
                return False
            time.sleep(_LOCK_POLL_S)
        except OSError as error:  # a file system without locks
            _say(f"cache: cannot be locked: {error}")
            return False


def _open_regular(path: Path) -> BinaryIO:
    """Open a file that is no link and no device: whoever shares the folder chose it."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(f"{path.name} is not a file")
    return os.fdopen(number, "rb")


def _copy(source: BinaryIO, target: BinaryIO) -> str:
    """Copy a stream; its sha256 (hex)."""
    found = hashlib.sha256()
    while chunk := source.read(_CHUNK):
        found.update(chunk)
        target.write(chunk)
    return found.hexdigest()


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def bring(file: Path, path: str, wanted: str, url: str | None, cache: Cache | None = None) -> None:
    """Fetch the file unless it exists; ValueError if its hash differs from the plan."""
    if url is not None and not (file.exists() and digest(file) == wanted):
        file.parent.mkdir(parents=True, exist_ok=True)
        source = f"{url.rstrip('/')}/{urllib.parse.quote(path)}"
        if cache is None:
            fetch(source, file)
        else:
            cache.fetched(wanted, source, file)
    found = digest(file)
    if found != wanted:
        raise ValueError(f"has sha256 {found}, the plan names {wanted}: it is another file, or was cut short")


def digest(file: Path) -> str:
    """sha256 (hex) of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, without the Authorization header if scheme, host or port change."""

    def redirect_request(  # type: ignore[no-untyped-def]
        self, req, fp, code, msg, headers, newurl
    ) -> urllib.request.Request | None:
        found = super().redirect_request(req, fp, code, msg, headers, newurl)
        if found is not None and _origin(found.full_url) != _origin(req.full_url):
            found.remove_header("Authorization")
        return found


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"https": 443, "http": 80}.get(parts.scheme)


def _is_private(url: str) -> bool:
    scheme, host, _ = _origin(url)
    return scheme == "https" or host in ("127.0.0.1", "localhost", "::1")


def fetch(url: str, file: Path) -> None:
    """Download a URL atomically. ValueError if a secret would be sent unencrypted."""
    headers = {"Authorization": os.environ["AUTHORIZATION"]} if os.environ.get("AUTHORIZATION") else {}
    if headers and not _is_private(url):
        raise ValueError(f"{url} is asked with a secret, which only https:// keeps secret")
    part = file.with_name(f"{file.name}.part")
    opener = urllib.request.build_opener(_Redirects)
    try:
        with (
            opener.open(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT_S) as answer,
            part.open("wb") as stream,
        ):
            while chunk := answer.read(_CHUNK):
                stream.write(chunk)
    except urllib.error.HTTPError as error:
        raise OSError(f"{url} answers {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise OSError(f"{url} cannot be fetched: {error.reason}") from error
    part.replace(file)


if __name__ == "__main__":
    sys.exit(main())
