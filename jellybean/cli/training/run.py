"""Trains on this machine: in this process, in processes that are started here, or as one that torchrun has started."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from jellybean.cli.console import out, print_json, say, warn
from jellybean.cli.exit_status import EXIT_FAILURE, EXIT_TERMINATED
from jellybean.cli.failures import error_json, interrupt_behind
from jellybean.documents.training.references import RUN_FOLDER
from jellybean.errors import JellyBeanError
from jellybean.folders import require_plain, shell_text
from jellybean_protos.extras import install_command

if TYPE_CHECKING:
    from torch import nn

    from jellybean.documents.training import TrainingDocument
    from jellybean.training.checkpoints.position import Position
    from jellybean.training.epoch import EpochResult
    from jellybean.training.export import ExportedModel
    from jellybean.training.setup import RankRun
    from jellybean.training.train import RunEpoch, TrainedRun

_IDLE_NOTE_EPOCHS = 3  # idle time above the prediction is explained once, in one of the first so many epochs


def check_installed(document: TrainingDocument) -> None:
    """JellyBeanError if a package is missing that the run needs."""
    needed = {"torch": "train", "safetensors": "train", **({"peft": "lora"} if document.lora is not None else {})}
    missing = {name: extra for name, extra in needed.items() if importlib.util.find_spec(name) is None}
    if missing:
        raise JellyBeanError(f"{' and '.join(missing)} not installed: {install_command(*missing.values())}")


def train_here(
    document: TrainingDocument, directory: Path, overrides: Sequence[str], *, fresh: bool, json: bool
) -> None:
    """Train in this process, or in one per rank. `overrides`: for their command lines."""
    from jellybean.training.processes.threads import chosen_threads, usable_cores

    require_plain(directory / RUN_FOLDER)
    document = with_processes(document, usable_cores())
    for note in notes_on_devices(document):
        warn(note)
    with _stoppable(directory, json=json, fresh=fresh), chosen_threads(document.ranks, say):
        say("importing torch")
        from jellybean.training.processes.folder_lock import lock_folder

        with lock_folder(directory):
            if fresh:
                shutil.rmtree(directory / RUN_FOLDER, ignore_errors=True)
        if note := note_of_finished(document, directory):
            say(note)
        _check_export(document, directory)
        if document.ranks > 1:
            _launch(document, directory, overrides, json=json)
        else:
            _train(document, directory, json=json)


def with_processes(document: TrainingDocument, cores: int) -> TrainingDocument:
    """With `parallel: auto`, the document for a process per core, or more where it asks for more; others unchanged."""
    if document.parallel is None or document.processes is not None:
        return document
    return document.on(max(cores, document.device_processes))


def notes_on_devices(document: TrainingDocument) -> list[str]:
    """What a user may not expect of the devices that the document asks for."""
    notes = []
    if document.objective is not None and document.ranks == 1:
        notes.append("`objective` has nothing to plan on one device: --set devices=2, or more")
    if document.devices > 1 and document.microbatches == 1 and document.parallel is None and document.plan is None:
        notes.append(
            f"with one micro-batch per update, the {document.devices} devices mostly wait for each other: "
            f"--set microbatches={2 * document.devices}, or `parallel: auto`"
        )
    return notes


def note_of_finished(document: TrainingDocument, directory: Path) -> str:
    """That a run has nothing left to train, before its model is tried once more; empty if it has."""
    from jellybean.training.checkpoints.checkpoint import history_in
    from jellybean.training.checkpoints.position import checkpoint_folder, checkpoints_in
    from jellybean.training.early_stop import reason_to_stop

    newest = next(iter(checkpoints_in(checkpoint_folder(directory))), None)
    if newest is None:
        return ""
    done, path = newest
    why = "" if done.updates else reason_to_stop(document.early_stop, history_in(path))
    if done.epochs >= document.epochs:
        why = f"the document asks for {_epochs(document.epochs)}; --set epochs={done.epochs + 1} goes on"
    return f"nothing is left to train: {path} is after {done}, and {why}; --fresh starts over" if why else ""


def _epochs(count: int) -> str:
    return f"{count} epoch{'s' if count != 1 else ''}"


@contextmanager
def silent_end_of_rank() -> Iterator[None]:
    """A rank that its launcher ends says nothing, as the launcher does, and is gone once it has cleaned up."""
    try:
        yield
    except BaseException as error:
        if interrupt_behind(error) is None:
            raise
        _end_process(EXIT_TERMINATED)


def train_under_launcher(document: TrainingDocument, directory: Path, *, json: bool) -> None:
    """Train as one rank of a run whose processes were started by torch's launcher."""
    from jellybean.training.errors import ReportedError
    from jellybean.training.processes.launch import die_with_launcher

    die_with_launcher()
    try:
        _train(document, directory, json=json)
    except ReportedError:
        _end_process(EXIT_FAILURE)
    if document.sync.has_servers:
        _end_process(0)


def _end_process(status: int) -> None:
    """End at once: threads that wait for messages of other ranks abort a process that ends in the usual way."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


@contextmanager
def _stoppable(directory: Path, *, json: bool, fresh: bool) -> Iterator[None]:
    """On Ctrl-C or SIGTERM, print where the run resumes; exit status 128 + signal number, as in a shell.

    Begins before torch is imported, which takes seconds, and imports nothing that needs torch itself.
    """
    from jellybean.training.checkpoints.position import checkpoint_folder, newest_position
    from jellybean.training.errors import SignalledError

    def stop(number: int, _: object) -> None:
        raise SignalledError(number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except BaseException as error:
        stopped = interrupt_behind(error)
        if stopped is None:
            raise
        done = newest_position(checkpoint_folder(directory))
        command = "the same command without --fresh" if fresh and done else "the same command"
        message = (
            f"stopped after {done}; {command} resumes from it"
            if done
            else f"stopped before the first checkpoint; {command} starts from scratch"
        )
        if json:
            print_json(error_json("interrupted", message))
        warn(message)
        raise typer.Exit(128 + (stopped.number if isinstance(stopped, SignalledError) else signal.SIGINT)) from error
    finally:
        signal.signal(signal.SIGTERM, before)


def _launch(document: TrainingDocument, directory: Path, overrides: Sequence[str], *, json: bool) -> None:
    """Run this command in one process per rank; all are restarted if one dies, but for workers of a server."""
    from jellybean.training.checkpoints.position import checkpoint_folder, newest_position
    from jellybean.training.parameter_server.launch import run_server_processes
    from jellybean.training.processes.launch import run_processes

    def progress() -> Position | None:
        return newest_position(checkpoint_folder(directory))

    arguments = [
        *("-u", "-m", "jellybean", "train", str(directory)),
        *(part for text in overrides for part in ("--set", text)),
        *(["--json"] if json else []),
    ]
    if document.sync.has_servers:
        run_server_processes(arguments, document.replicas, document.sync.servers, warn, progress)
    else:
        run_processes(arguments, document.ranks, warn, progress)


def _train(document: TrainingDocument, directory: Path, *, json: bool) -> None:
    from jellybean.training.checkpoints.checkpoint import MODEL_FILE
    from jellybean.training.hand_back import trained_model, write_model
    from jellybean.training.logs import summary
    from jellybean.training.processes.ranks import fit_to_processes
    from jellybean.training.saving import run_folder

    document = fit_to_processes(document)
    with _opened(document, directory) as opened:
        if opened is None:
            return
        run, train_epoch = opened
        document = document if document.sync.has_servers else run.document  # with what was chosen
        trained = _run_epochs(run, document, directory, train_epoch)
        module = trained_model(run, document, directory)
        if not run.rank.is_first or module is None:
            return
        module = write_model(module, run_folder(directory))
        exported = _export(module, run, document, directory)
    if json:
        _print_json(run, trained, exported)
    else:
        out.print(summary(trained, run_folder(directory) / MODEL_FILE), soft_wrap=True)
    if exported is not None:
        say(f"next: jellybean profile {shell_text(directory)}; jellybean plan {shell_text(directory)}")


@contextmanager
def _opened(document: TrainingDocument, directory: Path) -> Iterator[tuple[RankRun, RunEpoch] | None]:
    """Context of this process's run and of what trains its epochs; None: it has done what it is for.

    The first rank, or the first parameter server, locks the folder.
    """
    from jellybean.training.epoch import run_epoch
    from jellybean.training.parameter_server.process import joined_run
    from jellybean.training.processes.folder_lock import lock_folder
    from jellybean.training.processes.ranks import process_group
    from jellybean.training.setup import set_up_rank

    if document.sync.has_servers:
        with joined_run(document, directory, warn) as joined:
            if joined is not None:
                _check_export(document, directory)
            with lock_folder(directory) if joined is not None else nullcontext():
                yield joined
        return
    with process_group(document) as rank, lock_folder(directory) if rank.is_first else nullcontext():
        if rank.is_first:
            _check_export(document, directory)
        run = set_up_rank(document, directory, rank, say)
        yield None if run is None else (run, run_epoch)


def _run_epochs(run: RankRun, document: TrainingDocument, directory: Path, train_epoch: RunEpoch) -> TrainedRun:
    """Train all epochs; the first rank reports and logs them."""
    from jellybean.training.logs import TrainingLogs, batch_note, headline, idle_note, line
    from jellybean.training.saving import run_folder
    from jellybean.training.train import train

    if not run.rank.is_first:
        return train(run, document, directory, lambda epoch: None, warn, train_epoch)
    say(headline(run, document))
    for note in filter(None, (batch_note(run.sampler), run.warning)):
        warn(note)
    notes_left = _IDLE_NOTE_EPOCHS
    with closing(TrainingLogs(run_folder(directory) / "logs", warn)) as logs:

        def report(epoch: EpochResult) -> None:
            nonlocal notes_left
            say(line(epoch, document.epochs))
            notes_left -= 1
            if notes_left >= 0 and (more := idle_note(epoch, os.getloadavg()[0], os.cpu_count() or 1)):
                say(more)
                notes_left = 0

        return train(run, document, directory, report, warn, train_epoch, logs.add)


def _check_export(document: TrainingDocument, directory: Path) -> None:
    """TrainingError if the workflow has no place for the trained model. onnxruntime is imported only for `export`."""
    if document.export is not None:
        from jellybean.training.export import check_export

        check_export(document.export, directory)


def _export(module: nn.Module, run: RankRun, document: TrainingDocument, directory: Path) -> ExportedModel | None:
    """Write the trained model as a variant of the workflow; None if the document has no `export`."""
    if document.export is None:
        return None
    from jellybean.training.export import EXPORT_ROWS, export_variant, served_arguments

    rows = served_arguments(run.data.test.example(EXPORT_ROWS).inputs, document.loss.function)
    exported = export_variant(module, document.export, directory, rows)
    say(
        f"wrote {exported.path} (differs from torch by at most {exported.max_difference:.1g}) and its variant in "
        "workflow.yaml"
    )
    for note in exported.notes:
        warn(note)
    return exported


def _exported_json(exported: ExportedModel) -> dict[str, object]:
    return {"model": str(exported.path), "sha256": exported.sha256, "notes": list(exported.notes)}


def _print_json(run: RankRun, trained: TrainedRun, exported: ExportedModel | None) -> None:
    from jellybean.training.epoch import epoch_json

    print_json(
        {
            "schedule": run.choice.name,
            "devices": run.document.devices,
            "replicas": run.document.replicas,
            "tensor": run.document.tensor.ways,
            "microbatches": run.document.microbatches,
            "choice": run.note,
            "stages": run.schedule.stages,
            "predicted_idle": run.choice.bubble,
            "rejected": run.choice.rejected,
            "epochs": [epoch_json(epoch) for epoch in trained.epochs],
            "model_epoch": trained.model_epoch,
            "exported": None if exported is None else _exported_json(exported),
        }
    )
