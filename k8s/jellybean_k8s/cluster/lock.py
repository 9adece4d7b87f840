"""A lock against concurrent deployments of a workflow: a Lease in its namespace, renewed while work proceeds."""

from __future__ import annotations

import datetime
import getpass
import os
import socket
import uuid
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from jellybean_k8s.cluster.cluster import Cluster, ClusterError
from jellybean_k8s.errors import DeployError
from jellybean_k8s.names import APP_PREFIX, FIELD_MANAGER

HOLD_S = 30  # seconds after its last renewal when the lease is free
_RENEW_S = 10.0
_POLL_S = 1.0
_RENEWALS = 2  # attempts: a write whose answer was lost is repeated by the client, and is a conflict with itself
_CONFLICT = 409
# Leases that others hold -> version, and when this process first saw it: kept from one lock to the next, as some wait
# for no other holder at all.
_seen: dict[tuple[str, str, str], tuple[str, float]] = {}


class LockedError(DeployError):
    """Another process holds the lock."""


class DeployLock:
    """Context manager that holds the lease; call `renew` regularly, an unrenewed lease is free after `HOLD_S`.

    The time is counted from when this process first saw the last renewal, as the clocks of others may be wrong.
    `wait_s`: longest seconds to wait for the current holder. `lease`: name of the Lease; default: from the deployment.
    """

    def __init__(
        self,
        cluster: Cluster,
        app: str,
        *,
        wait_s: float = HOLD_S + 5.0,
        lease: str | None = None,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._cluster, self._app, self._wait_s, self._now, self._say = cluster, app, wait_s, now, say
        self.name = lease or f"{app}-deploy"
        self.holder = f"{_user()}@{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._lease: dict[str, Any] = {}
        self._renewed_s = 0.0

    def __enter__(self) -> Self:
        """Acquire the lease."""
        self.acquire()
        return self

    def acquire(self) -> None:
        """Acquire the lease; may be repeated. LockedError if another keeps holding it."""
        until, reported = self._cluster.clock() + self._wait_s, False
        while not self._try_acquire():
            holder = self._lease["spec"].get("holderIdentity")
            if self._cluster.clock() > until:
                raise LockedError(
                    f"{holder} deploys {self._app} in {self._cluster.namespace} right now: wait for it and run it again"
                )
            if not reported:
                self._say(
                    f"waiting for {holder}, which deploys {self._app} right now, or has ended without giving its "
                    f"lock back ({HOLD_S} s)"
                )
                reported = True
            self._cluster.sleep(_POLL_S)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lease."""
        self.release()

    def release(self) -> None:
        """Release the lease, if it is still ours and the API server answers."""
        with suppress(DeployError):
            found = self._cluster.get("Lease", self.name)
            if found is not None and found["spec"].get("holderIdentity") == self.holder:
                self._cluster.replace(self._lease_body(found, holder=None))

    def delete(self) -> bool:
        """Delete the lease, if it is still ours; may be repeated. False if there was nothing to delete."""
        found = self._cluster.get("Lease", self.name)
        if found is None or found["spec"].get("holderIdentity") != self.holder:
            return False
        return self._cluster.delete("Lease", self.name, found["metadata"]["uid"])

    def renew(self) -> None:
        """Renew the lease, unless that was done recently. LockedError if another has taken it.

        A lease that has expired is ours as long as nobody else has taken it.
        """
        if self._cluster.clock() - self._renewed_s < _RENEW_S:
            return
        holder = None
        for _ in range(_RENEWALS):
            found = self._cluster.get("Lease", self.name)
            holder = found["spec"].get("holderIdentity") if found is not None else None
            if found is None or holder != self.holder:
                break
            if self._write(found):
                return
        raise LockedError(f"{holder or 'another process'} took over the deployment of {self._app}: this one stops")

    def _try_acquire(self) -> bool:
        found = self._cluster.get("Lease", self.name)
        if found is None:
            try:
                self._lease = self._cluster.create(self._lease_body(self._new(), holder=self.holder))
            except ClusterError as error:
                if error.status != _CONFLICT:
                    raise
                return self._try_acquire()
            self._renewed_s = self._cluster.clock()
            return True
        self._lease = found
        holder = found["spec"].get("holderIdentity")
        if holder and holder != self.holder and not self._is_expired(found):
            return False
        return self._write(found)

    def _write(self, found: dict[str, Any]) -> bool:
        try:
            self._lease = self._cluster.replace(self._lease_body(found, holder=self.holder))
        except ClusterError as error:
            if error.status != _CONFLICT:
                raise
            return False
        self._renewed_s = self._cluster.clock()
        return True

    def _is_expired(self, lease: dict[str, Any]) -> bool:
        if not lease["spec"].get("renewTime"):
            return True
        where = self._cluster.api.configuration.host, self._cluster.namespace, self.name
        now_s = self._cluster.clock()
        version, since_s = _seen.get(where, ("", 0.0))
        if version != lease["metadata"]["resourceVersion"]:
            _seen[where] = lease["metadata"]["resourceVersion"], now_s
            return False
        return now_s - since_s > float(lease["spec"].get("leaseDurationSeconds") or HOLD_S)

    def _new(self) -> dict[str, Any]:
        own = {
            f"{APP_PREFIX}/managed-by": FIELD_MANAGER,
            f"{APP_PREFIX}/instance": self._app,
            f"{APP_PREFIX}/name": "jellybean",
        }
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.name, "labels": own},
            "spec": {},
        }

    def _lease_body(self, lease: dict[str, Any], *, holder: str | None) -> dict[str, Any]:
        when = self._now().isoformat(timespec="microseconds").replace("+00:00", "Z")
        spec = {**lease["spec"], "leaseDurationSeconds": HOLD_S, "renewTime": when}
        if holder is None:
            spec = {key: value for key, value in spec.items() if key != "holderIdentity"}
        else:
            if lease["spec"].get("holderIdentity") != holder:
                spec["acquireTime"] = when
                spec["leaseTransitions"] = int(lease["spec"].get("leaseTransitions") or 0) + 1
            spec["holderIdentity"] = holder
        return {**lease, "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec}


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "somebody"
