"""The operator as a process of kopf's: it watches, leads, keeps its finalizer, and goes on where another ended."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from jellybean.errors import JellyBeanError
from jellybean.operator import resource_definition
from jellybean_k8s import CONDITION_READY, CRD_KIND, connect
from tests.k8s_resource import resource
from tests.k8s_target import REAL, Target, define
from tests.support.ports import free_port
from tests.support.skips import NotInstalled

pytest.importorskip("kopf", reason=NotInstalled.KOPF)


@contextlib.contextmanager
def running(target: Target, port: int | None = None, metrics: int | None = None) -> Iterator[list[str]]:
    """An operator in a thread; yields the errors that it ended with."""
    from jellybean.operator import run_operator

    stop, errors = threading.Event(), list[str]()

    def work() -> None:
        try:
            namespaces = [target.cluster.namespace]
            poll_s = 1.0 if REAL else 0.1
            run_operator(target.cluster, namespaces, poll_s=poll_s, stop=stop, health_port=port, metrics_port=metrics)
        except JellyBeanError as error:
            errors.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield errors
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()


def answers(port: int) -> int | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=10) as answer:
            return int(answer.status)
    except OSError:  # it does not listen yet, or not any more
        return None


def told(port: int) -> dict[str, float]:
    """The operator's metrics: series as written -> value."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {series: float(value) for series, _, value in (line.rpartition(" ") for line in lines)}


def is_ready(target: Target) -> bool:
    there = target.cluster.get(CRD_KIND, "digits") or {}
    conditions = (there.get("status") or {}).get("conditions") or ()
    return any(item["type"] == CONDITION_READY and item["status"] == "True" for item in conditions)


def delete(target: Target) -> None:
    there = target.cluster.get(CRD_KIND, "digits")
    assert there is not None
    target.cluster.delete(CRD_KIND, "digits", there["metadata"]["uid"])


def leads(target: Target) -> Any:
    lease = target.cluster.get("Lease", "jellybean-operator") or {}
    return (lease.get("spec") or {}).get("holderIdentity")


@pytest.mark.parametrize(
    "user", [{"token": "secret"}, {"client-certificate-data": "YQ==", "client-key-data": "Yg=="}, {}]
)
def test_kopf_talks_to_the_cluster_as_we_do(user: dict[str, str], tmp_path: Path) -> None:
    from jellybean.operator.handlers import connection

    there = {"server": "https://cluster.example:6443", "insecure-skip-tls-verify": True}
    context = {"cluster": "c", "user": "u", "namespace": "shop"}
    config = {"apiVersion": "v1", "kind": "Config", "current-context": "x"}
    config |= {"clusters": [{"name": "c", "cluster": there}], "users": [{"name": "u", "user": user}]}
    (tmp_path / "config").write_text(
        yaml.safe_dump(config | {"contexts": [{"name": "x", "context": context}]}), encoding="utf-8"
    )
    found = connection(connect(tmp_path / "config", None, None))
    assert (found.server, found.insecure) == ("https://cluster.example:6443", True)
    assert (found.scheme, found.token) == (("Bearer", "secret") if "token" in user else (None, None))
    certified = "client-key-data" in user
    assert (found.private_key_path is not None) == (found.certificate_path is not None) == certified


@pytest.mark.slow
def test_a_process_that_is_told_to_end_lets_another_lead(target: Target, kubeconfig: Path) -> None:
    define(target, resource_definition())
    target.drop("Lease", "jellybean-operator")
    command = [sys.executable, "-m", "jellybean", "operator", "run", "--kubeconfig", str(kubeconfig)]
    with subprocess.Popen(
        [*command, "--namespace", target.cluster.namespace], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        target.create(resource())
        target.eventually(lambda: is_ready(target))
        process.terminate()
        text, _ = process.communicate(timeout=60)
    assert process.returncode == 0, text
    assert "digits: Ready True" in text
    assert "Traceback" not in text
    assert leads(target) is None
    assert target.names("StatefulSet")  # what serves goes on


def test_a_resource_comes_and_goes_and_operators_follow_each_other(target: Target) -> None:
    define(target, resource_definition())
    target.drop("Lease", "jellybean-operator")
    page = free_port()
    with running(target, metrics=page) as errors:
        target.create(resource())
        target.eventually(lambda: is_ready(target))
        own = f'name="digits",namespace="{target.cluster.namespace}"'
        ready = f'jellybean_operator_resource_condition{{condition="Ready",{own}}}'
        target.eventually(lambda: told(page).get(ready) == 1.0)
        found = told(page)
        assert (
            found["jellybean_operator_leader"] == found['jellybean_operator_deployments_total{result="succeeded"}'] == 1
        )
        assert found['jellybean_operator_reconciliations_total{result="succeeded"}'] == 1
        assert found['jellybean_operator_reconciliations_total{result="failed"}'] == 0
        assert found["jellybean_operator_queue_seconds_count"] >= 1
        assert found[f"jellybean_operator_resource_stale{{{own}}}"] == 0
        there = target.cluster.get(CRD_KIND, "digits")
        assert there is not None
        assert there["metadata"]["finalizers"] == ["jellybean.dev/undeploy"]
        assert target.names("StatefulSet")
        first = leads(target)
        port = free_port()
        with running(target, port) as waiting:
            assert target.eventually(lambda: answers(port)) == 200  # who waits is well too
            assert leads(target) == first
            assert not waiting
            target.cluster.merge("Lease", "jellybean-operator", {"spec": {"holderIdentity": None}})
            target.eventually(lambda: errors)  # the first notices, and ends
            assert "leads no more" in errors[0]
            target.eventually(lambda: leads(target) not in (None, first))
    delete(target)  # while nobody is there
    assert (target.cluster.get(CRD_KIND, "digits") or {})["metadata"]["deletionTimestamp"]
    assert target.names("StatefulSet")
    with running(target):
        target.eventually(lambda: target.cluster.get(CRD_KIND, "digits") is None)
    assert not target.names("StatefulSet") | target.names("ConfigMap") | target.names("Secret")
    target.drop("Lease", "jellybean-operator")
