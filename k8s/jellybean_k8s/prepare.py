"""Init container of agents and gateway: links certificates, fetches and verifies models. Standard library only.

Each argument is SHA256:PATH. With --url, missing files are fetched from URL/PATH; without, they must exist. Exits with
1, naming the file, unless every file has its hash. NAME.crt, NAME.key and ca.crt of a mounted Secret are symlinked as
tls.crt, tls.key and ca.crt, so that a renewed certificate takes effect.
"""

import argparse
import hashlib
import os
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

_CHUNK = 2**20
_TIMEOUT_S = 60.0


def main() -> int:
    """Exit status: 0 if every file exists with its hash."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tls-from", type=Path, required=True)
    parser.add_argument("--tls-name", required=True)
    parser.add_argument("--tls-to", type=Path, required=True)
    parser.add_argument("--root", type=Path, default=Path())
    parser.add_argument("--url")
    parser.add_argument("files", nargs="*", metavar="SHA256:PATH")
    given = parser.parse_args()
    try:
        link(given.tls_from, given.tls_name, given.tls_to)
    except OSError as error:
        print(f"certificate {given.tls_name}: {error}", file=sys.stderr)
        return 1
    for entry in given.files:
        wanted, _, path = entry.partition(":")
        try:
            bring(given.root / path, path, wanted, given.url)
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


def bring(file: Path, path: str, wanted: str, url: str | None) -> None:
    """Fetch the file unless it exists; ValueError if its hash differs from the plan."""
    if url is not None and not (file.exists() and digest(file) == wanted):
        file.parent.mkdir(parents=True, exist_ok=True)
        fetch(f"{url.rstrip('/')}/{urllib.parse.quote(path)}", file)
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
