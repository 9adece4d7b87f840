"""Several clusters that work at once, under the locks of all; one whose API server is away is tried again.

A step runs in a thread for each cluster. Another thread for each renews its lock while no step runs there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeVar

from jellybean_k8s.cluster.cluster import Cluster, is_unavailable
from jellybean_k8s.cluster.lock import DeployLock, LockedError
from jellybean_k8s.cluster.revisions import Inventory, read_inventory
from jellybean_k8s.cluster.rollout import DeployOptions, DeployStoppedError, Rollout
from jellybean_k8s.cluster.several.member import CancelledError, Member, StepResults, reason_of
from jellybean_k8s.errors import DeployError

T = TypeVar("T")

AWAY_S = 5.0  # seconds of failing calls until a cluster counts as away; well below the locks' HOLD_S
_RETRY_S = 1.0  # pause between attempts to reach a cluster that is away
_RENEW_S = 1.0  # pause between looks at whether a lock has to be renewed


class Members:
    """Context manager with the clusters of a deployment by name, the gateway's first; it releases their locks."""

    def __init__(self, clusters: Mapping[str, Cluster], app: str, options: DeployOptions) -> None:
        self.app, self.options = app, options
        self._display = threading.Lock()
        self._progress: dict[str, tuple[float, float]] = {}
        self._halt, self._ended, self._is_together = threading.Event(), threading.Event(), False
        self._by_name: dict[str, Member] = {}
        for name, cluster in clusters.items():
            self._by_name[name] = self._member(name, cluster, is_gateway=not self._by_name)
        self._pool = ThreadPoolExecutor(2 * len(clusters), thread_name_prefix="cluster")

    def _member(self, name: str, cluster: Cluster, *, is_gateway: bool) -> Member:
        def sleep(seconds: float) -> None:
            cluster.sleep(seconds)
            if self._ended.is_set():
                raise CancelledError("the deployment was interrupted")

        own = replace(cluster, patience_s=min(cluster.patience_s, AWAY_S), sleep=sleep)
        options = replace(
            self.options,
            say=lambda text: self.say(f"{name}: {text}"),
            progress=lambda done, total, label: self._advance(name, done, total, label),
        )
        lock = DeployLock(own, self.app, now=options.now, say=options.say)
        return Member(name, own, lock, options, is_gateway, own.clock() + options.timeout_s)

    def __enter__(self) -> Self:
        for member in self:
            self._pool.submit(self._keep_lock, member)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the locks."""
        self._end()
        for member in reversed(self._lock_order):
            if member.holds_lock:
                self._pool.submit(_release, member)
        self._pool.shutdown()

    def __iter__(self) -> Iterator[Member]:
        return iter(tuple(self._by_name.values()))

    def __getitem__(self, name: str) -> Member:
        return self._by_name[name]

    @property
    def gateway(self) -> Member:
        """The cluster of the gateway."""
        return next(member for member in self if member.is_gateway)

    @property
    def others(self) -> list[Member]:
        """All clusters but the gateway's."""
        return [member for member in self if not member.is_gateway]

    def leave_out(self, names: Iterable[str]) -> None:
        """Go on without these clusters, whose locks are not held."""
        for name in names:
            del self._by_name[name]

    def say(self, text: str) -> None:
        """Tell the user something, from any thread."""
        with self._display:
            self.options.say(text)

    def _advance(self, name: str, done: float, total: float, label: str) -> None:
        with self._display:
            self._progress[name] = done, total
            all_done, all_total = (sum(part) for part in zip(*self._progress.values(), strict=True))
            self.options.progress(all_done, all_total, f"{name}: {label}")

    def rollout(self, member: Member, inventory: Inventory) -> Rollout:
        """A rollout to one of the clusters, which stops when a step that all take together fails in another."""
        return Rollout(
            member.cluster,
            self.app,
            member.lock,
            member.options,
            inventory,
            interrupt=lambda: self._check_interrupt(member),
            until_s=member.until_s,
        )

    @property
    def _lock_order(self) -> list[Member]:
        """The same order for everybody, the gateway's cluster first, so that two deployments never wait in a circle."""
        return sorted(self, key=lambda member: (not member.is_gateway, member.name))

    def acquire_locks(self, consequence: str) -> None:
        """Acquire the locks of all clusters, one after another. LockedError if another process keeps one.

        UnreachableError if a cluster is away, with the words for its consequence.
        """
        for member in self._lock_order:
            self.run(_acquire, [member]).require(consequence)

    def read_inventories(self, consequence: str) -> dict[str, Inventory]:
        """The inventory of each cluster. UnreachableError as of `acquire_locks`."""
        return self.run(lambda member: read_inventory(member.cluster, self.app), together=True).require(consequence)

    def run(
        self,
        step: Callable[[Member], T],
        members: Iterable[Member] | None = None,
        *,
        patient: bool = True,
        together: bool = False,
    ) -> StepResults[T]:
        """Take a step in all of these clusters at once, by default in all.

        `patient`: a step is repeated while its cluster is away, until the deadline; it must allow that. `together`: a
        failure in one cluster ends the others' work; at the deadline all may still tell what they lack. No step is
        taken once another process has taken a lock.
        """
        self._halt, self._is_together = threading.Event(), together  # first: a lock lost after the check sets it
        lost = {member.name: member.lost_lock for member in self if member.lost_lock is not None}
        if lost:
            return StepResults(errors=dict(lost))
        chosen = list(self if members is None else members)
        futures = {self._pool.submit(self._attempt, member, step, patient): member for member in chosen}
        try:
            for future in as_completed(futures):
                error = future.exception()
                if error is not None and not isinstance(error, DeployError):
                    raise error
                if error is not None and not is_unavailable(error):
                    self._stop_others(error)
        except BaseException:
            self._end()
            raise
        outcome = StepResults[T]()
        for future, member in futures.items():
            error = future.exception()
            if error is None:
                outcome.results[member.name] = future.result()
            elif isinstance(error, DeployError) and is_unavailable(error):
                outcome.away[member.name] = member.absence(error)
            elif isinstance(error, DeployError) and not isinstance(error, CancelledError):
                outcome.errors[member.name] = error
        outcome.errors |= {member.name: member.lost_lock for member in self if member.lost_lock is not None}
        return outcome

    def _stop_others(self, error: DeployError) -> None:
        if self._is_together or isinstance(error, DeployStoppedError):
            self._halt.set()

    def _end(self) -> None:
        self._ended.set()
        self._halt.set()

    def _check_interrupt(self, member: Member) -> None:
        if self._halt.is_set() and (self._ended.is_set() or member.left_s > 0):
            raise CancelledError("the deployment failed in another cluster, or was interrupted")

    def _attempt(self, member: Member, step: Callable[[Member], T], patient: bool) -> T:
        """Take the step, again and again while the cluster is away."""
        while True:
            try:
                with member.calls:
                    self._probe(member)
                    return step(member)
            except DeployError as error:
                if not is_unavailable(error):
                    raise
                self._note_away(member, error, f": it is tried again for {member.left_s:.0f} s" if patient else "")
                if not patient or not member.left_s or self._halt.is_set():
                    raise
            self._halt.wait(min(_RETRY_S, member.left_s))

    def _keep_lock(self, member: Member) -> None:
        """Renew the lock whenever no step runs in the cluster, until all is over or another process has taken it."""
        while not self._ended.wait(_RENEW_S):
            if not member.calls.acquire(blocking=False):
                continue
            try:
                if member.holds_lock:
                    self._probe(member)
                    member.lock.renew()
            except LockedError as error:
                member.lost_lock = error
                self._stop_others(error)
                return
            except DeployError as error:
                if is_unavailable(error):
                    self._note_away(member, error)  # else the next step tells it
            finally:
                member.calls.release()

    def _probe(self, member: Member) -> None:
        """Ask a cluster that was away whether it is back, and whether its lock is still ours."""
        if member.away_since_s is None:
            return
        member.cluster.get("Lease", member.lock.name)
        self.say(f"{member.name} answers again, after {member.away_s:.0f} s")
        member.away_since_s = None
        if member.holds_lock:
            member.lock.renew()

    def _note_away(self, member: Member, error: DeployError, next_step: str = "") -> None:
        if member.away_since_s is None:
            member.away_since_s = member.cluster.clock() - member.cluster.patience_s
            self.say(f"{member.name} does not answer ({reason_of(error)}){next_step}")


def _acquire(member: Member) -> None:
    member.lock.acquire()
    member.holds_lock = True


def _release(member: Member) -> None:
    with member.calls:
        member.lock.release()
