"""The pipes of emulated links: arithmetic with given times, and two processes that share one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jellybean_agent import EmulatedLinks
from jellybean_agent.brain.plan_view import LinkView

LINKS = [LinkView("edge", "hub", 1000.0, 0.5), LinkView("edge", "cloud", None, 0.2)]


def test_a_pipe_is_first_in_first_out_then_latency(tmp_path: Path) -> None:
    with EmulatedLinks(LINKS, tmp_path / "links") as links:
        assert links.reserve("edge", "hub", 1000, now=10.0) == pytest.approx(11.5)
        assert links.reserve("edge", "hub", 500, now=10.0) == pytest.approx(12.0)  # waits for the first
        assert links.reserve("edge", "hub", 500, now=20.0) == pytest.approx(21.0)  # the pipe was free again
        assert links.reserve("edge", "cloud", 10**9, now=10.0) == pytest.approx(10.2)  # unlimited
        assert links.reserve("hub", "hub", 10**9, now=10.0) == 10.0
        assert links.bytes_sent() == {("edge", "hub"): 2000.0, ("edge", "cloud"): 10.0**9}


def test_processes_share_the_pipe(tmp_path: Path) -> None:
    """200 reservations of a second each by four processes at one time: none overlaps another."""
    code = (
        "import sys; from pathlib import Path; from jellybean_agent.worker.emulated_links import EmulatedLinks\n"
        "from jellybean_agent.brain.plan_view import LinkView\n"
        "links = EmulatedLinks([LinkView('a', 'b', 1.0, 0.0)], Path(sys.argv[1])).open()\n"
        "print(*[links.reserve('a', 'b', 1, now=100.0) for _ in range(50)]); links.close()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "links")]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    times = sorted(float(word) for child in children for word in child.communicate(timeout=60)[0].split())
    assert times == [101.0 + index for index in range(200)]


def test_links_that_are_not_open() -> None:
    link = LinkView("edge", "cloud", 100.0, 0.5)
    links = EmulatedLinks([link], None)
    assert links.reserve("edge", "edge", 10, 5.0) == links.reserve("cloud", "edge", 10, 5.0) == 5.0
    with pytest.raises(ValueError, match="the links are not open"):
        links.reserve("edge", "cloud", 10, 5.0)
    with pytest.raises(ValueError, match="the links are not open"):
        links.bytes_sent()
    with links:
        assert links.bytes_sent() == {("edge", "cloud"): 0.0}
    links.close()
