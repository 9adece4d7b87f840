"""Control groups of Linux that limit how much CPU time processes get (CFS bandwidth, cgroup v1 or v2)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.skips import Absent

PERIOD_US = 5_000  # short against a run, so that every run meets the quota
_V1, _V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


@contextlib.contextmanager
def cpu_quota(name: str, share: float) -> Iterator[Path]:
    """A new group whose processes get `share` of one CPU together; yields the file that takes their ids.

    Skips the test where groups cannot be made. Processes that are left go back to the parent group.
    """
    root = _V1 if (_V1 / "cpu.cfs_quota_us").exists() or (_V1 / "cgroup.procs").exists() else _V2
    group = root / f"jellybean-test-{os.getpid()}-{name}"
    try:
        group.mkdir()
        if root is _V1:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US), encoding="ascii")
            (group / "cpu.cfs_quota_us").write_text(str(round(share * PERIOD_US)), encoding="ascii")
        else:
            (group / "cpu.max").write_text(f"{round(share * PERIOD_US)} {PERIOD_US}", encoding="ascii")
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"{Absent.CPU_QUOTA}: {error}")
    try:
        yield group / "cgroup.procs"
    finally:
        for pid in (group / "cgroup.procs").read_text(encoding="ascii").split():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                (root / "cgroup.procs").write_text(pid, encoding="ascii")
        group.rmdir()
