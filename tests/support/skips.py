"""Why a test may be skipped: `tests.tools.listed_skips` fails a test that gives another reason, or expects to fail.

A test's reason is one of these texts, or starts with one and goes on with the details.
"""

from __future__ import annotations

from enum import StrEnum


class Absent(StrEnum):
    """The machine, its user or its other software does not allow it. A skip that is always fine."""

    CLUSTER = "JELLYBEAN_TEST_KUBECONFIG names no cluster"
    CONTAINERS = "with the mock API server only: its containers run, or their ports are asked, which takes a kubelet"
    UNLIKE_APIS = "with the mock API server only: of two clusters one knows a kind that the other does not"
    DEPLOYED_PROJECT = "JELLYBEAN_TEST_PROJECT names no deployed project"
    KUBECTL = "kubectl is not installed"
    HELM = "helm is not installed"
    GPU = "torch finds too few GPUs"
    MACHINE_WITHOUT_GPU = "this machine has a GPU"
    ONNXRUNTIME_BUILD = "another build of onnxruntime is needed: make devices"
    DEVICE = "this machine has no such device"
    ONNXRUNTIME_WITHOUT_CUDA = "this onnxruntime has CUDA"
    TORCHGPIPE = "torchgpipe is not installed"  # its source alone is published
    DOWNLOAD = "the data of an example cannot be downloaded here"
    SECOND_PROCESSOR = "a second process needs a second processor"
    AFFINITY = "this system has no affinity of processes"
    LINUX = "this system is not Linux"
    OPEN_FILES = "the hard limit of open files is too low"
    OPENBLAS = "this numpy has no OpenBLAS"
    MOUNT = "a small file system can only be mounted by root with the right to mount"
    NETWORK_NAMESPACE = "no network namespace can be made here: it takes root, or unprivileged user namespaces"
    SBOM_TOOL = "cyclonedx-py is not installed: make sbom"
    CPU_QUOTA = "no control group with a CPU quota can be made here"


class NotInstalled(StrEnum):
    """A wheel or a Debian package brings it: no skip where JELLYBEAN_TEST_COMPLETE=1, as in CI."""

    TORCH = "training needs torch: pip install 'jellybean-serving[train]'"
    TRANSFORMERS = "the models need transformers: pip install transformers"
    PEFT = "LoRA needs peft: pip install 'jellybean-serving[lora]'"
    SCIKIT_LEARN = "the data needs scikit-learn: pip install scikit-learn"
    TENSORBOARD = "the logs need tensorboard: pip install tensorboard"
    AIOHTTP = "HTTP is an extra: pip install 'jellybean-serving[http]'"
    GEVENTHTTPCLIENT = "tritonclient.http needs geventhttpclient: pip install geventhttpclient"
    KOPF = "the operator is an extra: pip install 'jellybean-serving[operator]'"
    OPENTELEMETRY = "tracing is an extra: pip install 'jellybean-serving[otel]'"
    OCR = "the example needs its models: pip install 'jellybean-serving[ocr]'"
    STUBS_COMPILER = "stubs need their compiler: pip install --no-deps --target .venv/protoc -r requirements/protoc.txt"
    CEL = "rules need cel-python: pip install cel-python"
    PROMTOOL = "promtool is not installed: Debian's package prometheus"
    POSTGRESQL = "no PostgreSQL server is installed: Debian's package postgresql, and psycopg"
    BROWSER = "no headless browser runs here: Debian's package chromium"
    STRACE = "strace is not installed: Debian's package strace"
