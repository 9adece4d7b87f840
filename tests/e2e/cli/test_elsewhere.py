"""A plan that is served with TLS, asked from an empty folder that has only the admin's certificate."""

from __future__ import annotations

import json
import shutil
import ssl
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jellybean.serving import Client, RequestError
from tests.support.command_line import jellybean
from tests.support.ports import free_port
from tests.support.scales_project import WORKERS, make_scales_project
from tests.support.served_scales import ADMIN, IDS, ServedScales, served_scales
from tests.support.waiting import wait_until


class Served(ServedScales):
    """The project, and commands about it."""

    @property
    def at(self) -> tuple[str, ...]:
        return (str(self.elsewhere), "--gateway", f"127.0.0.1:{self.port}")

    def both(self, *command: str) -> tuple[Any, Any]:
        """What a command prints as JSON on the spot, and from elsewhere."""
        name, *more = command
        here, there = (jellybean(name, *where, *more, "--json").stdout for where in ((str(self.project),), self.at))
        return json.loads(here), json.loads(there)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served_scales(tmp_path_factory.mktemp("elsewhere")) as found:
        yield Served(found.project, found.elsewhere, found.port, found.http_port)


@pytest.mark.parametrize("by", ["day", "client", "operator", "worker", "link", "variant"])
def test_costs_are_those_on_the_spot(served: Served, by: str) -> None:
    here, there = served.both("cost", "--by", by, "--until", "2100-01-01")
    assert [line[by] for line in there["lines"]] == [line[by] for line in here["lines"]] != []
    after, _ = served.both("cost", "--by", by, "--until", "2100-01-01")
    assert here["usd"] <= there["usd"] <= after["usd"]  # an interval may have been written in between
    if by == "client":
        answered = {line["client"]: line["answered"] for line in there["lines"]}
        assert (answered["alice"], answered["bob"]) == (len(IDS), 2)


def test_history_has_what_was_served(served: Served) -> None:
    here, there = served.both("history")
    assert there == here
    assert [entry["what"] for entry in there] == ["planned", "up"]


def test_labels_accuracy_and_report(served: Served) -> None:
    """The plan triples the double: an answer is right if its label says so."""
    rows = ["id,label,client", *(f'{id_},"{[6.0 * n] * 4}",alice' for n, id_ in enumerate(IDS)), "nobody,1,alice"]
    before, _ = served.both("accuracy", "--by", "client")
    labels = served.elsewhere / "labels.csv"
    labels.write_text("\n".join(rows), encoding="utf-8")
    said = _refusal("label", *served.at, "--id", "order-0", "--label", "1", status=2)
    assert "several clients sent a request 'order-0': alice, bob" in said
    told = jellybean("label", *served.at, str(labels), status=2)
    assert f"{len(IDS)} labelled: {len(IDS)} right" in told.stderr
    assert f"labels.csv:{len(IDS) + 2}: no answer to a request 'nobody' is kept" in told.stderr
    jellybean("label", *served.at, "--id", "own", "--label", "[1, 1, 1, 1]")
    here, there = served.both("accuracy", "--by", "client")
    assert here == there
    labels_before, labels_after = _labels(before), _labels(there)
    assert labels_after["alice"] - labels_before["alice"] == Counter(labelled=len(IDS), right=len(IDS))
    assert labels_after["bob"] - labels_before["bob"] == Counter(labelled=1)
    assert there["planned"] == 80.0
    assert before["waiting_for_labels"] - there["waiting_for_labels"] == len(IDS) + 1
    here, there = served.both("report")
    assert there["served"].keys() == here["served"].keys()
    apart = {"served": None, "project": None, "advice": None}  # costs go on; commands name the folder
    assert {**there, **apart} == {**here, **apart}
    assert there["project"] == str(served.elsewhere)
    assert there["served"]["answered"] >= len(IDS) + 2
    assert {line["name"] for line in there["served"]["clients"]} >= {"alice", "bob"}


def test_a_client_labels_its_own_requests_only_and_learns_nothing_of_costs(served: Served) -> None:
    as_bob = (*served.at, "--tls", str(served.client("bob")))
    for command in ("cost", "history", "accuracy"):
        assert "client bob may not call" in _refusal(command, *as_bob)
    jellybean("label", *as_bob, "--id", "order-0", "--label", "[0, 0, 0, 0]")
    said = _refusal("label", *as_bob, "--id", "order-1", "--label", "[6, 6, 6, 6]", status=2)
    assert "no answer to a request 'order-1' is kept" in said
    said = _refusal("label", *as_bob, "--id", "order-1", "--label", "1", "--client", "alice")
    assert "client bob may label its own requests, not those of 'alice'" in said


def test_a_label_over_grpc_and_https_may_follow_the_answer_at_once(served: Served) -> None:
    with Client(f"127.0.0.1:{served.port}", tls=served.client("carol")) as client:
        for number in range(3):
            client.infer({"x": np.full((1, 4), number, np.float32)}, request_id=f"soon-{number}")
        assert client.label({"soon-0": [0, 0, 0, 0], "soon-1": [7, 7, 7, 7]}) == {"soon-0": 1.0, "soon-1": 0.0}
        with pytest.raises(RequestError, match="'soon-0' has its label already"):
            client.label({"soon-0": 1})
    found = _posted(
        served, "carol", "scales", {"labels": [{"id": "soon-2", "label": [12, 12, 12, 12]}, {"id": "x", "label": 1}]}
    )
    assert (found["labelled"], found["right"]) == (1, 1.0)
    assert found["outcomes"][0] == {"id": "soon-2", "verdict": 1.0}
    assert "no answer to a request 'x' is kept" in found["outcomes"][1]["problem"]
    for name, body, status, words in (
        ("scales", {"id": "soon-2"}, 400, "labels[0]: an object with id and label is meant"),
        ("scales", {"id": "a", "label": {"b": 1}}, 400, "a number, a list of numbers, or text"),
        ("scales", {"id": "a" * 300, "label": 1}, 400, "its id has 300 bytes, and may have 256"),
        ("scales", {"labels": [{"id": "a", "label": 1}] * 1001}, 400, "1001 labels in one call: at most 1000"),
        ("scales", {"id": "order-1", "label": 1, "client": "bob"}, 403, "not those of 'bob'"),
        ("other", {"id": "a", "label": 1}, 404, "other"),
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            _posted(served, "carol", name, body)
        assert refused.value.code == status
        assert words in json.loads(refused.value.read())["error"]


def test_top_and_infer(served: Served) -> None:
    here, there = served.both("top")
    assert (there["workflow"], there["state"], there["plan"]) == (here["workflow"], "ready", here["plan"])
    assert [row["worker"] for row in there["workers"]] == [row["worker"] for row in here["workers"]]
    here, there = served.both("infer", "--input", "x=float32:[1, 2, 3, 4]")
    assert here == there == {"triple": [[6, 12, 18, 24]]}


def test_drift_is_seen_from_elsewhere(served: Served) -> None:
    """Eight requests came, where 200 were planned for an interval."""
    places = (str(served.project),), served.at
    here, there = (json.loads(jellybean("report", *at, "--drift", "--json", status=5).stdout) for at in places)
    assert there["plan"] == here["plan"]
    assert "rate of requests" in {one["name"] for one in there["drifted"]}
    assert [one["name"] for one in there["drifted"]] == [one["name"] for one in here["drifted"]]
    assert there["figures"] == here["figures"] > 1


def test_bench_measures_with_the_held_out_data_of_the_gateway(served: Served, tmp_path: Path) -> None:
    folder = shutil.copytree(served.elsewhere, tmp_path / "empty")  # the measurement is recorded there
    at = (str(folder), *served.at[1:])
    command = ("bench", *at, "--duration", "1.5", "--json")
    there = json.loads(jellybean(*command, status=(0, 4, 5)).stdout)  # other tests run beside it
    assert there["offered"] == 30  # at the planned rate, 20/s
    assert there["completed"] > 0
    assert not (folder / "workflow.yaml").exists()
    what = [entry["what"] for entry in json.loads(jellybean("history", *at, "--json").stdout)]
    assert what == ["planned", "up", "measured"]
    as_bob = (*at, "--tls", str(served.client("bob")))
    assert "client bob may not call" in _refusal("bench", *as_bob)


def test_wrong_arguments_are_told_in_words(served: Served, tmp_path: Path) -> None:
    said = _refusal("cost", *served.at, "--ledger", "ledger.db", status=2)
    assert "--ledger names a database, --gateway and --context whom to ask" in said
    said = _refusal("cost", *served.at, "--context", "fleet", status=2)
    assert "give one of them" in said
    assert "--tls belongs to --gateway" in _refusal("history", str(served.elsewhere), "--tls", "admin", status=2)
    said = _refusal("cost", str(tmp_path), *served.at[1:], status=2)
    assert "copy the folder .jellybean/certs/admin/admin from the gateway's project" in said
    said = _refusal("cost", str(served.elsewhere), "--gateway", f"127.0.0.1:{free_port()}")
    assert "nothing listens" in said or "refused" in said
    jellybean("cost", *served.at, "--by", "nothing", status=2)


def test_a_gateway_whose_boxes_have_not_joined_is_asked_too(tmp_path: Path) -> None:
    """Workers cost from the moment that their plan is served, whether or not they are there."""
    project, elsewhere = make_scales_project(tmp_path / "scales"), tmp_path / "empty"
    ports = {name: free_port() for name in ("", "clients", *WORKERS)}
    peers = {name: f"127.0.0.1:{ports[name]}" for name in ("", *WORKERS)}
    (project / "peers.json").write_text(json.dumps(peers), encoding="utf-8")
    jellybean("plan", str(project))
    jellybean("certs", str(project))
    shutil.copytree(project / ADMIN, elsewhere / ADMIN)
    own = ("--peers", str(project / "peers.json"), "--port", str(ports["clients"]), "--detach")
    jellybean("gateway", str(project), *own)
    try:
        at = (str(elsewhere), "--gateway", f"127.0.0.1:{ports['clients']}")
        wait_until(lambda: '"up"' in jellybean("history", *at, "--json").stdout)
        assert "up" in [entry["what"] for entry in json.loads(jellybean("history", *at, "--json").stdout)]
        assert json.loads(jellybean("cost", *at, "--json").stdout)["usd"] >= 0
        assert "no labels yet; 0 answers wait" in jellybean("accuracy", *at).stderr
        assert "requests are refused until a route has all its workers" in _refusal("bench", *at)
    finally:
        jellybean("down", str(project))


def _labels(accuracy: Any) -> defaultdict[str, Counter[str]]:
    """By client the number of labelled answers, and of right ones."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for line in accuracy["lines"]:
        right = round(line["labels"] * line["accuracy"] / 100)
        found[line["client"]] = Counter(labelled=line["labels"], right=right)
    return found


def _refusal(*arguments: str, status: int = 1) -> str:
    return " ".join(jellybean(*arguments, status=status).stderr.replace("│", " ").split())


def _posted(served: Served, client: str, model: str, body: Any) -> Any:
    folder = served.client(client)
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    at = f"https://localhost:{served.http_port}/v2/models/{model}/labels"
    request = urllib.request.Request(at, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.loads(urllib.request.urlopen(request, context=context, timeout=30).read())
