"""The product files that a room's name selects."""

from __future__ import annotations

from pathlib import Path

PRODUCT = (
    "jellybean",
    "edge_agent/jellybean_agent",
    "solver/jellybean_solver",
    "k8s/jellybean_k8s",
    "protos/jellybean_protos",
)
_GENERATED = ("_pb2.py", "_pb2_grpc.py")
_SERVING = "jellybean/serving"
_GATEWAY = (
    "gateway",
    "spool",
    "http",
    "client.py",
    "endpoint.py",
    "errors.py",
    "gateway_arguments.py",
    "gateway_main.py",
)
_GATEWAY_STATE = (
    "ledger_messages.py",
    "outcomes.py",
    "remote_ledger.py",
    "replacement.py",
    "run_folder.py",
    "run_processes.py",
    "run_state.py",
)
_ROOMS = {
    "agent": ("edge_agent/jellybean_agent",),
    "gateway": tuple(f"{_SERVING}/{name}" for name in (*_GATEWAY, *_GATEWAY_STATE)),
    "solver": ("solver/jellybean_solver",),
    "k8s": ("k8s/jellybean_k8s", "jellybean/operator"),
    "protos": ("protos/jellybean_protos",),
    "all": PRODUCT,
}


def room_files(root: Path, rooms: list[str]) -> list[str]:
    """The product files of `rooms`, sorted, relative to `root`.

    A room is one of the names above, a folder of `jellybean/` by its name, or a path of the repository.
    """
    files: set[str] = set()
    for room in rooms:
        paths = _ROOMS.get(room) or ((f"jellybean/{room}",) if (root / "jellybean" / room).is_dir() else (room,))
        matches = [file for path in paths for file in _python_files(root / path)]
        if not matches:
            known = ", ".join(sorted(_ROOMS))
            raise SystemExit(
                f"no product file: --room {room}: name one of {known}, or a path such as {_SERVING}/gateway"
            )
        files |= {str(file.relative_to(root)) for file in matches}
    return sorted(files)


def _python_files(path: Path) -> list[Path]:
    candidates = [path] if path.suffix == ".py" and path.is_file() else list(path.rglob("*.py"))
    return [file for file in candidates if not file.name.endswith(_GENERATED)]
