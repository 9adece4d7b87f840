"""Explains why pods are not ready, from their states and events. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from jellybean_k8s.manifests.pods.commands import RELAY_OPTION
from jellybean_k8s.objects import KubeObjectView

_MOST_GROUPS = 10
_MOST_NAMES = 3
_MOST_EVENTS = 3
_PAUSE = re.compile(r"\b([Bb]ack-off) (?:[0-9]+[hms])+ ")
_UNPLACED = "FailedScheduling"
_HINTS = {
    "ImagePullBackOff": "check the image's name in kubernetes.yaml and the pull secret",
    "ErrImagePull": "check the image's name in kubernetes.yaml and the pull secret",
    "InvalidImageName": "correct the image's name in kubernetes.yaml",
    "ErrImageNeverPull": "load the image onto the nodes, or remove imagePullPolicy: Never from the patch",
    "CreateContainerConfigError": "add what is missing, or correct its name or key in kubernetes.yaml",
    "OOMKilled": "give the pool more memory in kubernetes.yaml",
}

# Reasons of waiting that last until a person changes something; a registry that does not answer may come back.
_STUCK = frozenset({"InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError"})


def is_stuck(pod: KubeObjectView) -> bool:
    """True if a container waits for a reason that no time ends."""
    status = pod.get("status", {})
    containers = (one for key in ("initContainerStatuses", "containerStatuses") for one in status.get(key) or ())
    return any(((one.get("state") or {}).get("waiting") or {}).get("reason") in _STUCK for one in containers)


def is_ready(pod: KubeObjectView) -> bool:
    """True if the pod is ready and not terminating."""
    conditions = pod.get("status", {}).get("conditions") or ()
    ready = any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


def pod_reasons(
    pods: Iterable[KubeObjectView], events: Iterable[KubeObjectView], known: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """A line per state of unready pods, with the number of pods in it, and their events below, each once.

    Events of earlier pods of the same names are left out. `known`: pod -> why it is not ready, where more is known of
    it than its state says.
    """
    groups: dict[str, list[KubeObjectView]] = {}
    for pod in pods:
        if not is_ready(pod):
            groups.setdefault(_without_names(known.get(pod["metadata"]["name"]) or _state(pod), pod), []).append(pod)
    warnings = _warnings_by_uid(events)
    lines = []
    for state, alike in list(groups.items())[:_MOST_GROUPS]:
        lines.append(f"{counted([pod['metadata']['name'] for pod in alike], 'pods')}: {state}")
        lines += [f"  {text}" for text in _event_texts(alike, warnings)]
    if len(groups) > _MOST_GROUPS:
        lines.append(f"and pods with {len(groups) - _MOST_GROUPS} other reasons")
    return lines


def set_reasons(sets: Iterable[KubeObjectView], events: Iterable[KubeObjectView]) -> list[str]:
    """Why the pods of StatefulSets and Deployments are not made, for example that a quota refuses them."""
    names_by_text: dict[str, list[str]] = {}
    warnings = _warnings_by_uid(events)
    for item in sets:
        texts = [_text(event) for event in warnings.get(item["metadata"].get("uid"), ())]
        texts += [
            _text(condition)
            for condition in (item.get("status") or {}).get("conditions") or ()
            if condition["type"] == "ReplicaFailure" and condition["status"] == "True"
        ]
        name = item["metadata"]["name"]
        for text in texts[-1:]:
            names_by_text.setdefault(without_set_names(text, name), []).append(f"{item['kind']}/{name}")
    return counted_lines(names_by_text, "sets")


def counted_lines(names_by_text: Mapping[str, Sequence[str]], noun: str) -> list[str]:
    """A line per text, with the names that it is of."""
    return [f"{counted(names, noun)}: {text}" for text, names in names_by_text.items()]


def counted(names: Sequence[str], noun: str) -> str:
    """One name, or the number of several and the first of them: `12 pods (a, b, c, ...)`."""
    if len(names) == 1:
        return names[0]
    more = ", ..." if len(names) > _MOST_NAMES else ""
    return f"{len(names)} {noun} ({', '.join(names[:_MOST_NAMES])}{more})"


def _event_texts(pods: Sequence[KubeObjectView], warnings: Mapping[str, Sequence[KubeObjectView]]) -> list[str]:
    """The newest warnings of pods in one state, each once, with the number of pods where not all have it."""
    pods_by_text: dict[str, set[str]] = {}
    newest: dict[str, tuple[str, str]] = {}  # key of a text -> its time, the text
    for pod in pods:
        uid = pod["metadata"].get("uid", "")
        for event in warnings.get(uid, ()):
            text = _without_names(_text(event), pod)
            key = _UNPLACED if event.get("reason") == _UNPLACED else text  # its text changes with the nodes
            pods_by_text.setdefault(key, set()).add(uid)
            newest[key] = max(newest.get(key, ("", "")), (_time(event), text))
    last = sorted(newest.items(), key=lambda item: item[1])[-_MOST_EVENTS:]
    return [
        text if len(pods_by_text[key]) == len(pods) else f"{text} ({len(pods_by_text[key])} of {len(pods)} pods)"
        for key, (_, text) in last
    ]


def _warnings_by_uid(events: Iterable[KubeObjectView]) -> dict[str, list[KubeObjectView]]:
    """Warnings by the UID of the object that they are of, oldest first."""
    found: dict[str, list[KubeObjectView]] = {}
    for event in sorted(events, key=_time):
        uid = (event.get("involvedObject") or {}).get("uid")
        if uid and event.get("type") == "Warning":
            found.setdefault(uid, []).append(event)
    return found


def _text(event: KubeObjectView) -> str:
    return f"{event.get('reason', '')}: {str(event.get('message', '')).strip()}"


def _without_names(text: str, pod: KubeObjectView) -> str:
    """The text without what differs between pods with one reason: name, UID, length of the pause."""
    found = _replaced(text, re.escape(pod["metadata"]["name"]), "POD")
    if uid := pod["metadata"].get("uid"):
        found = _replaced(found, re.escape(uid), "UID")
    return _PAUSE.sub(r"\1 ", found)


def without_set_names(text: str, name: str) -> str:
    """The text without the names of a set and its pods, so that it is the same for all sets."""
    return _replaced(_replaced(text, f"{re.escape(name)}-[a-z0-9-]+", "POD"), re.escape(name), "SET")


def _replaced(text: str, pattern: str, word: str) -> str:
    """The text with whole names replaced."""
    return re.sub(rf"(?<![a-z0-9-])(?:{pattern})(?![a-z0-9-])", word, text)


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
    return _unready(pod) if status.get("phase") == "Running" else str(status.get("phase") or "Pending").lower()


def _unready(pod: KubeObjectView) -> str:
    """Why a pod whose containers run is not ready."""
    if relay := _unreached_relay(pod):
        return f"runs, but its tunnel has not reached its relay at {relay} (relay.address in kubernetes.yaml)"
    return "runs, but is not ready: its models are loading, or workers that it needs are missing"


def _unreached_relay(pod: KubeObjectView) -> str:
    """Where the tunnel of a pod dials its relay in vain; empty if it has reached it, or there is none."""
    states = {one["name"]: one for one in pod["status"].get("initContainerStatuses") or ()}
    for container in pod["spec"].get("initContainers") or ():
        state = states.get(container["name"], {})
        relay = next((text for text in container.get("args") or () if text.startswith(RELAY_OPTION)), "")
        if relay and "running" in (state.get("state") or {}) and not state.get("ready"):
            return str(relay.removeprefix(RELAY_OPTION))
    return ""


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
