"""Plans, serves and improves ML workflows over edge and cloud."""

from __future__ import annotations


def __getattr__(name: str) -> str:
    """`__version__`, read on first use (PEP 562): importlib.metadata would cost every process 20 ms."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("jellybean-serving")
    except PackageNotFoundError:
        raise AttributeError("JellyBean is not installed, so it has no version: pip install -e .") from None
