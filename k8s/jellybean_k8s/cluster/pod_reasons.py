"""Explains why pods are not ready, from their states and events. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from jellybean_k8s.objects import KubeObjectView

_MOST_PODS = 10
_MOST_EVENTS = 3
_UNPLACED = "FailedScheduling"
_HINTS = {
    "ImagePullBackOff": "check the image's name in kubernetes.yaml and the pull secret",
    "ErrImagePull": "check the image's name in kubernetes.yaml and the pull secret",
    "InvalidImageName": "correct the image's name in kubernetes.yaml",
    "OOMKilled": "give the pool more memory in kubernetes.yaml",
}


def is_ready(pod: KubeObjectView) -> bool:
    """True if the pod is ready and not terminating."""
    conditions = pod.get("status", {}).get("conditions") or ()
    ready = any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


def pod_reasons(
    pods: Iterable[KubeObjectView], events: Iterable[KubeObjectView], known: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """A line per unready pod, with its events below; pods with the same reasons share their lines.

    `known`: pod -> why it is not ready, where more is known of it than its state says.
    """
    pods_by_reason: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    warnings = _warnings_by_object(events)
    for pod in pods:
        if not is_ready(pod):
            name = pod["metadata"]["name"]
            key = (
                known.get(name) or _state(pod),
                tuple(text.replace(name, "POD") for text in warnings.get(("Pod", name), ())[-_MOST_EVENTS:]),
            )
            pods_by_reason.setdefault(key, []).append(name)
    lines = []
    for (state, texts), names in list(pods_by_reason.items())[:_MOST_PODS]:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        lines.append(f"{', '.join(names[:3])}{more}: {state}")
        lines += [f"  {text}" for text in texts]
    if len(pods_by_reason) > _MOST_PODS:
        lines.append(f"and pods with {len(pods_by_reason) - _MOST_PODS} other reasons")
    return lines


def set_reasons(names: Iterable[tuple[str, str]], events: Iterable[KubeObjectView]) -> list[str]:
    """Events of StatefulSets and Deployments, for example that their pods are not admitted."""
    warnings = _warnings_by_object(events)
    return [f"{kind}/{name}: {text}" for kind, name in names for text in warnings.get((kind, name), ())[-1:]]


def _warnings_by_object(events: Iterable[KubeObjectView]) -> dict[tuple[str, str], list[str]]:
    """Warning messages by the object that they concern, oldest first, without duplicates."""
    found: dict[tuple[str, str], list[str]] = {}
    for event in sorted(events, key=_time):
        about = event.get("involvedObject") or {}
        text = f"{event.get('reason', '')}: {str(event.get('message', '')).strip()}"
        texts = found.setdefault((about.get("kind", ""), about.get("name", "")), [])
        if event.get("type") == "Warning" and text not in texts:
            if event.get("reason") == _UNPLACED:  # the scheduler's text changes with the nodes: keep the newest only
                texts[:] = [old for old in texts if not old.startswith(f"{_UNPLACED}: ")]
            texts.append(text)
    return found


def _time(event: KubeObjectView) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or "")


def _state(pod: KubeObjectView) -> str:
    status = pod.get("status", {})
    if "deletionTimestamp" in pod["metadata"]:
        return "is terminating"
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"no node takes it: {condition.get('message') or condition.get('reason', 'not scheduled')}"
    for name in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(name) or ():
            if text := _container(container):
                return f"{container['name']} {text}"
    if reason := status.get("reason"):
        return f"{status.get('phase', '')}: {reason}: {status.get('message', '')}"
    if status.get("phase") == "Running":
        return "runs, but is not ready: its models are loading, or workers that it needs are missing"
    return str(status.get("phase") or "Pending").lower()


def _container(container: KubeObjectView) -> str:
    """Why a container is not running (its state's reason and message); empty if it runs."""
    state, last = container.get("state") or {}, (container.get("lastState") or {}).get("terminated") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
    if ended and ended.get("exitCode") != 0:
        return f"ended with {_ending(ended)}"
    if reason := waiting.get("reason"):
        if reason in ("PodInitializing", "ContainerCreating"):
            return ""
        before = f", last ended with {_ending(last)}" if last else ""
        hint = f"; {_HINTS[reason]}" if reason in _HINTS else ""
        message = f" ({waiting['message']})" if waiting.get("message") and not last else ""
        return f"waits: {reason}{message}{before}{hint}"
    return ""


def _ending(terminated: KubeObjectView) -> str:
    reason = terminated.get("reason", "")
    hint = f"; {_HINTS[reason]}" if reason in _HINTS else ""
    said = str(terminated.get("message") or "").strip().splitlines()
    return f"{terminated.get('exitCode')} ({reason}){f': {said[-1]}' if said else ''}{hint}"


def indented_lines(lines: Sequence[str]) -> str:
    """The lines, indented, below a message; empty for none."""
    return "".join(f"\n  {line}" for line in lines)
