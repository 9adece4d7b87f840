"""Leader election among operators by a Lease. A process that loses the Lease ends, as another one takes over."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from jellybean_k8s import Cluster, DeployError, DeployLock

LEASE = "jellybean-operator"
_RENEW_S = 5.0
_PATIENCE_S = 10.0  # longest wait for an unreachable API server, less than the lease's duration


class Leader:
    """Context manager that waits for the Lease and holds it. `lost(reason)` is called, from a thread, if it is lost."""

    def __init__(self, cluster: Cluster, *, lost: Callable[[str], None], say: Callable[[str], None]) -> None:
        patient = dataclasses.replace(cluster, patience_s=_PATIENCE_S)
        self._lock = DeployLock(patient, LEASE, wait_s=float("inf"), lease=LEASE, say=say)
        self._lost = lost
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Wait for the Lease, then renew it in a thread."""
        self._lock.__enter__()
        self._thread = threading.Thread(target=self._renew, name="leader", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the Lease."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()
        self._lock.__exit__(kind, error, trace)

    def _renew(self) -> None:
        while not self._end.wait(_RENEW_S):
            try:
                self._lock.renew()
            except DeployError as error:
                self._lost(str(error))
                return
