"""Runs a measuring process, and hands on its lines as they come."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

from jellybean_agent.errors import CrashError, ModelError, PermanentError
from jellybean_agent.measuring.job import Job

_MAX_LINE_BYTES = 2**24


async def measured_lines(job: Job, limit_s: float) -> AsyncIterator[dict[str, Any]]:
    """The measurements of a job, each once it is made. The process is killed if the caller stops.

    ModelError or PermanentError for a fault of the model, CrashError if its process dies, or a line takes longer than
    `limit_s`.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "jellybean_agent.measuring"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_MAX_LINE_BYTES,
    )
    if process.stdin is None or process.stdout is None:
        raise PermanentError("a measuring process has no pipes")
    try:
        with contextlib.suppress(ConnectionError):  # it has died, as the end of its lines says, too
            process.stdin.write(json.dumps(asdict(job)).encode())
            process.stdin.close()
            await process.stdin.wait_closed()
        while True:
            try:
                async with asyncio.timeout(limit_s):
                    line = await process.stdout.readline()
            except TimeoutError as error:
                raise CrashError(f"measuring took longer than {limit_s:g} s without a result, and was ended") from error
            if not line:
                break
            values: dict[str, Any] = json.loads(line)
            if "fault" in values:
                raise (ModelError if values["fault"] == "model" else PermanentError)(str(values["reason"]))
            yield values
        if code := await process.wait():
            reason = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
            raise CrashError(f"the model crashed: its measuring process {reason}")
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
