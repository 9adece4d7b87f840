"""Busy time of workers and bytes over links during the counted window of a load test."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from statistics import fmean

from jellybean.bench.meters import Busy, Meters, Reading
from jellybean.serving.errors import ServingError
from jellybean_solver import GIB, Plan, link_ends

Progress = Callable[[float, float, str], None]


class Window:
    """Reads the meters at the start and the end of the counted window, and reports progress."""

    def __init__(self, meters: Meters, begin_s: float, end_s: float, progress: Progress) -> None:
        self._meters, self._begin_s, self._end_s, self._progress = meters, begin_s, end_s, progress
        self._readings: list[Reading] = []
        self.fault: ServingError | None = None

    async def tick(self, elapsed_s: float) -> None:
        """Called regularly during the load, and once after its end.

        `fault` is why the counters at the end could not be read: the requests that were sent are still awaited, as
        their outcomes are worth knowing.
        """
        label = "warm-up" if elapsed_s < self._begin_s else "offering load"
        self._progress(min(elapsed_s, self._end_s), self._end_s, label if elapsed_s < self._end_s else "settling")
        if len(self._readings) < 2 and elapsed_s >= (self._begin_s, self._end_s)[len(self._readings)]:
            await self._read()

    async def _read(self) -> None:
        if self.fault is not None:
            return
        try:
            self._readings.append(await self._meters.read())
        except ServingError as error:
            if not self._readings:
                raise
            self.fault = error

    def utilisation(self) -> dict[str, float]:
        """Worker of the plan -> busy fraction of the window, as the mean over sites; empty before the window's end."""
        if len(self._readings) < 2:
            return {}
        seconds = self._readings[1].at_s - self._readings[0].at_s
        found: dict[str, list[float]] = {}
        for name, (busy_s, _) in self._spent().items():
            planned = name.rpartition("/")[2]  # process `store-1/box-2` is the plan's worker box-2 at site store-1
            found.setdefault(planned, []).append(busy_s / seconds)
        return {name: fmean(shares) for name, shares in found.items()}

    def late(self) -> dict[str, float]:
        """Worker -> share of its busy time by which it was slower than its emulated device; without shares of 0."""
        return {name: late_s / busy_s for name, (busy_s, late_s) in self._spent().items() if late_s > 0 and busy_s > 0}

    def machine_cpu(self) -> float | None:
        """Share of this machine's CPU time that was used in the window, by any process; None with workers elsewhere."""
        if len(self._readings) < 2:
            return None
        began, ended = (reading.cpu for reading in self._readings)
        if began is None or ended is None or ended.all_s <= began.all_s:
            return None
        return (ended.used_s - began.used_s) / (ended.all_s - began.all_s)

    def _spent(self) -> dict[str, Busy]:
        """Worker -> its busy time in the window; workers that were restarted in the window are missing."""
        if len(self._readings) < 2:
            return {}
        began, ended = (reading.busy for reading in self._readings)
        return {
            name: Busy(ended[name].busy_s - before.busy_s, ended[name].late_s - before.late_s)
            for name, before in began.items()
            if name in ended and ended[name].busy_s >= before.busy_s  # a restart resets the counters
        }

    def cost_usd_per_h(self, plan: Plan) -> float | None:
        """Cost in USD/h: worker prices, plus traffic over links at the window's byte rates.

        None before the window's end, and if a counter of bytes restarted in the window: what was sent is then unknown.
        """
        if len(self._readings) < 2:
            return None
        begin, end = self._readings
        if any(end.bytes_sent.get(key, -1.0) < before for key, before in begin.bytes_sent.items()):
            return None
        sent_bytes: dict[tuple[str, str], float] = defaultdict(float)
        for key, count in end.bytes_sent.items():
            sent_bytes[key[1:]] += count - begin.bytes_sent.get(key, 0.0)
        cost = sum(worker.price_usd_per_h * plan.sites.get(worker.tier, 1) for worker in plan.workers)
        for link in plan.links:
            for tiers in link_ends(plan, link):
                per_s = sent_bytes[tiers] / (end.at_s - begin.at_s)
                cost += per_s * 3600 / GIB * link.price_usd_per_gib
        return cost
