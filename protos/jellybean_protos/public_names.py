"""The public names of a package, loaded on first use (PEP 562). A missing module is named with its extra."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lazy_loader


def public_names(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package, by the stub beside its `__init__.py`."""
    load, names, listed = lazy_loader.attach_stub(package, file)

    def get(name: str) -> Any:
        try:
            return load(name)
        except ModuleNotFoundError as error:
            from jellybean_protos.extras import missing_module_text  # needed only here

            if text := missing_module_text(error):
                raise ModuleNotFoundError(f"{package}.{name}: {text}", name=error.name) from error
            raise

    return get, names, listed
