"""What a set of rendered objects must be, beyond the schema: written from Kubernetes' rules, not from the renderer.

`complaints` lists what is wrong; an empty list is a sound set.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jsonschema import Draft202012Validator
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource

from jellybean_agent import plan_view

Object = Mapping[str, Any]
VERSIONS = ("1.37.0", "1.36.0", "1.35.0")  # the three newest that kubernetes-validate offers
RECOMMENDED = ("name", "instance", "component", "part-of", "managed-by", "version")
_DNS = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
_LABEL_KEY = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
_QUANTITY = re.compile(r"[0-9]+(m|k|M|G|T|Ki|Mi|Gi|Ti|e[0-9]+)?")
_MOST_SET_NAME = 52
_MOST_OBJECT_BYTES = 1_048_576
_CLUSTER_KINDS = {"ClusterRole", "ClusterRoleBinding", "Namespace", "CustomResourceDefinition"}


def schema_complaints(objects: Iterable[Object], versions: Sequence[str] = VERSIONS) -> list[str]:
    """What the schemas of kubernetes-validate say, unknown fields included; kinds they do not know are left out."""
    found = []
    for item in objects:
        if item["apiVersion"].startswith("monitoring.coreos.com/"):
            continue
        for version in versions:
            errors = _validator(version, item["kind"], item["apiVersion"]).iter_errors(json.loads(json.dumps(item)))
            found += [f"{_name(item)} on {version}: {'.'.join(map(str, e.path))}: {e.message}" for e in errors]
    return found


def new_shapes(objects: Iterable[Object], seen: set[str]) -> list[Object]:
    """Objects with fields, or types of values, that none had before: what a schema can tell apart. Adds to `seen`."""
    found = []
    for item in objects:
        shape = f"{item['apiVersion']} {item['kind']} {_shape(item)}"
        if shape not in seen:
            seen.add(shape)
            found.append(item)
    return found


def _shape(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_shape(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(sorted({_shape(item) for item in value})) + "]"
    return type(value).__name__


@functools.cache
def _validator(version: str, kind: str, api_version: str) -> Draft202012Validator:
    """What `kubernetes_validate.validate(..., strict=True)` makes for every object anew, which takes 0.1 s."""
    folder = f"kubernetes-json-schema/v{version}-local-strict"
    group, _, short = api_version.rpartition("/")
    name = f"{group.partition('.')[0]}-{short}" if group else short
    schema = schema_contents(f"{folder}/{kind.lower()}-{name}.json", version)
    definitions = Resource.from_contents(_definitions(folder, version))
    return Draft202012Validator(schema, registry=definitions @ (Resource.from_contents(schema) @ Registry()))


@functools.cache
def _definitions(folder: str, version: str) -> Any:
    return schema_contents(f"{folder}/_definitions.json", version)


def complaints(objects: Sequence[Object]) -> list[str]:
    """What is wrong with the objects of one plan, each in words."""
    return [*object_complaints(objects), *_addresses(objects)]


def object_complaints(objects: Sequence[Object]) -> list[str]:
    """What is wrong with objects, whether or not all workers of their plan are among them."""
    found: list[str] = []
    for item in objects:
        found += [f"{_name(item)}: {text}" for text in _metadata(item)]
        found += [f"{_name(item)}: {text}" for text in _quantities(item)]
        if item["kind"] in ("StatefulSet", "Deployment"):
            found += [f"{_name(item)}: {text}" for text in _workload(item)]
    for name, count in Counter((item["kind"], item["metadata"]["name"]) for item in objects).items():
        if count > 1:
            found.append(f"{name}: {count} objects of one name")
    return [*found, *_selections(objects), *_references(objects), *_scaling(objects)]


def _name(item: Object) -> str:
    return f"{item['kind']}/{item['metadata']['name']}"


def _of(objects: Iterable[Object], *kinds: str) -> list[Any]:
    return [item for item in objects if item["kind"] in kinds]


def _metadata(item: Object) -> Iterator[str]:
    name, own = item["metadata"]["name"], item["metadata"].get("labels", {})
    if not _DNS.fullmatch(name):
        yield f"{name!r} is no DNS label"
    if item["kind"] == "StatefulSet" and len(name) > _MOST_SET_NAME:
        yield f"its pods' revision label would be longer than 63: {len(name)}"
    if item["kind"] in _CLUSTER_KINDS or "namespace" in item["metadata"]:
        yield "is not of one namespace, chosen by whoever applies it"
    for key in RECOMMENDED:
        if f"app.kubernetes.io/{key}" not in own:
            yield f"no label {key}"
    yield from _labels(own)
    if len(json.dumps(item)) > _MOST_OBJECT_BYTES:
        yield "is larger than the API server takes"


def _labels(own: Mapping[str, str]) -> Iterator[str]:
    for key, value in own.items():
        if not _LABEL_KEY.fullmatch(key) or not isinstance(value, str) or not _LABEL_VALUE.fullmatch(value):
            yield f"label {key}={value!r}"


def _quantities(value: Any, key: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            if key in ("requests", "limits") or name == "sizeLimit":
                if not isinstance(item, str) or not _QUANTITY.fullmatch(item):
                    yield f"{key}.{name}: {item!r} is no quantity"
            else:
                yield from _quantities(item, name)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _quantities(item, key)


def _workload(item: Object) -> Iterator[str]:
    spec = item["spec"]
    pod, labels = spec["template"]["spec"], spec["template"]["metadata"]["labels"]
    selector = spec["selector"]["matchLabels"]
    if not selector.items() <= labels.items():
        yield f"selector {selector} does not select its own pods"
    if unstable := {"app.kubernetes.io/version", "app.kubernetes.io/managed-by"} & set(selector):
        yield f"selector has labels that change: {unstable}"
    yield from _labels(labels)
    yield from _security(pod)
    yield from _placement(pod)
    yield from _volumes(pod)
    for container in pod["containers"]:
        yield from _life(container, pod)
    ports = [(c.get("name"), port["containerPort"]) for c in _staying(pod) for port in c.get("ports", ())]
    if len({port for _, port in ports}) < len(ports):
        yield f"two containers open one port: {ports}"


def _staying(pod: Object) -> list[Object]:
    """The containers that run at the same time: those, and the sidecars."""
    return [*pod["containers"], *(c for c in pod["initContainers"] if c.get("restartPolicy") == "Always")]


def _security(pod: Object) -> Iterator[str]:
    """Violations of the restricted level of the Pod Security Standards."""
    own = pod["securityContext"]
    if not own.get("runAsNonRoot") or not own.get("runAsUser") or own["seccompProfile"]["type"] != "RuntimeDefault":
        yield f"pod security context {own}"
    if pod["automountServiceAccountToken"] is not False:
        yield "gets a token"
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(key):
            yield key
    allowed = {"configMap", "emptyDir", "secret", "persistentVolumeClaim", "projected", "downwardAPI", "image"}
    for volume in pod["volumes"]:
        if strange := set(volume) - {"name"} - allowed:
            yield f"volume {volume['name']}: {strange}"
    for container in [*pod["containers"], *pod["initContainers"]]:
        yield from _container_security(container)


def _container_security(container: Object) -> Iterator[str]:
    own = container["securityContext"]
    if own["allowPrivilegeEscalation"] or own["capabilities"] != {"drop": ["ALL"]} or own.get("privileged"):
        yield f"{container['name']}: {own}"
    if own["readOnlyRootFilesystem"] is not True:
        yield f"{container['name']} may write its root"
    resources = container["resources"]
    if set(resources["requests"]) != {"cpu", "memory"} or "memory" not in resources["limits"]:
        yield f"{container['name']}: resources {resources}"


def _placement(pod: Object) -> Iterator[str]:
    required = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    keys = {
        term["key"]: term["values"] for terms in required["nodeSelectorTerms"] for term in terms["matchExpressions"]
    }
    tiers = [values for key, values in keys.items() if key.endswith("/tier")]
    if len(tiers) != 1 or not {t.get("value") for t in pod["tolerations"]} >= set(tiers[0]):
        yield f"affinity {keys} and tolerations {pod['tolerations']} differ"
    yield from _labels({key: values[0] for key, values in keys.items()})
    gpus = {key for c in pod["containers"] for key in c["resources"]["limits"]} - {"memory", "cpu"}
    if gpus - {toleration.get("key") for toleration in pod["tolerations"]}:
        yield f"does not tolerate the taint of its {gpus}"
    if not pod["topologySpreadConstraints"]:
        yield "is not spread"


def _volumes(pod: Object) -> Iterator[str]:
    names = {volume["name"] for volume in pod["volumes"]}
    for container in [*pod["containers"], *pod["initContainers"]]:
        mounts = container["volumeMounts"]
        if strange := {mount["name"] for mount in mounts} - names:
            yield f"{container['name']} mounts {strange}"
        if len({mount["mountPath"] for mount in mounts}) < len(mounts):
            yield f"{container['name']} mounts two volumes at one path"
    if unused := names - {m["name"] for c in [*pod["containers"], *pod["initContainers"]] for m in c["volumeMounts"]}:
        yield f"volumes nobody mounts: {unused}"


def _life(container: Object, pod: Object) -> Iterator[str]:
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for key in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container[key]
        port = probe.get("grpc", probe.get("tcpSocket"))["port"]
        if port not in ports and port not in ports.values():
            yield f"{key} asks port {port}, which nobody opens"
    if "grpc" not in container["readinessProbe"]:
        yield "readiness is not asked by gRPC"
    drain = next(float(arg.partition("=")[2]) for arg in container["args"] if arg.startswith("--drain-s="))
    before = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    if pod["terminationGracePeriodSeconds"] <= drain + before:
        yield f"{pod['terminationGracePeriodSeconds']} s of grace cut short {before} s and a drain of {drain} s"


def _selections(objects: Sequence[Object]) -> Iterator[str]:
    """Services, budgets and policies select some pods, budgets only where one may be away."""
    sets = _of(objects, "StatefulSet", "Deployment")
    for item in _of(objects, "Service", "PodDisruptionBudget", "NetworkPolicy"):
        spec = item["spec"]
        wanted = spec.get("podSelector", spec.get("selector"))
        wanted = wanted.get("matchLabels", wanted)
        chosen = [s for s in sets if wanted.items() <= s["spec"]["template"]["metadata"]["labels"].items()]
        if not chosen:
            yield f"{_name(item)} selects nothing"
        if item["kind"] == "PodDisruptionBudget" and sum(_count(objects, s) for s in chosen) < 2:
            yield f"{_name(item)}: one pod alone could never be moved"
        if item["kind"] == "Service":
            opened = {
                p["containerPort"]
                for s in chosen
                for c in _staying(s["spec"]["template"]["spec"])
                for p in c.get("ports", ())
            }
            if strange := {port["targetPort"] for port in spec["ports"]} - opened:
                yield f"{_name(item)} leads to {strange}, which nobody opens"
    for item in sets:
        labels = item["spec"]["template"]["metadata"]["labels"]
        policies = _of(objects, "NetworkPolicy")
        if not any(p["spec"]["podSelector"]["matchLabels"].items() <= labels.items() for p in policies):
            yield f"{_name(item)}: no policy"
    for policy in _of(objects, "NetworkPolicy"):
        if not any({"protocol": "UDP", "port": 53} in rule.get("ports", ()) for rule in policy["spec"]["egress"]):
            yield f"{_name(policy)}: no DNS"


def _references(objects: Sequence[Object]) -> Iterator[str]:
    maps = {item["metadata"]["name"] for item in _of(objects, "ConfigMap")}
    accounts = {item["metadata"]["name"] for item in _of(objects, "ServiceAccount")}
    for item in _of(objects, "StatefulSet", "Deployment"):
        pod = item["spec"]["template"]["spec"]
        used = {volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume}
        if not used or used - maps or pod["serviceAccountName"] not in accounts:
            yield f"{_name(item)} refers to {used - maps or pod['serviceAccountName']}"
    services = {item["metadata"]["name"]: item for item in _of(objects, "Service")}
    for item in _of(objects, "StatefulSet"):
        named = services.get(item["spec"]["serviceName"])
        if named is None or named["spec"].get("clusterIP") != "None":
            yield f"{_name(item)}: its Service gives pods no address"


def _count(objects: Sequence[Object], item: Object) -> int:
    if "replicas" in item["spec"]:
        return int(item["spec"]["replicas"])
    scalers = _of(objects, "HorizontalPodAutoscaler")
    return int(next(s["spec"]["maxReplicas"] for s in scalers if s["metadata"]["name"] == item["metadata"]["name"]))


def _scaling(objects: Sequence[Object]) -> Iterator[str]:
    """The number of replicas is set by the StatefulSet or its autoscaler, not by both."""
    scaled = {s["spec"]["scaleTargetRef"]["name"] for s in _of(objects, "HorizontalPodAutoscaler")}
    for item in _of(objects, "StatefulSet"):
        if ("replicas" in item["spec"]) == (item["metadata"]["name"] in scaled):
            yield f"{_name(item)}: replicas and autoscaler"


def worker_pods(objects: Sequence[Object]) -> Iterator[tuple[str, str, str, set[str]]]:
    """Worker, pod, its address, and the sha256 that its init container verifies."""
    for item in _of(objects, "StatefulSet"):
        start = item["spec"].get("ordinals", {}).get("start", 0)
        container = item["spec"]["template"]["spec"]["containers"][0]
        worker = next(arg.partition("=")[2] for arg in container["args"] if arg.startswith("--worker="))
        hashes = {arg.partition(":")[0] for arg in item["spec"]["template"]["spec"]["initContainers"][0]["args"]}
        for number in range(start, start + _count(objects, item)):
            pod = f"{item['metadata']['name']}-{number}"
            name = worker.replace("$(WORKER_NUMBER)", str(number))
            yield name, pod, f"{pod}.{item['spec']['serviceName']}:7001", hashes


def _addresses(objects: Sequence[Object]) -> Iterator[str]:
    """Every worker that the agents' own reading of the plan serves has one pod, whose address the book has."""
    data = _of(objects, "ConfigMap")[0]["data"]
    view, book = plan_view(json.loads(data["plan.json"])), json.loads(data["peers.json"])
    pods: dict[str, tuple[str, str]] = {}
    for name, pod, address, hashes in worker_pods(objects):
        if name in pods:
            yield f"two pods are worker {name}"
        pods[name] = (pod, address)
        if name in view.workers:
            wanted = {view.operators[op].model_sha256 for op in view.workers[name].operators}
            if not wanted <= hashes:
                yield f"{pod} does not verify {wanted - hashes}"
    if set(pods) != {worker.name for worker in view.serving}:
        yield f"pods {sorted(pods)} for workers {sorted(worker.name for worker in view.serving)}"
    if {name: address for name, (_, address) in pods.items()} != {k: v for k, v in book.items() if k}:
        yield f"address book {book}"
    if any(len(pod) > 63 for pod, _ in pods.values()):
        yield "a pod's host name is longer than 63"
    if book[""].partition(":")[0] not in {item["metadata"]["name"] for item in _of(objects, "Service")}:
        yield f"no Service {book['']}"
