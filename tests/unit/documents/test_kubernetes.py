"""kubernetes.yaml: an image of agents for the CPU, or one for each execution provider; the ledger of gateways."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jellybean.documents import load_kubernetes, load_settings
from jellybean.errors import DocumentError
from jellybean_k8s import PodSettings, ServiceSettings


def written(folder: Path, agent: str) -> Path:
    text = f"kind: Kubernetes\nimages: {{agent: {agent}, gateway: g:1}}\nmodels: {{claim: models}}\n"
    (folder / "kubernetes.yaml").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("text", "images"),
    [
        ("a:1", {"cpu": "a:1"}),
        ("{cpu: a:1, cuda: b:1}", {"cpu": "a:1", "cuda": "b:1"}),
        ("{XnnpackExecutionProvider: c:1}", {"XnnpackExecutionProvider": "c:1"}),
    ],
)
def test_images_are_read_by_provider_and_written_in_their_short_form(
    tmp_path: Path, text: str, images: dict[str, str]
) -> None:
    assert load_settings(written(tmp_path, text)).agent_images == images
    document = load_kubernetes(tmp_path)
    short, long = (document.model_dump(context={"long": long})["images"]["agent"] for long in (False, True))
    assert (short, long) == ("a:1" if images == {"cpu": "a:1"} else images, images)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{gpu: a:1}", "images.agent.*'gpu' is no device; write cpu, cuda, "),
        ("{'cuda:1': a:1}", "'cuda:1' has a number, but all devices of a provider have one image"),
        ("{CUDAExecutionProvider: a:1}", "'CUDAExecutionProvider' is called cuda"),
        ("{cuda: 'a 1'}", "images.agent.cuda: 'a 1' does not name an image"),
        ("{}", "images.agent: is empty"),
        ("[a]", "images.agent"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(DocumentError, match=problem):
        load_kubernetes(written(tmp_path, text))


def test_the_ledger_of_a_gateway_is_a_database(tmp_path: Path) -> None:
    path = written(tmp_path, "a:1") / "kubernetes.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text + "gateway: {ledger: {url: postgresql+psycopg://me@db/x, secret: own}}\n", encoding="utf-8")
    database = load_settings(tmp_path).gateway_ledger
    assert database is not None
    assert (database.url, database.secret) == ("postgresql+psycopg://me@db/x", "own")
    path.write_text(text + "gateway: {ledger: {url: ledger.db}}\n", encoding="utf-8")
    with pytest.raises(DocumentError, match=r"gateway\.ledger\.url: the ledger of pods is a database.*not ledger\.db"):
        load_settings(tmp_path)


@pytest.mark.parametrize("url", ["https://models.example:99999/x", "https://:443/x", "models.example/x"])
def test_a_url_of_models_can_be_fetched_from(tmp_path: Path, url: str) -> None:
    path = written(tmp_path, "a:1") / "kubernetes.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("claim: models", f"url: {url}"), encoding="utf-8")
    with pytest.raises(DocumentError, match=r"models\.url: .*(is not a URL|has no)"):
        load_settings(tmp_path)


PODS = """\
pods:
  cpu_limit: 2
  priority: serving
  labels: {team: vision}
  annotations: {example.com/owner: vision team}
  tolerations: [{key: dedicated, value: ml, effect: NoSchedule}]
  env: {HTTPS_PROXY: "http://proxy:3128"}
  runtime_class: gvisor
  patch: {spec: {dnsPolicy: Default, affinity: null}}
pools:
  t4: {cpu: 4, cpu_limit: 4, tolerations: [{key: spot, operator: Exists, effect: NoExecute, tolerationSeconds: 60}]}
gateway: {priority: first, service: {type: LoadBalancer, annotations: {example.com/internal: "true"}}}
"""


def test_settings_of_pods_are_read_for_all_and_for_a_component(tmp_path: Path) -> None:
    path = written(tmp_path, "a:1") / "kubernetes.yaml"
    path.write_text(path.read_text(encoding="utf-8") + PODS, encoding="utf-8")
    found = load_settings(tmp_path)
    assert found.pods == PodSettings(
        cpu_limit=2.0,
        priority="serving",
        labels={"team": "vision"},
        annotations={"example.com/owner": "vision team"},
        tolerations=({"key": "dedicated", "operator": "Equal", "value": "ml", "effect": "NoSchedule"},),
        env={"HTTPS_PROXY": "http://proxy:3128"},
        runtime_class="gvisor",
        patch={"spec": {"dnsPolicy": "Default", "affinity": None}},  # null removes
    )
    assert found.of_pool("t4").pods.tolerations == (
        {"key": "spot", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60},
    )
    assert (found.of_pool("t4").pods.cpu_limit, found.gateway_pods) == (4.0, PodSettings(priority="first"))
    assert found.gateway_service == ServiceSettings("LoadBalancer", {"example.com/internal": "true"})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("pods: {cpu_limit: 0}", r"pods\.cpu_limit: must be above 0"),
        ("pools: {t4: {cpu: 4, cpu_limit: 2}}", r"pools\.t4: cpu_limit 2 is below the request, cpu 4"),
        ("pods: {cpu_limit: 2}\npools: {t4: {cpu: 4}}", r"pools\.t4: cpu 4 is above pods\.cpu_limit, 2"),
        ("pods: {cpu_limit: 0.5}", r"gateway: cpu 1 is above pods\.cpu_limit, 0\.5"),
        ("pods: {priority: High Priority}", r"pods\.priority: 'High Priority' is not a name of a Kubernetes object"),
        (f"pods: {{priority: {'a' * 254}}}", r"pods\.priority"),
        ("gateway: {runtime_class: gVisor}", r"gateway\.runtime_class: 'gVisor' is not a name"),
        ("pods: {labels: {'a b': c}}", r"pods\.labels\.a b: 'a b' is not a Kubernetes label"),
        ("pods: {labels: {a: 'b c'}}", r"pods\.labels\.a: 'b c' is not a value of a Kubernetes label"),
        ("pods: {labels: {a: 1}}", r"pods\.labels\.a: the number 1 is not text; quote it: '1'"),
        ("pods: {labels: {jellybean.dev/plan: x}}", r"jellybean\.dev/plan is set by JellyBean; remove it"),
        ("pools: {t4: {labels: {app.kubernetes.io/name: x}}}", r"pools\.t4\.labels.*is set by JellyBean"),
        ("pods: {annotations: {jellybean.dev/config: x}}", r"pods\.annotations.*is set by JellyBean"),
        ("pods: {env: {WORKER_NUMBER: '1'}}", r"pods\.env\.WORKER_NUMBER: WORKER_NUMBER is set by JellyBean"),
        ("pods: {env: {1A: x}}", r"pods\.env\.1A: '1A' is not a name of an environment variable"),
        ("pods: {env: {A: 1}}", r"pods\.env\.A: the number 1 is not text"),
        ("pods: {tolerations: [{value: x}]}", r"pods\.tolerations\.0: a toleration without a key"),
        ("pods: {tolerations: [{key: a, operator: Exists, value: b}]}", r"tolerations\.0: operator Exists takes no"),
        (
            "pods: {tolerations: [{key: a, tolerationSeconds: 5}]}",
            r"tolerations\.0: tolerationSeconds is for NoExecute",
        ),
        (f"pods: {{env: {{A: {'x' * 5000}}}}}", r"pods\.env\.A: must have at most 4096 characters"),
        ("pods: {tolerations: [{key: a, effect: Never}]}", r"tolerations\.0\.effect: 'Never' is not one of"),
        ("pods: {patch: {template: {}}}", r"pods\.patch: template: is not part of a pod template"),
        ("gateway: {patch: {metadata: {name: x}}}", r"gateway\.patch: metadata\.name: sets name their pods"),
        ("pools: {t4: {patch: {spec: {hostname: x}}}}", r"pools\.t4\.patch: spec\.hostname: is a name by which agents"),
        ("pods: {patch: {spec: {a: .nan}}}", r"pods\.patch"),
        ("pods: {patch: [a]}", r"pods\.patch: a list is not a map"),
        ("gateway: {service: {type: Ingress}}", r"gateway\.service\.type: 'Ingress' is not one of ClusterIP"),
        ("gateway: {service: {annotations: {a: 1}}}", r"gateway\.service\.annotations\.a: the number 1 is not text"),
        ("gateway: {replicas: 0}", r"gateway\.replicas: must be at least 1"),
        ("gateway: {replicas: 17}", r"gateway\.replicas: must be at most 16"),
        ("gateway: {replicas: two}", r"gateway\.replicas"),
        ("gateway: {spool: My_Claim}", r"gateway\.spool: 'My_Claim' is not a name of a Kubernetes object"),
        ("pools: {t4: {nodes: {a: 'x y'}}}", r"pools\.t4\.nodes\.a: 'x y' is not a value of a Kubernetes label"),
        ("pods: {priorities: x}", r"pods\.priorities: unknown key 'priorities'; did you mean 'priority'\?"),
    ],
)
def test_settings_of_pods_are_refused_with_their_path(tmp_path: Path, text: str, problem: str) -> None:
    path = written(tmp_path, "a:1") / "kubernetes.yaml"
    path.write_text(f"{path.read_text(encoding='utf-8')}{text}\n", encoding="utf-8")
    with pytest.raises(DocumentError, match=problem):
        load_settings(tmp_path)


def test_nulls_of_a_patch_are_kept_in_a_resource(tmp_path: Path) -> None:
    path = written(tmp_path, "a:1") / "kubernetes.yaml"
    path.write_text(path.read_text(encoding="utf-8") + PODS, encoding="utf-8")
    before = load_settings(tmp_path)
    dumped = load_kubernetes(tmp_path).model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude_defaults=True, context={"long": True}
    )
    assert dumped["pods"]["patch"] == {"spec": {"dnsPolicy": "Default", "affinity": None}}
    path.write_text(json.dumps({"kind": "Kubernetes", **dumped}), encoding="utf-8")
    assert load_settings(tmp_path) == before
    assert dumped["pools"]["t4"]["tolerations"] == [
        {"key": "spot", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}
    ]
