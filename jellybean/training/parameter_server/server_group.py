"""The further servers as the first one sees them: it gives them the state that it resumes from, and collects theirs."""

from __future__ import annotations

from collections.abc import Sequence

from jellybean.documents.training import TrainingDocument
from jellybean.training.errors import RankLostError
from jellybean.training.parameter_server.channel import Channel, connect
from jellybean.training.parameter_server.rendezvous import Rendezvous
from jellybean.training.parameter_server.shards import divide_weights
from jellybean.training.parameter_server.states import receive_state, send_state, settings_to_json
from jellybean.training.parameter_server.weights import sizes_of, stage_of
from jellybean.training.setup import RankRun
from jellybean.training.stages.updates import GroupSettings


class ServerGroup:
    """Connections to the further servers. `pulled_bytes`: weights that workers received from each, until `collect`."""

    def __init__(self, run: RankRun, document: TrainingDocument) -> None:
        self._run, self._timeout_s = run, document.timeout_s
        self._names = divide_weights(sizes_of(stage_of(run)), document.sync.servers)[1:]
        self._channels: list[Channel] = []
        self.pulled_bytes = [0] * len(self._names)

    def connect(self, meeting: Rendezvous) -> None:
        """Connect to all, and give each the state of its weights."""
        for number, names in enumerate(self._names, 1):
            channel = connect(meeting.address(number), meeting.key(), self._timeout_s)
            self._channels.append(channel)
            channel.send({"kind": "coordinate"})
            send_state(channel, self._run, names, {"kind": "state"})

    def begin_segment(self, epoch: int, iterations: range, settings: Sequence[GroupSettings]) -> None:
        """Announce iterations, before any work item of them is handed out."""
        place = {"epoch": epoch, "first": iterations.start, "end": iterations.stop}
        for channel in self._channels:
            channel.send({"kind": "segment", **place, "settings": settings_to_json(settings)})
        for channel in self._channels:
            if channel.receive()["kind"] != "ready":
                raise RankLostError("a parameter server does not answer")

    def collect(self) -> None:
        """Take weights, averages and optimizer states of all servers into this process's run, to measure and save."""
        for number, channel in enumerate(self._channels):
            channel.send({"kind": "collect"})
            header = channel.receive()
            receive_state(channel, self._run, header)
            self.pulled_bytes[number] = header["pulled_bytes"]

    def end(self) -> None:
        """Tell all that the run is over."""
        for channel in self._channels:
            channel.send({"kind": "end"})

    def close(self) -> None:
        """Close the connections."""
        for channel in self._channels:
            channel.close()
