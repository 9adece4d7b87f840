"""The command `jellybean`, also as `python -m jellybean`."""

from __future__ import annotations

import os
import sys

_VERBOSITY = "GRPC_VERBOSITY"  # read when grpc is imported


def main() -> None:
    """Run the CLI. It is imported here, as Ctrl-C may come while that takes a second."""
    try:
        _import_grpc()
        from jellybean.cli import main as run_cli
    except KeyboardInterrupt:
        if "--json" in sys.argv:
            print('{"error": {"kind": "interrupted", "message": "interrupted", "problems": []}}')
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    run_cli()


def _import_grpc() -> None:
    """Import grpc without its lines on stderr, such as OpenSSL's errors: commands say in words why a call fails.

    Processes that the command starts keep these lines, in their logs.
    """
    if _VERBOSITY in os.environ:
        return
    os.environ[_VERBOSITY] = "NONE"
    try:
        import grpc  # noqa: F401
    finally:
        del os.environ[_VERBOSITY]


if __name__ == "__main__":
    main()
