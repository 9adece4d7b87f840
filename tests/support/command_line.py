"""Runs the command line as a process of its own."""

from __future__ import annotations

import subprocess
import sys


def jellybean(*arguments: str, status: int = 0, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run `jellybean ARGUMENTS`; it must exit with `status` and print no traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "jellybean", *arguments], capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done
