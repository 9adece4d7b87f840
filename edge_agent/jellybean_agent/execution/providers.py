"""Sessions on a planned device: onnxruntime is never allowed to replace its provider by another one."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
from typing import Any

import numpy as np
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from jellybean_agent.errors import ModelError, describe_error
from jellybean_agent.system.device import Device
from jellybean_agent.system.onnxruntime_package import onnxruntime_package

ORT_ERRORS: tuple[type[Exception], ...] = (
    *(ort_errors.Fail, ort_errors.InvalidArgument, ort_errors.NoModel, ort_errors.EngineError),
    *(ort_errors.RuntimeException, ort_errors.InvalidProtobuf, ort_errors.NotImplemented, ort_errors.InvalidGraph),
    *(ort_errors.EPFail, ort_errors.NoSuchFile, ort_errors.ModelLoaded),
)
_OPEN_ERRORS: tuple[type[Exception], ...] = (*ORT_ERRORS, ValueError, RuntimeError)  # ValueError: unknown options
_MAX_TEXT = 300  # characters of onnxruntime's message
CODES = re.compile(r"\[ONNXRuntimeError\] : \d+ : ([A-Z_]+) : ")  # before its messages
_LONGEST_POSITION = 2_000  # characters that are searched: names in a model may be long
# A file and line, and the signature of a function, whose parentheses may hold one level of others.
_SOURCE_POSITION = re.compile(
    r"\S+\.(?:cc|h):\d+ (?:[^()]*::[^()]*(?:\((?:[^()]|\([^()]*\))*\))+(?: const)? )?(?:\[with [^\]]*\] )?"
)
_CPU_NODES_TEXT = "assigned to the default CPU EP"
_MPS_THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"  # read by CUDA when a process first uses the GPU
_TRIAL_MODEL = bytes.fromhex(
    "080712003a350a0e0a01780a017812017922034164641201745a0f0a0178120a0a08080112040a020801620f0a0179120a0a"
    "08080112040a02080142040a00100d"
)  # y = x + x for one float32


def session_options(device: Device) -> ort.SessionOptions:
    """Options of a session on one thread that logs nothing; its errors are raised."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    entries = {"session.intra_op.allow_spinning": "0", "session.inter_op.allow_spinning": "0", **device.session_entries}
    for name, value in entries.items():
        options.add_session_config_entry(name, value)
    return options


def open_on_device(model: bytes, options: ort.SessionOptions, device: Device, model_name: str) -> ort.InferenceSession:
    """A session whose first provider is the device's, on which all nodes run unless its options say otherwise.

    ModelError if there is no such provider, if it does not start, or if it cannot run the model.
    """
    require_provider(device)
    if device.is_nvidia:
        _load_cuda()
    if device.share is not None and device.share.kind == "mps":
        os.environ[_MPS_THREADS] = device.share.size
    try:
        session = _session(model, options, device)
    except _OPEN_ERRORS as error:
        raise ModelError(_load_failure(error, device, model_name)) from error
    if session.get_providers()[0] != device.provider:
        raise ModelError(_does_not_start(device))
    return session


@functools.cache
def _load_cuda() -> None:
    """Load CUDA and cuDNN from NVIDIA's wheels (extra agent-cuda), if they are there: no library path has them.

    onnxruntime prints what it does not find; whether that is needed shows when a session opens.
    """
    with contextlib.redirect_stdout(io.StringIO()):
        ort.preload_dlls(directory="")


def _session(model: bytes, options: ort.SessionOptions, device: Device) -> ort.InferenceSession:
    """A session without onnxruntime's second attempts on other providers, at the start and in runs that fail."""
    providers: list[Any] = [(device.provider, device.provider_options)]
    return ort.InferenceSession(model, options, providers=providers, enable_fallback=0)


def _load_failure(error: Exception, device: Device, model_name: str) -> str:
    """Why a session could not be opened, for a person."""
    text = without_position(describe_error(error))[:_MAX_TEXT]
    if device.is_cpu:
        return f"model {model_name}: {text}"
    if _CPU_NODES_TEXT not in str(error):
        return f"model {model_name} on {device}: {text}"
    lenient = Device(device.name, (*device.options, ("session.disable_cpu_ep_fallback", "0")))
    try:  # without its provider a session has nodes on the CPU, too
        starts = _session(_TRIAL_MODEL, session_options(lenient), lenient).get_providers()[0] == device.provider
    except _OPEN_ERRORS:
        starts = False
    if not starts:
        return _does_not_start(device)
    return (
        f"model {model_name}: {device} cannot run all its nodes, and onnxruntime would run the others on the CPU; "
        "choose another variant there, or allow it in the device's options: session.disable_cpu_ep_fallback: 0"
    )


def without_position(text: str) -> str:
    """onnxruntime's message without the position in its source, which may stand behind its codes."""
    codes = CODES.match(text)
    start = codes.end() if codes else 0
    position = _SOURCE_POSITION.match(text, start, start + _LONGEST_POSITION)
    return text if position is None else text[:start] + text[position.end() :]


def _does_not_start(device: Device) -> str:
    return (
        f"device {device}: {device.provider} does not start here, and onnxruntime would compute on the CPU instead: "
        "the hardware, its driver or a library is missing (onnxruntime logs which)"
    )


def require_provider(device: Device) -> None:
    """ModelError unless the installed onnxruntime has the device's provider; says what to install."""
    available = ort.get_available_providers()
    if device.provider in available:
        return
    package, version = onnxruntime_package() or ("onnxruntime", ort.__version__)
    advice = "install an onnxruntime that has it, or give the worker another device"
    if device.extra is not None:
        advice = f"uninstall {package}, then install 'jellybean-serving[{device.extra}]'"
    has = ", ".join(available)
    raise ModelError(f"device {device}: {package} {version} has no {device.provider}, only {has}; {advice}")


def try_device(device: Device) -> None:
    """Open a session of one node on the device and run it. ModelError if models cannot run on it here."""
    if device.is_cpu:
        return
    session = open_on_device(_TRIAL_MODEL, session_options(device), device, "of one node")
    try:
        session.run(None, {"x": np.ones(1, np.float32)})
    except ORT_ERRORS as error:
        raise ModelError(f"device {device}: {describe_error(error)[:_MAX_TEXT]}") from error
