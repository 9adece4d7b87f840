"""A local port that leads to the gateway of a deployment, through the API server.

Each connection to it is one WebSocket to the pod behind the deployment's client Service, as that of `kubectl
port-forward`. TLS passes through: whoever connects still needs a certificate of the deployment.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import portforward

from jellybean_k8s.cluster.cluster import Cluster
from jellybean_k8s.errors import DeployError
from jellybean_k8s.objects import KubeObject

_CHUNK_BYTES = 2**16
_RIGHTS = "it needs the rights to get services, list pods and create pods/portforward in the namespace"


@contextmanager
def forwarded_gateway(cluster: Cluster, app: str) -> Iterator[str]:
    """HOST:PORT on this machine that leads to the gateway of a deployment, as long as the context is open.

    DeployError if nothing is deployed, no gateway pod is ready, or the API server forwards no port.
    """
    _forward(cluster, app).close()  # what prevents it is told now, and not by a connection that ends
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        forwarder = _Forwarder(listener, lambda: _forward(cluster, app))
        thread = threading.Thread(target=forwarder.run, name="port-forward", daemon=True)
        thread.start()
        stack.callback(forwarder.close)
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def gateway_pod(cluster: Cluster, app: str) -> tuple[KubeObject, int]:
    """A pod that serves the clients of a deployment, and its port for them. DeployError if there is none."""
    pods, port = gateway_pods(cluster, app)
    return pods[0], port


def gateway_pods(cluster: Cluster, app: str) -> tuple[list[KubeObject], int]:
    """All pods that serve the clients of a deployment, and their port for them. DeployError if there is none."""
    service = cluster.get("Service", app)
    if service is None:
        raise DeployError(f"nothing of {app} is deployed in {cluster.namespace}: there is no Service {app}")
    selector = ",".join(f"{key}={value}" for key, value in sorted(service["spec"]["selector"].items()))
    pods = cluster.list("Pod", selector)
    if ready := [pod for pod in pods if "deletionTimestamp" not in pod["metadata"] and _is_ready(pod)]:
        return ready, int(service["spec"]["ports"][0]["targetPort"])
    states = "; ".join(f"{pod['metadata']['name']} is not ready" for pod in pods) or "it has none"
    raise DeployError(f"{app} in {cluster.namespace} has no gateway pod that is ready ({states}): jellybean status")


def _is_ready(pod: KubeObject) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def _forward(cluster: Cluster, app: str) -> socket.socket:
    """A connection to the port of a deployment's gateway."""
    pod, port = gateway_pod(cluster, app)
    name = pod["metadata"]["name"]
    api = client.CoreV1Api(client.ApiClient(cluster.api.configuration))  # its own: the call changes its client
    try:
        found: Any = portforward(
            api.connect_get_namespaced_pod_portforward, name, cluster.namespace, ports=str(port)
        ).socket(port)
    except ApiException as error:
        reason = " ".join(str(error.reason or error.status).split())[:300]
        raise DeployError(f"the API server does not forward a port of pod {name}: {reason}; {_RIGHTS}") from error
    own: socket.socket = getattr(found, "_socket", found)
    return own


@dataclass
class _Forwarder:
    """Accepts connections and copies their bytes to and from what `connect` connects to."""

    listener: socket.socket
    connect: Callable[[], socket.socket]
    _open: set[socket.socket] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_closed: bool = False

    def run(self) -> None:
        """Serve until the listener is closed."""
        while True:
            try:
                accepted, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(accepted,), name="port-forward", daemon=True).start()

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            self._is_closed = True
            waiting = list(self._open)
        for one in (self.listener, *waiting):
            _shut(one)

    def _serve(self, accepted: socket.socket) -> None:
        with accepted:
            try:
                remote = self.connect()
            except DeployError:
                return  # the caller sees a connection that ends; the next one is tried anew
            with remote, self._held(accepted, remote):
                back = threading.Thread(target=_copy, args=(remote, accepted), name="port-forward", daemon=True)
                back.start()
                _copy(accepted, remote)
                back.join()

    @contextmanager
    def _held(self, *sockets: socket.socket) -> Iterator[None]:
        """Have the sockets closed with the forwarder."""
        with self._lock:
            self._open.update(sockets)
            if self._is_closed:
                for one in sockets:
                    _shut(one)
        try:
            yield
        finally:
            with self._lock:
                self._open.difference_update(sockets)


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy bytes until either side ends, then end both: gRPC's connections are not used in one direction."""
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK_BYTES):
            target.sendall(data)
    _shut(source)
    _shut(target)


def _shut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
