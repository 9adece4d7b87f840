"""A server beside the first one: keeps a part of the weights, and updates them with the gradients that workers push.

Workers push to it before they push to the first server, whose count completes a work item. So when the first server
hands out the next update, this one has made the one before. A gradient that comes twice, as another worker repeats a
work item whose worker died between two pushes, counts once.
"""

from __future__ import annotations

import threading
from pathlib import Path

from jellybean.documents.training import TrainingDocument
from jellybean.training.errors import RankLostError
from jellybean.training.parameter_server.channel import Channel, ConnectionLostError, Header
from jellybean.training.parameter_server.flat_tensors import FlatTensors
from jellybean.training.parameter_server.listener import Listener
from jellybean.training.parameter_server.rendezvous import Rendezvous
from jellybean.training.parameter_server.roles import Role, document_alone
from jellybean.training.parameter_server.shards import divide_weights
from jellybean.training.parameter_server.states import receive_state, send_state, settings_from_json
from jellybean.training.parameter_server.weights import ServedWeights, sizes_of, stage_of, trained_of
from jellybean.training.parameter_server.work_items import WorkItem
from jellybean.training.processes.ranks import process_group
from jellybean.training.setup import RankRun, set_up_run
from jellybean.training.stages.updates import GroupSettings


def serve_share(document: TrainingDocument, directory: Path, role: Role) -> None:
    """Be a further server until the first one ends the run."""
    alone = document_alone(document, role)
    with process_group(alone, workers=document.replicas) as rank:
        run = set_up_run(alone, directory, rank)
        server = FurtherServer(run, document, role.number)
        meeting = Rendezvous(document)
        listener = Listener(document.sync.address, meeting.key(), server.serve)
        meeting.publish(role.number, (document.sync.address, listener.port))
        try:
            server.wait()
        finally:
            listener.close()
            run.transport.close()


class FurtherServer:
    """The state of a further server. `serve` runs in a thread for each connection."""

    def __init__(self, run: RankRun, document: TrainingDocument, number: int) -> None:
        self._run, self._stage = run, stage_of(run)
        self._names = frozenset(divide_weights(sizes_of(self._stage), document.sync.servers)[number])
        synchronous = document.sync.mode == "bsp"
        self._weights = ServedWeights(run, document.replicas if synchronous else 1)
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._epoch, self._iterations = -1, range(0)
        self._settings: list[GroupSettings] = []
        self._counted: set[WorkItem] = set()
        self._updates = self._pulled_bytes = 0

    def wait(self) -> None:
        """Wait for the end of the run. RankLostError if the first server is gone."""
        self._over.wait()
        if self._failure is not None:
            raise self._failure

    def serve(self, channel: Channel) -> None:
        """Serve the connection of a worker or of the first server until it ends."""
        coordinates = False
        try:
            header = channel.receive()
            coordinates = header["kind"] == "coordinate"
            if coordinates:
                self._serve_coordinator(channel)
            elif header["kind"] == "join":
                self._serve_worker(channel)
        except ConnectionLostError as error:
            if coordinates:
                self._end(RankLostError(f"the first parameter server is gone: {error}"))
        except BaseException as error:  # noqa: BLE001  # raised by the main thread
            self._end(error)
        finally:
            channel.close()

    def _end(self, failure: BaseException | None = None) -> None:
        self._failure = self._failure or failure
        self._over.set()

    def _serve_coordinator(self, channel: Channel) -> None:
        while True:
            header = channel.receive()
            with self._lock:
                match header["kind"]:
                    case "state":
                        receive_state(channel, self._run, header)
                    case "segment":
                        self._epoch, self._iterations = header["epoch"], range(header["first"], header["end"])
                        self._settings = settings_from_json(header["settings"])
                        self._counted, self._updates = set(), 0
                        channel.send({"kind": "ready"})
                    case "collect":
                        send_state(channel, self._run, self._names, {"pulled_bytes": self._pulled_bytes})
                    case _:
                        self._end()
                        return

    def _serve_worker(self, channel: Channel) -> None:
        trained = trained_of(self._stage, self._names)
        weights, gradient = FlatTensors(trained), FlatTensors(trained)
        channel.send({"kind": "joined"})
        while True:
            header = channel.receive()
            if header["kind"] == "pull":
                with self._lock:
                    weights.put(self._stage.versions.trained)
                    self._pulled_bytes += weights.memory.nbytes
                channel.send({"kind": "weights"}, weights.memory)
            else:
                channel.receive_into(gradient.memory, header)
                with self._lock:
                    self._take(header, gradient)
                channel.send({"kind": "taken"})

    def _take(self, header: Header, gradient: FlatTensors) -> None:
        item = WorkItem(header["iteration"], header["number"])
        if header["epoch"] != self._epoch or item.iteration not in self._iterations or item in self._counted:
            return
        self._counted.add(item)
        if self._weights.add(item.number, gradient.without(header.get("absent", ())), self._settings[self._updates]):
            self._updates += 1
