"""What a well-behaved client beside an attack notices, and how much memory a process takes meanwhile."""

from __future__ import annotations

import contextlib
import select
import time
from pathlib import Path

from benchmarks.overhead.load import Connect, LoadError

RATE_PER_S = 20


def paced(connect: Connect, seconds: float) -> list[float]:
    """The times of the answers to requests at the rate; those without an answer within 5 s are left out."""
    took: list[float] = []
    connection = connect()
    from_s = time.perf_counter()
    for number in range(round(RATE_PER_S * seconds)):
        due_s = from_s + number / RATE_PER_S
        time.sleep(max(0.0, due_s - time.perf_counter()))
        began_s = time.perf_counter()
        try:
            connection.start()
            while not connection.receive():
                connection.flush()
                wants = [connection.socket] if connection.is_sending else []
                if not any(select.select([connection.socket], wants, [], 5.0)):
                    raise LoadError("no answer")
            took.append(time.perf_counter() - began_s)
        except (OSError, LoadError):
            with contextlib.suppress(OSError):
                connection = connect()
    connection.socket.close()
    return took


def await_answer(connect: Connect) -> None:
    """Wait until a server answers. LoadError if it does not in two minutes."""
    until_s = time.monotonic() + 120.0
    while time.monotonic() < until_s:
        with contextlib.suppress(OSError):
            if paced(connect, 1.0 / RATE_PER_S):
                return
        time.sleep(0.2)
    raise LoadError("the gateway does not serve")


def percentile(times: list[float], share: float) -> float:
    return sorted(times)[int(share * len(times))] if times else float("nan")


def resident_mib(pid: int) -> float:
    """The memory of a process now."""
    return _memory_mib(pid, "VmRSS")


def forget_peak(pid: int) -> None:
    """Count the most memory of a process anew."""
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")


def peak_mib(pid: int) -> float:
    """The most memory of a process since then."""
    return _memory_mib(pid, "VmHWM")


def _memory_mib(pid: int, key: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:")) / 1024
