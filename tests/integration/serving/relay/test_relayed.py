"""A plan whose edge worker only dials out, by real processes: relay and tunnel are killed, and nothing is lost."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator

import numpy as np
import pytest

from jellybean.serving import RequestError, open_authority
from jellybean_agent import Identity, Role
from tests.support.relayed_run import EDGE, RelayedRun, relayed_run
from tests.support.tiny_models import chain
from tests.support.tls_run import WORKFLOW
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayedRun]:
    root = tmp_path_factory.mktemp("relayed")
    with relayed_run(root, chain(root), (EDGE, "cloud-1")) as found:
        yield found


class Requests(threading.Thread):
    """Sends requests one by one, each again until it is answered right, until `stop`."""

    def __init__(self, run: RelayedRun) -> None:
        super().__init__()
        self._run, self._is_stopping = run, threading.Event()
        self.sent = self.answered = 0
        self.wrong: list[object] = []

    def run(self) -> None:
        with self._run.client() as client:
            while not self._is_stopping.is_set() or self.answered < self.sent:
                self.sent += self.sent == self.answered
                x = np.full((1, 4), self.sent, np.float32)
                try:
                    found = client.infer({"x": x}, timeout_s=20.0)["triple"]
                except RequestError:
                    continue
                self.answered += 1
                if not np.array_equal(found, 6 * x):
                    self.wrong.append(found)

    def more(self, count: int = 5) -> None:
        """Wait until so many more are answered."""
        until = self.answered + count
        wait_until(lambda: self.answered >= until)

    def stop(self) -> int:
        self._is_stopping.set()
        self.join(60)
        assert self.wrong == []
        assert self.answered == self.sent
        return self.answered


@pytest.fixture
def requests(run: RelayedRun) -> Iterator[Requests]:
    found = Requests(run)
    found.start()
    yield found
    found.stop()


def metric(run: RelayedRun, process: str, name: str, labels: str = "") -> float:
    url = f"http://127.0.0.1:{run.metrics[process]}/metrics"
    with urllib.request.urlopen(url, timeout=5) as page:
        lines = page.read().decode().splitlines()
    start = f"jellybean_{process}_{name}{labels} "
    return sum(float(line.removeprefix(start)) for line in lines if line.startswith(start))


def test_requests_are_answered_through_the_relay_in_both_directions(run: RelayedRun, requests: Requests) -> None:
    requests.more(10)
    assert requests.stop() >= 10
    for process in ("relay", "tunnel"):
        assert run.is_healthy(process)
        for direction in ("to_worker", "from_worker"):
            labels = f'{{direction="{direction}",worker="{EDGE}"}}'
            assert metric(run, process, "connections_total", labels) >= 1
            assert metric(run, process, "bytes_total", labels) > 0
        wait_until(
            lambda name=process: metric(run, name, "offers", f'{{worker="{EDGE}"}}') == 4
        )  # used ones are replaced
        assert metric(run, process, "refusals_total") == 0


@pytest.mark.parametrize("name", ["relay", "tunnel"])
def test_nothing_is_lost_when_a_process_is_killed(run: RelayedRun, requests: Requests, name: str) -> None:
    requests.more()
    run.kill(name)
    if name == "relay":
        wait_until(lambda: not run.is_healthy("tunnel"))
    run.start(name)
    wait_until(lambda: run.is_healthy("tunnel"))
    requests.more()
    for process in ("relay", "tunnel"):
        assert "Traceback" not in run.log(process)


@pytest.mark.slow
def test_processes_that_are_terminated_drain(run: RelayedRun, requests: Requests) -> None:
    for name in ("tunnel", "relay"):
        requests.more()
        run.processes[name].terminate()
        assert run.processes[name].wait(20) == 0
        run.start(name)
        wait_until(lambda: run.is_healthy("tunnel"))
        requests.more()


@pytest.mark.slow
def test_a_tunnel_of_another_deployment_is_refused(run: RelayedRun) -> None:
    run.kill("tunnel")
    run.root.joinpath("tunnel.log").write_text("", encoding="utf-8")
    run.start_tunnel(run.certificate(Role.AGENT, EDGE), "green")
    wait_until(lambda: metric(run, "relay", "refusals_total", '{reason="deployment"}') >= 8)
    assert not run.is_healthy("tunnel")
    assert "deployment" not in run.log("tunnel")
    assert run.log("relay").count("its tunnel has --deployment 'green', this relay 'blue'") == 1
    run.kill("tunnel")
    run.start("tunnel")
    wait_until(lambda: run.is_healthy("tunnel"))


@pytest.mark.slow
def test_a_tunnel_of_another_authority_is_refused_until_it_gets_a_certificate(run: RelayedRun) -> None:
    folder = run.root / "foreign"
    other = open_authority(run.root / "other-ca")
    run.kill("tunnel")
    run.root.joinpath("tunnel.log").write_text("", encoding="utf-8")
    before = metric(run, "relay", "refusals_total", '{reason="handshake"}')
    other.equip(folder, Identity(WORKFLOW, Role.AGENT, EDGE))
    (folder / "ca.crt").write_bytes(run.authority.bundle)  # it believes the relay, but not the reverse
    run.start_tunnel(folder)
    wait_until(lambda: metric(run, "relay", "refusals_total", '{reason="handshake"}') >= before + 8)
    assert not run.is_healthy("tunnel")
    (line,) = [one for one in run.log("tunnel").splitlines() if "no offer at the relay" in one]
    assert line.endswith("unknown ca")
    assert run.log("relay").count("issuer certificate") == 1
    run.authority.equip(folder, Identity(WORKFLOW, Role.AGENT, EDGE))
    wait_until(lambda: run.is_healthy("tunnel"))
    sender = Requests(run)
    sender.start()
    sender.more()
    sender.stop()
