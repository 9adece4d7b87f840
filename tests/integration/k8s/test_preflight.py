"""What a cluster lacks is told before anything is applied."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from jellybean_k8s import (
    ClusterError,
    DeploymentSettings,
    LedgerDatabase,
    ModelSource,
    PodSettings,
    PoolSettings,
    PreflightError,
    deploy,
    deployed_plan,
    render,
)
from tests.k8s_plans import on_device, wide
from tests.k8s_target import OTHER, PLAN, QUICK, SETTINGS, Target, claim, secret, with_pools

OWN = "TwoGpuExecutionProvider"  # a provider of which it is not known that it takes one GPU
ON_GPU = on_device(PLAN, "cloud", OWN)
GPU_SETTINGS = dataclasses.replace(SETTINGS, agent_images={"cpu": "agent:1", OWN: "agent-gpu:1"})


def test_what_a_cluster_lacks_is_told_before_anything_is_applied(target: Target) -> None:
    costly = dataclasses.replace(ON_GPU, slo=dataclasses.replace(PLAN.slo, budget_usd_per_h=0.1))
    gpus = with_pools(GPU_SETTINGS, cloud=PoolSettings(gpu="nvidia", gpus=3))
    target.remove_node("box-a")
    with pytest.raises(PreflightError) as caught:
        deploy(target.cluster, deployed_plan(costly, gpus), render(deployed_plan(costly, gpus)), QUICK)
    text = str(caught.value)
    assert "the plan costs 0.7" in text
    assert "the budget is 0.10 USD/h" in text
    assert "there is no Secret digits-gateway-tls: make certificates" in text
    assert "2 workers want a node each, 1 nodes have jellybean.dev/tier=edge" in text
    assert "3 nvidia.com/gpu are requested on nodes with jellybean.dev/tier=cloud; 2 are allocatable there" in text
    assert target.writes() == []
    target.remove_node("big")
    with pytest.raises(PreflightError, match=r"kubectl label node NODE jellybean.dev/tier=cloud"):
        target.deploy()


def schedule(target: Target, part: str, name: str) -> None:
    """The only pod with this part in its name is on a node; a real scheduler sees to that by itself."""
    if target.server is not None:
        (pod,) = [pod for pod_name, pod in target.server.api.of("pods").items() if part in pod_name]
        pod["spec"]["nodeName"] = name

    def is_there() -> bool:
        (pod,) = [pod for pod in target.cluster.list("Pod") if part in pod["metadata"]["name"]]
        return bool(pod["spec"].get("nodeName") == name)

    target.eventually(is_there)


def test_gpus_that_others_hold_are_counted(target: Target) -> None:
    gpus = with_pools(GPU_SETTINGS, cloud=PoolSettings(gpu="nvidia", gpus=2))
    target.deploy(ON_GPU, gpus)
    schedule(target, "-cloud-", "big")
    other = dataclasses.replace(gpus, agent_images={"cpu": "agent:2", OWN: "agent-gpu:2"})
    changed = dataclasses.replace(ON_GPU, hop_s=OTHER.hop_s)
    for plan, settings in ((ON_GPU, other), (changed, gpus)):  # another image, another plan
        with pytest.raises(PreflightError, match=r"2 in use. If the running plan uses them: --in-place"):
            target.deploy(plan, settings)
    target.deploy(changed, gpus, dataclasses.replace(QUICK, in_place=True))


def test_rights_that_are_missing_are_told_and_do_not_stop_it(target: Target) -> None:
    target.wire.fault = lambda _method, path: 403 if path == "/api/v1/nodes" else None
    said: list[str] = []
    assert target.deploy(options=dataclasses.replace(QUICK, say=said.append)).number == 1
    assert said == ["nodes were not checked: this user may not list them"]


LIMITED = dataclasses.replace(SETTINGS, pods=PodSettings(cpu_limit=2.0))


def refused(target: Target, settings: DeploymentSettings = SETTINGS, **options: Any) -> list[str]:
    """Why a deployment is refused, a line each; nothing was applied."""
    target.writes()
    with pytest.raises(PreflightError) as caught:
        target.deploy(settings=settings, options=dataclasses.replace(QUICK, **options))
    assert target.writes() == []
    first, *lines = str(caught.value).splitlines()
    assert first == "nothing was applied:"
    return [line.strip() for line in lines]


def quota(target: Target, **hard: str) -> str:
    """A quota of the namespace with its status; keys with `_` for `.`."""
    spec = {"hard": {name.replace("_", "."): amount for name, amount in hard.items()}}
    meta = {"name": "few"}
    target.create({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": spec})

    def counted() -> bool:
        (there,) = [item for item in target.cluster.list("ResourceQuota") if item["metadata"]["name"] == "few"]
        return bool((there.get("status") or {}).get("hard"))

    target.eventually(counted)
    return "few"


def test_claims_and_secrets_that_pods_name_must_be_there(target: Target) -> None:
    database = LedgerDatabase("postgresql+psycopg://me@db/x", "ledger")
    extra = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "extra", "key": "token"}}}
    settings = dataclasses.replace(
        SETTINGS,
        models=ModelSource(claim="models"),
        gateway_ledger=database,
        image_pull_secrets=("pull",),
        gateway_pods=PodSettings(patch={"spec": {"containers": [{"name": "gateway", "env": [extra]}]}}),
    )
    missing = "in the namespace: create it, or name another"
    assert refused(target, settings) == [
        f"models.claim: there is no PersistentVolumeClaim models {missing}",
        f"patch: there is no Secret extra {missing}",
        f"gateway.ledger.secret: there is no Secret ledger {missing}",
        f"images.pull_secrets: there is no Secret pull {missing}",
    ]
    for item in (
        claim("models"),
        secret("extra", "token"),
        secret("ledger", "user"),
        secret("pull", "x"),
    ):
        target.create(item)
    assert refused(target, settings) == ["gateway.ledger.secret: Secret ledger has no key password: add it"]
    target.drop("Secret", "ledger")
    target.create(secret("ledger", "password"))
    assert target.deploy(settings=settings).number == 1


def lose_volume(target: Target, name: str) -> None:
    """A claim that was bound to a volume that is not there any more; the mock server has no controller that notices."""
    bound = claim(name)
    bound["metadata"]["annotations"] = {"pv.kubernetes.io/bind-completed": "yes"}
    target.create(bound | {"spec": bound["spec"] | {"volumeName": "removed"}})
    if target.server is not None:
        target.cluster.merge("PersistentVolumeClaim", name, {"status": {"phase": "Lost"}})

    def is_lost() -> bool:
        there = target.cluster.get("PersistentVolumeClaim", name) or {}
        return bool(there["status"].get("phase") == "Lost")

    target.eventually(is_lost)


def test_a_claim_that_lost_its_volume_is_refused(target: Target) -> None:
    settings = dataclasses.replace(SETTINGS, models=ModelSource(claim="models"))
    lose_volume(target, "models")
    (line,) = refused(target, settings)
    assert line.startswith("models.claim: PersistentVolumeClaim models has lost its volume (phase Lost): restore")
    target.create(claim("models"))
    target.cluster.merge("PersistentVolumeClaim", "models", {"status": {"phase": "Pending"}}, "status")  # until mounted
    assert target.deploy(settings=settings).number == 1


def test_a_quota_of_limits_refuses_pods_without_them_and_says_what_to_write(target: Target) -> None:
    name = quota(target, limits_cpu="100")
    workers, gateway = refused(target)
    assert workers.startswith("2 sets (StatefulSet/")
    assert gateway.startswith("Deployment/")
    for line, container in ((workers, "agent"), (gateway, "gateway")):
        assert f"failed quota: {name}: must specify limits.cpu for: {container},prepare: " in line
        assert line.endswith("write pods: {cpu_limit: CORES} into kubernetes.yaml")
    assert target.deploy(settings=LIMITED).number == 1


def test_pods_that_fit_one_by_one_but_not_together_are_refused_with_the_sum(target: Target) -> None:
    """The API server asks of each pod alone: of four, it would admit three, and the fourth would never come."""
    name = quota(target, requests_cpu="3", pods="10")
    assert refused(target) == [
        f"ResourceQuota {name}: 4 new pods take 4 of requests.cpu, 3 of 3 are left: raise the quota, or lower what "
        "pods or the plan take. If the running plan uses them: --in-place removes it first"
    ]
    target.drop("ResourceQuota", name)
    quota(target, requests_cpu="4", pods="4")
    assert target.deploy().number == 1
    assert target.deploy().number is None  # its own pods fill the quota, and no new one is wanted


def test_what_the_running_plan_takes_is_free_for_one_in_its_place(target: Target) -> None:
    quota(target, pods="4")
    target.deploy()
    with pytest.raises(PreflightError, match=r"4 new pods take 4 of pods, 0 of 4 are left"):
        target.deploy(OTHER)
    assert target.deploy(OTHER, options=dataclasses.replace(QUICK, in_place=True)).number == 2


def test_an_autoscaled_pool_needs_room_for_all_of_its_workers(target: Target) -> None:
    quota(target, pods="6")
    settings = with_pools(cloud=PoolSettings(autoscale=True))
    with pytest.raises(PreflightError, match=r"7 new pods take 7 of pods, 6 of 6 are left"):
        target.deploy(wide(PLAN, "cloud", 4), settings)


def _answer(target: Target, words: str, code: int = 403) -> None:
    """The API server answers this when pods are created."""
    target.wire.words = words

    def fault(method: str, path: str) -> int | None:
        return code if method == "POST" and path.endswith("/pods") else None

    target.wire.fault = fault


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ('violates PodSecurity "restricted:latest": hostNetwork', "remove from the patch what the namespace does not"),
        (
            'violates PodSecurity "baseline:latest": hostPath volumes (volume "cache")',
            "kubectl label namespace NAMESPACE pod-security.kubernetes.io/enforce=privileged",
        ),
        (
            'violates PodSecurity "restricted:latest": restricted volume types (volume "cache" uses restricted volume '
            'type "hostPath")',
            "or write models.cache.claim instead",
        ),
        ("maximum cpu usage per Container is 500m, but limit is 2", "or the LimitRange"),
        ("no PriorityClass with name serving was found", "correct priority in kubernetes.yaml"),
        ('pod rejected: RuntimeClass "gvisor" not found', "correct runtime_class in kubernetes.yaml"),
        ('admission webhook "images.example" denied the request: not signed', "or what refuses them"),
    ],
)
def test_what_admission_refuses_is_told_in_its_words(target: Target, words: str, hint: str) -> None:
    _answer(target, f'pods "digits-x" is forbidden: {words}')
    (line,) = refused(target)
    assert line.startswith("3 sets (StatefulSet/")
    assert words in line
    assert hint in line


@pytest.mark.parametrize(
    ("words", "code", "note"),
    [
        (
            'pods is forbidden: User "me" cannot create resource "pods" in API group "" in the namespace "shop"',
            403,
            "this user may not create pods",
        ),
        ('admission webhook "own.example" does not support dry run', 400, "3 sets (StatefulSet/"),
    ],
)
def test_admission_that_cannot_be_asked_is_told_and_stops_nothing(
    target: Target, words: str, code: int, note: str
) -> None:
    _answer(target, words, code)
    said: list[str] = []
    assert target.deploy(options=dataclasses.replace(QUICK, say=said.append)).number == 1
    assert (
        any(note in line.replace("pods of ", "").replace("are admitted", "is admitted") for line in said)
        or note in said
    )


@pytest.mark.parametrize(
    ("refuses", "note"),
    [
        (lambda path: path.endswith("/resourcequotas"), "quotas were not added up: this user may not list"),
        (lambda path: "/persistentvolumeclaims/" in path, "PersistentVolumeClaim models was not checked: this user"),
    ],
)
def test_rights_that_checks_lack_are_told(target: Target, refuses: Callable[[str], bool], note: str) -> None:
    target.create(claim("models"))
    target.wire.fault = lambda method, path: 403 if method == "GET" and refuses(path) else None
    settings = dataclasses.replace(SETTINGS, models=ModelSource(claim="models"))
    said: list[str] = []
    target.deploy(settings=settings, options=dataclasses.replace(QUICK, say=said.append))
    assert [line[: len(note)] for line in said] == [note]
    target.wire.fault = None


def test_pods_are_asked_about_with_an_account_that_exists(target: Target) -> None:
    """Ours is made with the plan; the API server refuses pods of accounts that are not there."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "x-"}}
    spec = {"serviceAccountName": "digits", "initContainers": [], "containers": []}
    space = target.cluster.namespace
    words = f'error looking up service account {space}/digits: serviceaccount "digits"'
    with pytest.raises(ClusterError, match=words):
        target.cluster.create({**pod, "spec": spec}, dry_run=True)
    own = PodSettings(patch={"spec": {"serviceAccountName": "absent"}})
    (line,) = refused(target, dataclasses.replace(SETTINGS, gateway_pods=own))
    assert f"error looking up service account {space}/absent" in line
    assert target.deploy().number == 1
    asked = [params for method, path, params in target.wire.log if method == "POST" and path.endswith("/pods")]
    assert asked
    assert all(params.get("dryRun") == "All" for params in asked)
