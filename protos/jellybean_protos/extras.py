"""Which extra of the distribution brings a module: what a command says when a module is not installed.

The extras only add, so any of these modules may be absent. Errors of other imports, by other code or of
modules that are not in the table, are raised unchanged.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from urllib.parse import unquote, urlsplit

DISTRIBUTION = "jellybean-serving"
PACKAGES = frozenset({"jellybean", "jellybean_solver", "jellybean_agent", "jellybean_k8s", "jellybean_protos"})
# Modules that the extra itself names, not those of the extras that it includes, and those of their dependencies that
# this project imports.
MODULES_OF_EXTRAS = {
    "agent": ("numpy", "prometheus_client", "grpc_health", "grpc_reflection", "cryptography", "onnxruntime"),
    "plan": (
        *(
            "pulp",
            "highspy",
            "pydantic",
            "ruamel",
            "yaml",
            "typer",
            "rich",
            "onnx",
            "PIL",
            "psutil",
            "sqlalchemy",
            "jinja2",
        ),
        *("matplotlib", "pydantic_core", "annotated_types", "markupsafe"),
    ),
    "ledger-postgres": ("psycopg",),
    "http": ("aiohttp",),
    "k8s": ("kubernetes", "urllib3"),
    "operator": ("kopf",),
    "otel": ("opentelemetry",),
    "train": ("torch", "safetensors", "tensorboard"),
    "lora": ("peft",),
    "examples": ("sklearn",),
    "ocr": ("rapidocr", "rapidocr_onnxruntime", "cv2", "pyclipper"),
}
_EXTRA_OF = {module: extra for extra, modules in MODULES_OF_EXTRAS.items() for module in modules}


def missing_module_text(error: ModuleNotFoundError, extras: Iterable[str] = ()) -> str:
    """A sentence about a module that an extra brings, with what to type; empty if no extra is the reason.

    `extras`: others that the command needs as well, so that one installation is enough.
    """
    module = (error.name or "").partition(".")[0]
    extra = _EXTRA_OF.get(module)
    if extra is None or _importer(error.__traceback__).partition(".")[0] not in PACKAGES:
        return ""
    return f"{module} is not installed; the extra `{extra}` brings it: {install_command(extra, *extras)}"


def install_command(*extras: str) -> str:
    """The command that adds extras to this installation: from an index, or from the place where it came from."""
    names = ",".join(dict.fromkeys(extras))
    return f"pip install {_requirement(names)}"


def _requirement(extras: str) -> str:
    """The requirement for pip, quoted for a shell, by the origin that an installation notes (PEP 610)."""
    import importlib.metadata  # only where something is missing, as it takes longer than this module

    try:
        origin = json.loads(importlib.metadata.distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
    except importlib.metadata.PackageNotFoundError:
        origin = {}
    url, named = str(origin.get("url", "")), f"{DISTRIBUTION}[{extras}]"
    parts = urlsplit(url)
    place = Path(unquote(parts.path))
    if parts.scheme == "file":
        editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
        return f"{editable}{shlex.quote(f'{place}[{extras}]')}" if place.exists() else shlex.quote(named)
    version = origin.get("vcs_info")
    source = f"{version['vcs']}+{url}@{version['commit_id']}" if version else url
    return shlex.quote(f"{named} @ {source}" if source else named)


def _importer(trace: TracebackType | None) -> str:
    """The module whose import failed: the innermost frame that is none of the import system."""
    importer = ""
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__", ""))
        if name.partition(".")[0] != "importlib":
            importer = name
        trace = trace.tb_next
    return importer
