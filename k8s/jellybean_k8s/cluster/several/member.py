"""One of several clusters that a plan is deployed to, and the results of a step in all of them."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from jellybean_k8s.cluster.cluster import Cluster, UnreachableError
from jellybean_k8s.cluster.lock import DeployLock, LockedError
from jellybean_k8s.cluster.rollout import DeployOptions, DeployStoppedError
from jellybean_k8s.errors import DeployError

T = TypeVar("T")


class CancelledError(DeployStoppedError):
    """The step failed in another cluster, or was interrupted."""


@dataclass(eq=False)
class Member:
    """A cluster of a deployment. `until_s`: when waiting for it ends, by its clock. `is_gateway`: it has the gateway.

    `away_since_s`: None while it answers. `calls` is held by the thread that makes calls.
    """

    name: str
    cluster: Cluster
    lock: DeployLock
    options: DeployOptions
    is_gateway: bool
    until_s: float
    holds_lock: bool = False
    lost_lock: LockedError | None = None
    away_since_s: float | None = None
    calls: threading.Lock = field(default_factory=threading.Lock)

    @property
    def left_s(self) -> float:
        """Seconds until waiting for it ends."""
        return max(0.0, self.until_s - self.cluster.clock())

    @property
    def away_s(self) -> float:
        """Seconds for which it has not answered."""
        return 0.0 if self.away_since_s is None else self.cluster.clock() - self.away_since_s

    def absence(self, error: DeployError) -> UnreachableError:
        """The error of a call, with the words for how long the cluster has not answered, and why."""
        reason = reason_of(error)
        found = UnreachableError(f"{self.name} has not answered for {self.away_s:.0f} s ({reason})", reason)
        found.__cause__ = error
        return found


@dataclass
class StepResults(Generic[T]):
    """Results of a step by cluster. `away`: clusters that still do not answer; `errors`: other failures."""

    results: dict[str, T] = field(default_factory=dict)
    away: dict[str, UnreachableError] = field(default_factory=dict)
    errors: dict[str, DeployError] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """True if the step succeeded everywhere."""
        return not self.away and not self.errors

    @property
    def lines(self) -> list[str]:
        """A line or more for each cluster where the step failed."""
        return [*(f"{name}: {error}" for name, error in self.errors.items()), *map(str, self.away.values())]

    def require(self, consequence: str) -> dict[str, T]:
        """The results. DeployError if the step failed anywhere, UnreachableError if it only was not possible yet.

        `consequence`: what that means, in words.
        """
        self.raise_stop()
        if self.errors:
            raise DeployError("\n".join(self.lines)) from next(iter(self.errors.values()))
        if self.away:
            absences = "; ".join(map(str, self.away.values()))
            raise UnreachableError(f"{absences}: {consequence}") from next(iter(self.away.values()))
        return self.results

    def raise_stop(self) -> None:
        """LockedError or DeployStoppedError where nothing may be changed any more."""
        for name, error in self.errors.items():
            if isinstance(error, LockedError):
                raise LockedError(f"{name}: {error}") from error
            if isinstance(error, DeployStoppedError):
                raise error


def reason_of(error: DeployError) -> str:
    """Why a cluster does not answer, in a few words."""
    return error.reason if isinstance(error, UnreachableError) else str(error)
