"""A training run as Kubernetes objects: an Indexed Job whose pods torchrun joins into one world, and their addresses.

Pod 0 holds the meeting point. A process that dies is started again by torchrun with all others, a pod that dies by the
Job; both go on from the newest checkpoint, which lies on the claim that all pods share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jellybean_k8s.manifests.pods import cores, mebibytes
from jellybean_k8s.manifests.settings import GPU_RESOURCES, MIB
from jellybean_k8s.names import APP, MANAGER, OWN, dns_name

PORT = 29500
FOLDER, SCRATCH = "/project", "/tmp"  # a volume of the pod's own
RESTARTS = 3  # of the processes in a pod, and of pods each
USER = 65532
MOST_NAME = 52  # pods are NAME-INDEX and carry the Job's name as a label
Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """`pods` with `processes` each. `claim`: PersistentVolumeClaim with the project, at `folder` in it; of mode
    ReadWriteMany where there are several pods. `gpu`: vendor or resource, one per process; None trains on CPUs.
    `cpu`, `memory_bytes`: of a process, the latter of the host's memory, whatever its GPU has.
    `document_sha256`: of the training.yaml that this is rendered from, told as an annotation.
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


def training_objects(job: TrainingJob) -> list[Object]:
    """The headless Service, then the Job."""
    name = dns_name(f"train-{job.name}", MOST_NAME)
    own = _labels(name, job.version)
    told = {"annotations": {f"{OWN}/training-sha256": job.document_sha256}} if job.document_sha256 else {}
    service: Object = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": own},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,  # they meet before anything is ready
            "selector": {f"{APP}/instance": name},
            "ports": [{"name": "meeting", "port": PORT, "targetPort": PORT, "protocol": "TCP"}],
        },
    }
    spec: Object = {
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
        f"{APP}/name": "jellybean-training",
        f"{APP}/instance": name,
        f"{APP}/component": "training",
        f"{APP}/part-of": "jellybean",
        f"{APP}/managed-by": MANAGER,
        f"{APP}/version": version,
    }


def _pod(job: TrainingJob, name: str) -> Object:
    memory = mebibytes(job.memory_bytes * job.processes)
    resources: Object = {
        "requests": {"cpu": cores(job.cpu * job.processes), "memory": memory},
        "limits": {"memory": memory},
    }
    if job.gpu is not None:
        resources["limits"][GPU_RESOURCES.get(job.gpu, job.gpu)] = str(job.processes)
    mount: Object = {"name": "project", "mountPath": FOLDER}
    if job.folder:
        mount["subPath"] = job.folder
    container: Object = {
        "name": "train",
        "image": job.image,
        "command": ["torchrun"],
        "args": _arguments(job, name),
        "env": [
            {"name": "OMP_NUM_THREADS", "value": str(max(1, int(job.cpu)))},
            {"name": "HOME", "value": SCRATCH},
            {"name": "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "value": "1"},  # else a restart reads the old addresses
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
