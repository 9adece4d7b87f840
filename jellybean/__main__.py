"""The command `jellybean`, also as `python -m jellybean`."""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, cast

from jellybean_protos.standard_streams import open_standard_streams

_VERBOSITY = "GRPC_VERBOSITY"  # read when grpc is imported


def main() -> None:
    """Run the CLI. Ctrl-C while it is imported ends it without a traceback, as Ctrl-C in a command does."""
    open_standard_streams()
    try:
        if _VERBOSITY not in os.environ:
            sys.meta_path.insert(0, _QuietGrpc)
        from jellybean.cli import main as run_cli

        run_cli()
    except KeyboardInterrupt:
        if "--json" in sys.argv:
            print('{"error": {"kind": "interrupted", "message": "interrupted", "problems": []}}')
        print("interrupted", file=sys.stderr)
        sys.exit(130)


class _QuietGrpc:
    """Imports grpc without its lines on stderr, such as OpenSSL's errors: commands say in words why a call fails.

    Processes that the command starts keep these lines, in their logs.
    """

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of grpc, with a loader that hides the messages; None for all other modules."""
        if name != "grpc":
            return None
        sys.meta_path.remove(cls)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = cast(Any, _QuietLoader(spec.loader))
        return spec


class _QuietLoader:
    """A module's loader under which the environment asks grpc for no messages; its base class is slow to import."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        os.environ[_VERBOSITY] = "NONE"
        try:
            self._loader.exec_module(module)
        finally:
            del os.environ[_VERBOSITY]


if __name__ == "__main__":
    main()
