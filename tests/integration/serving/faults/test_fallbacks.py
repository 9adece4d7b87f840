"""The link to the cloud is cut under a plan with a fallback for that: its shares of the routes are taken."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from jellybean.serving import Client
from jellybean_solver import from_document, to_document
from jellybean_solver.model.plan import Fallback
from tests.support.cut_link import run_over_a_link
from tests.support.tiny_models import make_plan, scale
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.alone]

WORKERS = ("edge-1", "edge-2", "cloud-1")
SHARES = (0.09, 0.01, 0.9)  # of the requests, by the worker that triples


def tripled(client: Client) -> Counter[str]:
    """Requests that each worker has tripled."""
    samples = (s for family in text_string_to_metric_families(client.metrics()) for s in family.samples)
    return Counter(
        {
            s.labels["worker"]: int(s.value)
            for s in samples
            if s.name == "jellybean_requests_total" and s.labels["operator"] == "triple"
        }
    )


def ask(client: Client, requests: int) -> Counter[str]:
    """Requests one after another; how many each worker has tripled of them."""
    before = tripled(client)
    for number in range(requests):
        answer = client.infer({"x": np.array([[number, 0, 0, 1]], np.float32)}, timeout_s=20.0)
        assert answer["triple"].tolist() == [[6 * number, 0, 0, 6]]
    return tripled(client) - before


def test_the_fallback_is_taken_while_the_link_is_cut(tmp_path: Path) -> None:
    operators = {
        "double": (["x"], scale(tmp_path / "models/double.onnx", 2.0)),
        "triple": (["double"], scale(tmp_path / "models/triple.onnx", 3.0)),
    }
    routes = [(share, {"double": "edge-1", "triple": worker}) for worker, share in zip(WORKERS, SHARES, strict=True)]
    plan = from_document(make_plan(tmp_path, operators, routes, sources={"x": "edge"}))
    fallbacks = (
        Fallback("edge-2", (1,), (0.2, 0.0, 0.8)),
        Fallback("the link edge -> cloud", (2,), (0.5, 0.5, 0.0)),
        Fallback("the site edge", (0, 1), ()),
    )
    document = to_document(replace(plan, fallbacks=fallbacks))
    with run_over_a_link(tmp_path, document, WORKERS) as run, Client(run.address) as client:
        assert ask(client, 100) == {"edge-1": 9, "edge-2": 1, "cloud-1": 90}
        run.link.cut()
        wait_until(lambda: client.status().workers["cloud-1"] == "gone")
        assert ask(client, 40) == {"edge-1": 20, "edge-2": 20}
        run.link.heal()
        wait_until(lambda: client.status().state == "ready")
        assert ask(client, 100) == {"edge-1": 9, "edge-2": 1, "cloud-1": 90}
