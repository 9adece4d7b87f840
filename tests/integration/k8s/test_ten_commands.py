"""The commands that lead from an empty cluster to a measured deployment, as the documentation has them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.integration.k8s.kubelet_here import Kubelet
from tests.k8s_target import NEEDS_CONTAINERS, Target, mock_only
from tests.support.command_line import jellybean_process
from tests.support.paths import ROOT

pytestmark = [mock_only(NEEDS_CONTAINERS), pytest.mark.timeout(300)]
_SECTION = "## From an empty cluster to a measured deployment\n"


def documented() -> tuple[list[str], str]:
    """The commands of the section, and its kubernetes.yaml."""
    text = (ROOT / "docs/kubernetes.md").read_text(encoding="utf-8").split(_SECTION)[1].split("\n## ")[0]
    commands, settings = re.findall(r"(?:^    .*\n)+", text, re.MULTILINE)
    return [line.strip() for line in commands.splitlines()], re.sub(r"(?m)^    ", "", settings)


def label_nodes(target: Target, command: str) -> None:
    """What `kubectl label node NAME... KEY=VALUE` does, of nodes that are made here."""
    assert target.server is not None
    *names, label = command.partition(" label node ")[2].split()
    key, _, value = label.partition("=")
    for name in names:
        meta = {"name": name, "uid": name, "labels": {key: value}}
        target.server.api.store["nodes", "", name] = {"kind": "Node", "metadata": meta, "spec": {}, "status": {}}


def test_the_documented_commands_are_ten_of_known_programs() -> None:
    commands, settings = documented()
    parts = [shlex.split(part) for command in commands for part in command.split(" && ")]
    assert len(commands) == 10
    assert {words[0] for words in parts} <= {"docker", "jellybean", "kubectl", "printf"}, parts
    assert settings.startswith("kind: Kubernetes\n")


@pytest.mark.slow
def test_the_ten_commands_end_with_a_measurement(
    target: Target, kubeconfig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.idle = True  # the kubelet here reports pods
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    commands, settings = documented()
    server, printed = target.server, {}
    assert server is not None
    with Kubelet(target, tmp_path / "pods", {"registry.example/digits-models:1"}) as kubelet:
        for command in commands:
            for part in command.split(" && "):
                words = shlex.split(part)
                if words[0] == "docker" or " | docker " in part:
                    kubelet.images.add(words[words.index("-t") + 1])
                elif " label node " in part:
                    label_nodes(target, part)
                elif words[0] == "jellybean":
                    if words[1] == "certs":
                        (tmp_path / "my-digits/kubernetes.yaml").write_text(settings, encoding="utf-8")
                        kubelet.image_volumes["registry.example/digits-models:1"] = tmp_path / "my-digits"
                    if words[1] == "bench":
                        (gateway,) = (name for name in server.api.of("pods") if "-gateway-" in name)
                        endpoint = kubelet.endpoint({"app.kubernetes.io/component": "gateway"}, 8001)
                        assert endpoint is not None
                        server.api.endpoints[gateway, 8001] = endpoint
                    at = {"fleet": "x", "digits": target.cluster.namespace}
                    own = [
                        at.get(w, w) if words[i] in ("--context", "--namespace") else w for i, w in enumerate(words[1:])
                    ]
                    printed[words[1]] = jellybean_process(*own, status=(0, 4, 5)).stdout  # other tests run beside it
    assert list(printed) == ["init", "plan", "certs", "deploy", "bench", "report"]
    answered = re.search(r"(\d+) answered", printed["bench"])
    assert answered is not None and int(answered[1]) > 0, printed["bench"]
