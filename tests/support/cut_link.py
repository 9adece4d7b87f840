"""A run over TCP whose link between edge (with the gateway) and cloud can be cut: no byte passes, nobody is told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from jellybean.serving import Client, RequestError
from jellybean_solver.model.plan_document import Document
from tests.support.ended_processes import end_processes
from tests.support.ports import free_port

Crosses = Callable[[str, str], bool]


class Link:
    """Passes bytes between ports while it is up; connections stay open while it is cut."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []
        self._up = asyncio.Event()
        self._up.set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def through(self, port: int) -> int:
        """A port that leads to another one, over the link."""

        async def serve() -> int:
            async def passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                writers = [writer]
                with contextlib.suppress(OSError):
                    await self._up.wait()
                    far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
                    writers.append(far_writer)
                    await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
                for each in writers:
                    each.close()

            server = await asyncio.start_server(passed, "127.0.0.1", 0)
            self._servers.append(server)
            return int(server.sockets[0].getsockname()[1])

        return asyncio.run_coroutine_threadsafe(serve(), self._loop).result(10)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._up.wait()
                writer.write(data)
                await writer.drain()
            writer.write_eof()

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(self._up.clear)

    def heal(self) -> None:
        self._loop.call_soon_threadsafe(self._up.set)

    def close(self) -> None:
        """Once both ends are gone."""

        async def end() -> None:
            for server in self._servers:
                server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.wait(others, timeout=5.0) if others else None

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


class Run:
    """Gateway and agents of a plan, started by hand; those called cloud-* are on the other side of `link`.

    `gateway`: a module to run instead of the gateway. `crosses` says, of two names, whether the link is between them.
    """

    def __init__(
        self, root: Path, document: Document, workers: tuple[str, ...], gateway: str | None, crosses: Crosses
    ) -> None:
        self.root, self.link = root, Link()
        ports = {name: free_port() for name in ("", *workers)}
        across = {name: self.link.through(port) for name, port in ports.items()}
        self.address = f"127.0.0.1:{ports['']}"
        (root / "plan.json").write_text(json.dumps(document), encoding="utf-8")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for name, port in ports.items():
            far = {other for other in ports if crosses(name, other)}
            seen = {other: f"127.0.0.1:{(across if other in far else ports)[other]}" for other in ports}
            seen[name] = f"127.0.0.1:{port}"
            peers = root / f"peers-{name}.json"
            peers.write_text(json.dumps(seen), encoding="utf-8")
            common = [f"--plan={root}/plan.json", f"--peers={peers}", f"--links={root}/links", "--insecure"]
            code, own = ["-m", gateway or "jellybean.serving.gateway_main"], [f"--spool={root}/spool.db"]
            if name:
                code = ["-m", "jellybean_agent"]
                own = [f"--worker={name}", f"--listen=127.0.0.1:{port}", f"--root={root}"]
            with (root / f"{name or 'gateway'}.log").open("wb") as log:
                command = [sys.executable, "-P", *code, *common, *own]
                self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def await_ready(self) -> None:
        end, last = time.monotonic() + 90.0, ""
        with Client(self.address) as client:
            while time.monotonic() < end:
                try:
                    status = client.status()
                    if status.state == "ready":
                        return
                    last = str(dict(status.reasons))
                except RequestError as error:
                    last = str(error)
                time.sleep(0.1)
        raise AssertionError(f"{last}: {[path.read_text(encoding='utf-8')[-300:] for path in self.root.glob('*.log')]}")


@contextlib.contextmanager
def run_over_a_link(
    root: Path,
    document: Document,
    workers: tuple[str, ...],
    *,
    gateway: str | None = None,
    crosses: Crosses = lambda one, other: one.startswith("cloud") != other.startswith("cloud"),
) -> Iterator[Run]:
    """A run that is ready; its processes end with it. `gateway`: a module to run instead of the gateway."""
    run = Run(root, document, workers, gateway, crosses)
    try:
        run.await_ready()
        yield run
    finally:
        run.link.heal()
        end_processes(run.processes.values())
        run.link.close()
