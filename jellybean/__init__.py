"""What programs of users import: `from jellybean import Client`. Names are loaded on first use (PEP 562)."""

from __future__ import annotations

from typing import Any

from jellybean_protos.lazy_surface import lazy_surface

__all__, _load = lazy_surface(__name__, {"serving.client": ("Client",)})  # the stub beside this file has the same names


def __getattr__(name: str) -> Any:
    try:
        return _load(name)
    except ModuleNotFoundError as error:
        from jellybean_protos.extras import missing_module_text

        text = missing_module_text(error)
        if not text:
            raise
        raise ImportError(f"jellybean.{name}: {text}") from error
