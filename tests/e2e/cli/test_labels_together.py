"""Labels, accuracy, drift and cost of two workflows that one gateway serves, on the spot and from elsewhere."""

from __future__ import annotations

import json
import shutil
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jellybean.serving import Client, RequestError
from tests.support.command_line import jellybean
from tests.support.ports import free_port
from tests.support.served_scales import ADMIN
from tests.support.two_scales import FACTORS, make_two_scales
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

COUNT = 5  # requests of each workflow, with the same ids
PLACES = ("here", "there")


@dataclass(frozen=True)
class Served:
    """The project, an empty folder with the admin's certificate, and a folder of certificates by client."""

    project: Path
    elsewhere: Path
    port: int
    http_port: int

    def at(self, place: str) -> tuple[str, ...]:
        if place == "here":
            return (str(self.project),)
        return (str(self.elsewhere), "--gateway", f"127.0.0.1:{self.port}")

    def run(self, place: str, command: str, *options: str, status: int | tuple[int, ...] = 0) -> Any:
        return json.loads(jellybean(command, *self.at(place), *options, "--json", status=status).stdout)

    def client(self, name: str, workflow: str = "") -> Client:
        folder = self.project / ".jellybean/certs/client" / name
        return Client(f"127.0.0.1:{self.port}", tls=folder, workflow=workflow)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("together")
    found = Served(make_two_scales(folder / "two"), folder / "empty", free_port(), free_port())
    jellybean("plan", str(found.project))
    jellybean("certs", str(found.project), "--client", "shop/ann", "--client", "bob")
    shutil.copytree(found.project / ADMIN, found.elsewhere / ADMIN)
    tls = str(found.project / ".jellybean/certs/gateway")
    own = ("--port", str(found.port), "--http-port", str(found.http_port), "--tls", tls)
    jellybean("up", str(found.project), *own, "--detach")
    try:
        for name in FACTORS:
            with found.client("bob", name) as client:
                for number in range(COUNT):
                    client.infer({"x": np.full((1, 4), number, np.float32)}, request_id=f"order-{number}")
        wait_until(lambda: _answered(found.project) == dict.fromkeys(FACTORS, COUNT))
        yield found
    finally:
        jellybean("down", str(found.project))


def _answered(project: Path) -> Mapping[str, int]:
    lines = json.loads(jellybean("cost", str(project), "--by", "workflow", "--json").stdout)["lines"]
    return {line["workflow"]: line["answered"] for line in lines}


def _clients(project: Path) -> set[str]:
    lines = json.loads(jellybean("cost", str(project), "--by", "client", "--json").stdout)["lines"]
    return {line["client"] for line in lines}


def _label(factor: float, number: int) -> str:
    return json.dumps([factor * number] * 4)


def _refusal(*arguments: str, status: int = 1) -> str:
    return " ".join(jellybean(*arguments, status=status).stderr.replace("│", " ").split())


def test_labels_are_of_the_workflow_that_is_named(served: Served) -> None:
    """Both workflows have requests of these ids, whose answers differ."""
    for place, number in (("here", 0), ("there", 1), ("there", 2)):
        for name, factor in FACTORS.items():
            given = ("--workflow", name, "--id", f"order-{number}", "--label", _label(factor, number + (number == 2)))
            found = served.run(place, "label", *given)
            assert (found["labelled"], found["right"]) == (1, 0.0 if number == 2 else 1.0)
    one = ("--id", "order-3", "--label", "1")
    assert "several workflows (shop, yard): say which with --workflow" in _refusal(
        "label", *served.at("here"), *one, status=2
    )
    assert "serves shop, yard: say which workflow" in _refusal("label", *served.at("there"), *one, status=2)
    for place, words, status in (
        ("here", "--workflow barn: the project has no workflow 'barn'; it has shop, yard", 2),
        ("there", "no workflow 'barn'", 1),
    ):
        said = _refusal("label", *served.at(place), *one, "--workflow", "barn", status=status)
        assert words in said
    for place in PLACES:
        found = served.run(place, "accuracy")["workflows"]
        assert found.keys() == FACTORS.keys()
        for own in found.values():
            assert own["planned"] == 80.0
            assert [(line["all"], line["labels"]) for line in own["lines"]] == [
                (name, 3) for name in found if own is found[name]
            ]
            assert own["lines"][0]["accuracy"] == pytest.approx(200 / 3)
        assert served.run(place, "accuracy", "--workflow", "yard") == found["yard"]
        shown = jellybean("accuracy", *served.at(place)).stdout
        assert all(f"{name}: accuracy of what was served; planned 80.00 %" in shown for name in FACTORS)
        refused = _refusal("accuracy", *served.at(place), "--workflow", "barn", status=2)
        assert "no workflow 'barn'; it has shop, yard" in refused


def test_a_label_of_a_client_is_for_its_workflow_only(served: Served) -> None:
    with served.client("shop/ann") as ann:
        ann.infer({"x": np.full((1, 4), 2, np.float32)}, request_id="soon")
        assert ann.label({"soon": [12, 12, 12, 12]}) == {"soon": 1.0}
        ann.infer({"x": np.full((1, 4), 3, np.float32)}, request_id="soon-over-http")
    assert _posted(served, "shop/ann", "shop", {"id": "soon-over-http", "label": [18, 18, 18, 18]})["right"] == 1.0
    wait_until(lambda: {"bob", "shop/ann"} <= _clients(served.project))
    limited = pytest.raises(RequestError, match="the certificate is of workflow shop only, not of 'yard'")
    with served.client("shop/ann", "yard") as ann, limited:
        ann.label({"order-4": 1})
    with served.client("bob") as bob, pytest.raises(RequestError, match="say which workflow"):
        bob.label({"order-4": 1})
    with served.client("bob", "yard") as bob:
        bob.infer({"x": np.full((1, 4), 2, np.float32)}, request_id="over-http")
    assert _posted(served, "bob", "yard", {"id": "over-http", "label": [8, 8, 8, 8]})["right"] == 1.0
    for client, model, code in (("shop/ann", "yard", 403), ("bob", "barn", 404)):
        with pytest.raises(urllib.error.HTTPError) as refused:
            _posted(served, client, model, {"id": "order-4", "label": 1})
        assert refused.value.code == code
        assert json.loads(refused.value.read())["error"]


def _posted(served: Served, client: str, model: str, body: Any) -> Any:
    folder = served.project / ".jellybean/certs/client" / client
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    at = f"https://localhost:{served.http_port}/v2/models/{model}/labels"
    request = urllib.request.Request(at, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.loads(urllib.request.urlopen(request, context=context, timeout=30).read())


@pytest.mark.parametrize("place", PLACES)
def test_drift_is_that_of_each_workflow(served: Served, place: str) -> None:
    """A few requests came, where more were planned for an interval."""

    def drifted() -> set[str]:
        return {one["name"] for one in served.run(place, "report", "--drift", status=(0, 5))["drifted"]}

    wait_until(lambda: {f"{name}: rate of requests" for name in FACTORS} <= drifted())
    names = drifted()
    assert all(name.startswith(("shop: ", "yard: ")) for name in names)


@pytest.mark.parametrize("place", PLACES)
def test_what_was_served_costs_what_both_were_planned_to(served: Served, place: str) -> None:
    planned = json.loads((served.project / "plan.json").read_text(encoding="utf-8"))["cost"]["compute_usd_per_h"]
    found = served.run(place, "report", "--between", "1d", "2100-01-01")["served"]
    assert found["answered"] >= 2 * COUNT
    assert found["usd_per_h"] == pytest.approx(planned, rel=0.05)
    assert found["usd"] == pytest.approx(found["predicted"]["usd"], rel=0.05)
    assert found["accuracy"].keys() <= FACTORS.keys()
    own = served.run(place, "report", "--plan", "running")["served"]
    assert own["plan"]
    assert own["usd_per_h"] == pytest.approx(planned, rel=0.05)
    assert served.run(place, "report", "--between", "2d", "1d")["served"] is None


def test_bench_has_the_documents_of_both(served: Served) -> None:
    found = served.run("there", "bench", "--duration", "2")["workflows"]
    assert found.keys() == FACTORS.keys()
    assert all(own["failed"] == 0 for own in found.values())
    assert not (served.elsewhere / "workflows").exists()
