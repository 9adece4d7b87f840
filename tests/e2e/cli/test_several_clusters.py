"""certs, render, deploy, status, rollback, undeploy over two clusters, as a person runs them: two mock API servers."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from cryptography import x509

from jellybean.cli import run
from tests.api_server import RunningServer
from tests.k8s_clusters_check import cluster_complaints
from tests.k8s_real import RealCluster
from tests.k8s_target import Target, running_target, write_kubeconfig
from tests.support.paths import EXAMPLES
from tests.support.ready_pods import add_nodes, ready_pods

MADE_KINDS = ("StatefulSet", "Deployment", "Service", "ConfigMap", "Secret", "ServiceAccount", "NetworkPolicy", "Lease")
SETTINGS = """\
kind: Kubernetes
images: {agent: "registry.example/agent:1", gateway: "registry.example/gateway:1"}
models: {url: https://models.example/digits}
gateway: {tier: cloud}
clusters:
  near: {tiers: [edge]}
  far: {context: far-admin, namespace: hall, tiers: [cloud]}
relay: {address: "relay.example:7443"}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, planned, with certificates."""
    directory = tmp_path_factory.mktemp("projects") / "digits"
    shutil.copytree(EXAMPLES / "digits", directory, ignore=shutil.ignore_patterns(".jellybean", "plan.json"))
    (directory / "kubernetes.yaml").write_text(SETTINGS, encoding="utf-8")
    assert run(["plan", str(directory)]) == 0
    assert run(["certs", str(directory)]) == 0
    return directory


@pytest.fixture
def servers() -> Iterator[dict[str, RunningServer]]:
    """Mock API servers, as most tests here let one fail at a chosen moment for all of its clients."""
    with contextlib.ExitStack() as stack:
        found = {name: stack.enter_context(RunningServer()) for name in ("far-admin", "near")}
        add_nodes(found["near"], a="edge", b="edge")
        add_nodes(found["far-admin"], c="cloud")
        for server in found.values():
            stack.enter_context(ready_pods(server))
        yield found


@pytest.fixture
def flags(servers: dict[str, RunningServer], tmp_path: Path) -> list[str]:
    config = {"apiVersion": "v1", "kind": "Config", "current-context": "far-admin"}
    config |= {"clusters": [{"name": name, "cluster": {"server": one.url}} for name, one in servers.items()]}
    contexts = [{"name": name, "context": {"cluster": name, "user": "u", "namespace": "yard"}} for name in servers]
    config |= {"contexts": contexts, "users": [{"name": "u", "user": {}}]}
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config), encoding="utf-8")
    return ["--kubeconfig", str(tmp_path / "kubeconfig")]


def test_the_objects_of_each_cluster_are_printed_or_written(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {}
    for name in ("far", "near"):
        capsys.readouterr()
        assert run(["render", str(project), "--cluster", name]) == 0
        found[name] = list(yaml.safe_load_all(capsys.readouterr().out))
    assert cluster_complaints(found, "relay.example:7443") == []
    assert run(["render", str(project)]) == 2
    assert "give --cluster far or --cluster near" in capsys.readouterr().err
    assert run(["render", str(project), "--cluster", "fog"]) == 2
    assert "the clusters in kubernetes.yaml are far, near" in capsys.readouterr().err
    assert run(["render", str(project), "--kustomize", str(tmp_path / "base"), "--json"]) == 0
    written = json.loads(capsys.readouterr().out)["clusters"]
    assert {name: one["objects"] for name, one in written.items()} == {name: len(own) for name, own in found.items()}
    assert all((tmp_path / "base" / name / "kustomization.yaml").exists() for name in found)
    assert run(["render", str(project), "--resource"]) == 2
    assert re.search(r"clusters: an operator deploys to its own\s+cluster only", capsys.readouterr().err)


@pytest.fixture
def sites(tmp_path: Path, real_cluster: RealCluster | None) -> Iterator[dict[str, Target]]:
    """The clusters by their contexts; of a real one, two namespaces."""
    with (
        running_target(tmp_path / "far", real_cluster) as far,
        running_target(tmp_path / "near", real_cluster) as near,
    ):
        yield {"far-admin": far, "near": near}


def test_a_project_is_deployed_to_both_looked_at_rolled_back_and_taken_away(
    project: Path, sites: dict[str, Target], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    copy = tmp_path / "digits"
    shutil.copytree(project, copy)
    flags = ["--kubeconfig", str(write_kubeconfig(tmp_path / "kubeconfig", sites))]
    settings = SETTINGS.replace("namespace: hall, ", "")
    (copy / "kubernetes.yaml").write_text(settings, encoding="utf-8")
    hall, yard = (site.cluster.namespace for site in sites.values())

    def call(command: str, *more: str) -> tuple[int, str]:
        capsys.readouterr()
        code = run([command, str(copy), *flags, *more])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    code, text = call("deploy", "--dry-run")
    assert (code, text.count("+ StatefulSet"), "far:" in text, "near:" in text) == (1, 2, True, True)
    assert not any(site.names("StatefulSet") for site in sites.values())
    code, text = call("deploy")
    assert code == 0, text
    assert f"digits in far ({hall}): revision 1" in text
    assert f"digits in near ({yard}): revision 1" in text
    assert f"clients reach it at digits.{hall}.svc:8001 in far" in text
    told = f"agents in near dial relay.example:7443, which has to lead to Service digits-relay in far ({hall})"
    assert told in " ".join(text.split())
    assert all(name.endswith("-agents") for name in sites["near"].names("Service"))
    code, text = call("deploy")
    assert (code, text.count("already serves this plan")) == (0, 2)
    code, text = call("status", "--json")
    found = json.loads(text)
    assert (code, found["well"], list(found["clusters"])) == (0, True, ["far", "near"])
    (copy / "kubernetes.yaml").write_text(settings.replace("agent:1", "agent:2"), encoding="utf-8")
    code, text = call("deploy")
    assert (code, text.count("revision 2, ")) == (0, 2), text
    code, text = call("rollback")
    assert (code, text.count("revision 3, ")) == (0, 2), text
    code, text = call("status")
    assert (code, text.count("is healthy")) == (0, 2), text
    code, text = call("certs", "--renew")
    assert (code, "4 Secrets of digits in 2 clusters have new certificates" in text) == (0, True), text
    code, text = call("undeploy")
    assert (code, text.count("deleted from")) == (0, 2), text
    assert not any(site.names(kind) for site in sites.values() for kind in MADE_KINDS)


@pytest.mark.slow
def test_a_cluster_that_is_away_is_told_left_out_and_caught_up(
    project: Path, flags: list[str], servers: dict[str, RunningServer], capsys: pytest.CaptureFixture[str]
) -> None:
    servers["near"].api.fault = lambda method, path: 503
    assert run(["deploy", str(project), *flags, "--timeout", "1"]) == 1
    text = capsys.readouterr().err
    assert "near has not answered" in text
    assert "nothing was applied" in text
    assert run(["status", str(project), *flags]) == 1
    capsys.readouterr()
    assert run(["deploy", str(project), *flags, "--dry-run"]) == 1
    text = capsys.readouterr().out
    assert "+ StatefulSet" in text
    assert "near was not compared: a fault of the test" in text
    assert run(["deploy", str(project), *flags, "--skip-offline", "--no-wait"]) == 0
    printed = capsys.readouterr()
    assert "near is left out" in printed.err
    assert "digits in far (hall): revision 1" in printed.out
    assert run(["diff", str(project), "--cluster", *flags]) == 1
    assert "near was not compared: " in capsys.readouterr().out
    assert run(["deploy", str(project), *flags, "--dry-run", "--skip-offline"]) == 0
    printed = capsys.readouterr()
    assert "near is left out: it does not answer (a fault of the test)" in " ".join(printed.err.split())
    assert "nothing would change" in printed.out
    assert run(["status", str(project), *flags]) == 1
    assert "near does not answer" in capsys.readouterr().out
    servers["near"].api.fault = None
    assert run(["deploy", str(project), *flags]) == 0
    assert "digits in near (yard): revision 1" in capsys.readouterr().out
    assert run(["status", str(project), *flags]) == 0


@pytest.mark.slow
def test_certificates_are_renewed_where_a_cluster_answers_and_the_others_are_told(
    project: Path,
    flags: list[str],
    servers: dict[str, RunningServer],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    copy = tmp_path / "digits"
    shutil.copytree(project, copy)
    assert run(["deploy", str(copy), *flags]) == 0
    before = secrets_of(servers)
    servers["near"].api.fault = lambda method, path: 500
    capsys.readouterr()
    assert run(["certs", str(copy), "--renew", "--json", *flags]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["secrets_signed"], list(found["not_reached"])) == (True, ["near"])
    servers["near"].api.fault = None
    after = secrets_of(servers)
    assert {name for name, data in after.items() if data != before[name]} == {
        "digits-gateway-tls", "digits-relay-tls", "digits-tls-cloud"
    }  # fmt: skip
    servers["near"].api.fault = lambda method, path: 500
    assert run(["certs", str(copy), "--renew", "--new-ca", *flags]) == 1  # still signed by the one before
    learnt = secrets_of(servers)
    assert run(["certs", str(copy), "--renew", *flags]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "run the same command again when all clusters answer" in printed
    servers["near"].api.fault = None
    signed = secrets_of(servers)
    for name, key in (("digits-gateway-tls", "tls.crt"), ("digits-tls-cloud", "1.crt")):
        assert signed[name][key] == learnt[name][key]  # who is away would refuse the new authority's
    for signs in (False, True):
        capsys.readouterr()
        assert run(["certs", str(copy), "--renew", "--json", *flags]) == 0
        assert json.loads(capsys.readouterr().out)["secrets_signed"] == signs


@pytest.mark.slow
def test_another_namespace_of_a_cluster_that_runs_is_told_and_not_emptied(
    project: Path,
    flags: list[str],
    servers: dict[str, RunningServer],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    copy, file = tmp_path / "digits", tmp_path / "digits/kubernetes.yaml"
    add_nodes(servers["far-admin"], d="edge", e="edge")
    shutil.copytree(project, copy)
    assert run(["deploy", str(copy), *flags]) == 0
    moved = SETTINGS.replace("near: {tiers: [edge]}", "near: {namespace: other, tiers: [edge]}")
    emptied = SETTINGS.replace("near: {tiers: [edge]}", "near: {namespace: other}").replace("[cloud]", "[cloud, edge]")
    file.write_text(emptied, encoding="utf-8")
    capsys.readouterr()
    assert run(["deploy", str(copy), *flags]) == 1
    text = " ".join(capsys.readouterr().err.split())
    assert "near has nothing of digits in other, though revision 1 runs in near" in text
    file.write_text(moved, encoding="utf-8")
    assert run(["deploy", str(copy), *flags]) == 0
    text = " ".join(capsys.readouterr().err.split())
    assert "near has nothing of digits in other" in text
    assert "the pods in the old place still run: undeploy there" in text


def test_what_undeploy_has_deleted_is_told_when_a_cluster_is_away(
    project: Path, flags: list[str], servers: dict[str, RunningServer], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["deploy", str(project), *flags]) == 0
    servers["near"].api.fault = lambda method, path: 503
    assert run(["undeploy", str(project), *flags, "--timeout", "2"]) == 1
    text = " ".join(capsys.readouterr().err.split())
    assert re.search(r"far: \d+ objects deleted", text)
    assert "what is deployed there stays; run `jellybean undeploy` again" in text


def test_the_gateways_cluster_is_not_waited_for_when_others_may_be_left_out(
    project: Path, flags: list[str], servers: dict[str, RunningServer], capsys: pytest.CaptureFixture[str]
) -> None:
    servers["far-admin"].api.fault = lambda method, path: 503
    assert run(["deploy", str(project), *flags, "--skip-offline"]) == 1
    assert "the gateway is there, so it cannot be left out" in " ".join(capsys.readouterr().err.split())


def test_clusters_that_do_not_fit_the_plan_are_a_wrong_document(
    project: Path, flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "digits"
    shutil.copytree(project, copy)
    for right, wrong, words in (
        ("near: {tiers: [edge]}", "near: {tiers: [egde]}", "there is no tier egde"),
        ("relay: {address", "description: {address", "description"),
        ("gateway: {tier: cloud}", "gateway: {tier: cloud, replicas: 2}", "write replicas: 1"),
    ):
        (copy / "kubernetes.yaml").write_text(SETTINGS.replace(right, wrong), encoding="utf-8")
        assert run(["deploy", str(copy), *flags]) == 2
        text = capsys.readouterr().err
        assert words in " ".join(text.split())
        assert "kubernetes.yaml" in text


def secrets_of(servers: dict[str, RunningServer]) -> dict[str, dict[str, str]]:
    return {name: dict(one["data"]) for server in servers.values() for name, one in server.api.of("secrets").items()}


def test_the_gateways_certificate_has_the_names_in_its_clusters_namespace(project: Path) -> None:
    text = (project / ".jellybean/certs/gateway/tls.crt").read_bytes()
    names = x509.load_pem_x509_certificate(text).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "digits.hall.svc" in names.get_values_for_type(x509.DNSName)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--context", "near"), "--context near: kubernetes.yaml names the clusters far, near"),
        (("--namespace", "x"), "--namespace x: kubernetes.yaml names the clusters"),
    ],
)
def test_options_of_one_cluster_are_refused(
    project: Path, flags: list[str], options: tuple[str, str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("deploy", "status", "rollback", "undeploy", "certs"):
        assert run([command, str(project), *flags, *options]) == 2
        assert words in " ".join(capsys.readouterr().err.split())


def test_skipping_needs_several_clusters(
    project: Path, flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "digits"
    shutil.copytree(project, copy)
    text = SETTINGS.partition("clusters:")[0]
    (copy / "kubernetes.yaml").write_text(text, encoding="utf-8")
    for command in ("deploy", "rollback"):
        assert run([command, str(copy), *flags, "--skip-offline"]) == 2
        assert "--skip-offline is for several clusters" in capsys.readouterr().err


@pytest.mark.slow
def test_clusters_that_are_not_named_any_more_are_told(
    project: Path,
    flags: list[str],
    servers: dict[str, RunningServer],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    copy = tmp_path / "digits"
    shutil.copytree(project, copy)
    servers["near"].api.monitoring = True
    assert run(["deploy", str(copy), *flags]) == 0
    assert {kind for kind, _, _ in servers["near"].api.store} >= {"servicemonitors"}
    (copy / "kubernetes.yaml").write_text(SETTINGS.partition("clusters:")[0], encoding="utf-8")
    alone = [str(copy), *flags, "--namespace", "hall"]
    capsys.readouterr()
    words = "near has objects of revision 1, and kubernetes.yaml does not name it: write it"
    for command in ("deploy", "rollback", "undeploy"):
        assert run([command, *alone]) == 1
        assert words in " ".join(capsys.readouterr().err.split())
    assert run(["status", *alone]) == 1
    assert words in capsys.readouterr().out
    assert run(["status", *alone, "--json"]) == 1
    status = json.loads(capsys.readouterr().out)
    assert (status["well"], len(status["problems"])) == (False, 1)
    assert status["revisions"][0]["clusters"] == ["far", "near"]


@pytest.mark.slow
def test_a_rollback_leaves_out_what_is_away(
    project: Path,
    flags: list[str],
    servers: dict[str, RunningServer],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    copy = tmp_path / "digits"
    shutil.copytree(project, copy)
    assert run(["deploy", str(copy), *flags]) == 0
    (copy / "kubernetes.yaml").write_text(SETTINGS.replace("agent:1", "agent:2"), encoding="utf-8")
    assert run(["deploy", str(copy), *flags]) == 0
    servers["near"].api.fault = lambda method, path: 503
    assert run(["rollback", str(copy), *flags, "--skip-offline", "--no-wait"]) == 0
    assert "run `jellybean rollback --revision 3` when near is back" in " ".join(capsys.readouterr().err.split())
    servers["near"].api.fault = None
    assert run(["rollback", str(copy), *flags, "--revision", "3"]) == 0
    assert "digits in near (yard): revision 3" in capsys.readouterr().out
