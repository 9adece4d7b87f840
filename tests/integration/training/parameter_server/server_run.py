"""A parameter server in this process, and two connections to it as of other processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from jellybean.documents import TrainingDocument, load_training
from jellybean.training import RankRun, process_group, set_up_run
from jellybean.training.parameter_server.channel import Channel, connect
from jellybean.training.parameter_server.listener import Listener
from jellybean.training.parameter_server.roles import Role, document_alone
from tests.support.training_runs import write_project

KEY = b"k" * 32


@contextmanager
def server_run(folder: Path, document: str, nets: str, number: int) -> Iterator[tuple[TrainingDocument, RankRun]]:
    """The document, and the set-up of parameter server `number` for it."""
    project = write_project(folder / "project", document, nets)
    training = load_training(project)
    alone = document_alone(training, Role(number, serves=True))
    with process_group(alone, workers=training.replicas) as rank:
        run = set_up_run(alone, project, rank)
        yield training, run
        run.transport.close()


@contextmanager
def two_connections(serve: Callable[[Channel], None]) -> Iterator[tuple[Channel, Channel]]:
    """Connections whose other ends `serve` gets."""
    with closing(Listener("127.0.0.1", KEY, serve)) as listener:
        place = ("127.0.0.1", listener.port)
        with closing(connect(place, KEY, 10)) as one, closing(connect(place, KEY, 10)) as other:
            yield one, other
