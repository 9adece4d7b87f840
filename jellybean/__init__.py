"""What programs of users import: `from jellybean import Client`. Names are loaded on first use (PEP 562)."""

from __future__ import annotations

from typing import Any

from jellybean_protos.library_telemetry import turn_off_telemetry

turn_off_telemetry()  # before any room is imported: some load onnxruntime, torch or a user's modules

__all__ = ["Client", "__version__"]  # noqa: F822 -- made by __getattr__


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name == "Client":
        return _client()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _version() -> str:
    """The installed version; importlib.metadata would cost every process 20 ms."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("jellybean-serving")
    except PackageNotFoundError:
        raise AttributeError("JellyBean is not installed, so it has no version: pip install -e .") from None


def _client() -> Any:
    """The client; an ImportError names the extra that brings what it needs."""
    try:
        from jellybean.serving.client import Client
    except ModuleNotFoundError as error:
        from jellybean_protos.extras import missing_module_text

        if text := missing_module_text(error):
            raise ImportError(f"jellybean.Client: {text}") from error
        raise
    return Client
