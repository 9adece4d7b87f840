"""Renders a training run: an Indexed Job whose pods torchrun joins into one world, and a headless Service.

Pod 0 hosts the rendezvous. When a process dies, torchrun restarts all processes; when a pod dies, the Job restarts it.
Both resume from the newest checkpoint on the claim that all pods share.
"""

from __future__ import annotations

from dataclasses import dataclass

from jellybean_k8s.manifests.quantities import cores, mebibytes
from jellybean_k8s.manifests.settings import GPU_RESOURCES, MIB
from jellybean_k8s.names import APP_PREFIX, FIELD_MANAGER, OWN_PREFIX, dns_name
from jellybean_k8s.objects import KubeObject

PORT = 29500
FOLDER, SCRATCH = "/project", "/tmp"  # mount points: the claim, a volume of the pod
RESTARTS = 3  # of the processes in a pod, and of each pod
USER = 65532
MAX_NAME_LENGTH = 52  # pods are called NAME-INDEX and have the Job's name as a label


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """A training run on `pods` pods with `processes` processes each.

    `claim`: PersistentVolumeClaim with the project at `folder`; ReadWriteMany if there are several pods. `gpu`: vendor
    or resource, one per process; None trains on CPUs. `cpu`, `memory_bytes`: per process, of the host.
    `document_sha256`: of the rendered training.yaml, for an annotation.
    """

    name: str
    image: str
    claim: str
    pods: int
    processes: int
    version: str
    folder: str = ""
    gpu: str | None = None
    cpu: float = 1.0
    memory_bytes: float = 2048.0 * MIB
    overrides: tuple[str, ...] = ()
    document_sha256: str = ""


def training_objects(job: TrainingJob) -> list[KubeObject]:
    """The headless Service and the Job."""
    name = dns_name(f"train-{job.name}", MAX_NAME_LENGTH)
    own = _labels(name, job.version)
    told = {"annotations": {f"{OWN_PREFIX}/training-sha256": job.document_sha256}} if job.document_sha256 else {}
    service: KubeObject = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": own},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,  # ranks find each other before they are ready
            "selector": {f"{APP_PREFIX}/instance": name},
            "ports": [{"name": "meeting", "port": PORT, "targetPort": PORT, "protocol": "TCP"}],
        },
    }
    spec: KubeObject = {
        "completionMode": "Indexed",
        "completions": job.pods,
        "parallelism": job.pods,
        "backoffLimit": RESTARTS * job.pods,
        "template": {"metadata": {"labels": own, **told}, "spec": _pod(job, name)},
    }
    return [
        service,
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "labels": own, **told}, "spec": spec},
    ]


def _labels(name: str, version: str) -> dict[str, str]:
    return {
        f"{APP_PREFIX}/name": "jellybean-training",
        f"{APP_PREFIX}/instance": name,
        f"{APP_PREFIX}/component": "training",
        f"{APP_PREFIX}/part-of": "jellybean",
        f"{APP_PREFIX}/managed-by": FIELD_MANAGER,
        f"{APP_PREFIX}/version": version,
    }


def _pod(job: TrainingJob, name: str) -> KubeObject:
    memory = mebibytes(job.memory_bytes * job.processes)
    resources: KubeObject = {
        "requests": {"cpu": cores(job.cpu * job.processes), "memory": memory},
        "limits": {"memory": memory},
    }
    if job.gpu is not None:
        resources["limits"][GPU_RESOURCES.get(job.gpu, job.gpu)] = str(job.processes)
    mount: KubeObject = {"name": "project", "mountPath": FOLDER}
    if job.folder:
        mount["subPath"] = job.folder
    container: KubeObject = {
        "name": "train",
        "image": job.image,
        "command": ["torchrun"],
        "args": _arguments(job, name),
        "env": [
            {"name": "OMP_NUM_THREADS", "value": str(max(1, int(job.cpu)))},
            {"name": "HOME", "value": SCRATCH},
            {"name": "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "value": "1"},  # else a restart reads stale addresses
        ],
        "ports": [{"name": "meeting", "containerPort": PORT, "protocol": "TCP"}],
        "resources": resources,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [mount, {"name": "scratch", "mountPath": SCRATCH}],
    }
    return {
        "subdomain": name,
        "restartPolicy": "OnFailure",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [
            {"name": "project", "persistentVolumeClaim": {"claimName": job.claim}},
            {"name": "scratch", "emptyDir": {}},
        ],
    }


def _arguments(job: TrainingJob, name: str) -> list[str]:
    meeting = ["--standalone"] if job.pods == 1 else ["--rdzv-backend=c10d", f"--rdzv-endpoint={name}-0.{name}:{PORT}"]
    return [
        *(f"--nnodes={job.pods}", f"--nproc-per-node={job.processes}", f"--rdzv-id={name}", *meeting),
        *(f"--max-restarts={RESTARTS}", "-m", "jellybean", "train", FOLDER),
        *(part for text in job.overrides for part in ("--set", text)),
    ]
