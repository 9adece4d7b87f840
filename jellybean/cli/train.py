"""Command train: train a model with pipeline parallelism, on this machine or with torchrun."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

import typer

from jellybean.cli.app import Json, Overrides, app, example
from jellybean.cli.console import EXIT_FAILURE, out, print_json, say, warn
from jellybean.cli.failures import error_json
from jellybean.errors import JellyBeanError
from jellybean.quantities import SIZE, InvalidValueError, parse_quantity

if TYPE_CHECKING:
    from jellybean.documents.training import TrainingDocument
    from jellybean.training.epoch import EpochResult
    from jellybean.training.export import ExportedModel
    from jellybean.training.setup import RankRun

_CLAIM = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_RESOURCE = re.compile(r"[a-z0-9][-a-z0-9.]*/[A-Za-z0-9][-._A-Za-z0-9]*")
_IDLE_NOTE_EPOCHS = 3  # idle time above the prediction is explained once, in one of the first so many epochs
HOST_BYTES, HOST_BYTES_ON_GPU = (
    2.0 * 2**30,
    8.0 * 2**30,
)  # bytes of host memory of a process: Python, torch and data; with a GPU also the CUDA context


@app.command(
    epilog=example(
        "jellybean train my-digits",
        "jellybean train my-digits --set devices=2 --set schedule=1f1b",
        "torchrun --nproc-per-node 4 -m jellybean train my-digits --set devices=4",
        "jellybean train my-digits --render --image registry.example/train:1 --claim projects --pods 2",
    )
)
def train(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder with training.yaml.")],
    overrides: Overrides = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start from scratch; existing checkpoints are deleted.")
    ] = False,
    render: Annotated[bool, typer.Option("--render", help="Only print the Kubernetes objects of the run.")] = False,
    image: Annotated[
        str, typer.Option(metavar="IMAGE", help="With --render: image with jellybean-serving[train].")
    ] = "",
    claim: Annotated[str, typer.Option(metavar="NAME", help="With --render: volume claim that contains DIR.")] = "",
    folder: Annotated[str, typer.Option(metavar="PATH", help="With --render: path of DIR in the claim.")] = "",
    pods: Annotated[int, typer.Option(min=1, help="With --render: number of pods for the processes.")] = 1,
    gpu: Annotated[
        str, typer.Option(metavar="VENDOR", help="With --render: nvidia, amd, intel or an extended resource.")
    ] = "",
    memory: Annotated[
        str,
        typer.Option(
            metavar="SIZE", help="With --render: host memory of a process; 8 GiB with a GPU, otherwise estimated."
        ),
    ] = "",
    json: Json = False,
) -> None:
    """Train a model as described in training.yaml, resuming from the newest checkpoint. Starts its own processes."""
    from jellybean.documents.training import load_training

    given = {"--image": image, "--claim": claim, "--folder": folder, "--gpu": gpu, "--memory": memory}
    render_only = [name for name, value in given.items() if value] + ["--pods"] * (pods > 1)
    if render_only and not render:
        raise typer.BadParameter(f"{render_only[0]} needs --render")
    document = load_training(directory, overrides or (), references=not render)
    if render:
        _render(document, directory, tuple(overrides or ()), (image, claim, folder, pods, gpu), memory)
        return
    needed = {"torch": "train", "safetensors": "train", **({"peft": "lora"} if document.lora is not None else {})}
    missing = {name: extra for name, extra in needed.items() if importlib.util.find_spec(name) is None}
    if missing:
        extras = ",".join(dict.fromkeys(missing.values()))
        raise JellyBeanError(f"{' and '.join(missing)} not installed: pip install 'jellybean-serving[{extras}]'")
    from jellybean.training.errors import ReportedError
    from jellybean.training.export import check_export
    from jellybean.training.processes.launch import die_with_launcher, lock_folder
    from jellybean.training.processes.ranks import started_by_launcher
    from jellybean.training.saving import run_folder

    if started_by_launcher() and fresh:
        raise typer.BadParameter(
            f"--fresh under torchrun would start from scratch at every restart: delete {directory}/training instead"
        )
    if started_by_launcher():
        die_with_launcher()
        try:
            _train(document, directory, json=json)
        except ReportedError:
            _end_process(EXIT_FAILURE)
        return
    with _stoppable(run_folder(directory) / "checkpoints", json=json, fresh=fresh):
        with lock_folder(directory):
            if fresh:
                shutil.rmtree(run_folder(directory), ignore_errors=True)
        check_export(document.export, directory)
        if document.ranks > 1:
            _launch(document, directory, overrides or [], json=json)
        else:
            _train(document, directory, json=json)


def _end_process(status: int) -> None:
    """End at once: threads that wait for messages of other ranks abort a process that ends in the usual way."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


@contextmanager
def _stoppable(checkpoints: Path, *, json: bool, fresh: bool) -> Iterator[None]:
    """On Ctrl-C or SIGTERM, print where the run resumes; exit status 128 + signal number, as in a shell."""
    from jellybean.training.checkpoints.checkpoint import newest_position
    from jellybean.training.errors import SignalledError

    def stop(number: int, _: object) -> None:
        raise SignalledError(number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt as stopped:
        done = newest_position(checkpoints)
        command = "the same command without --fresh" if fresh and done else "the same command"
        message = (
            f"stopped after {done}; {command} resumes from it"
            if done
            else f"stopped before the first checkpoint; {command} starts from scratch"
        )
        if json:
            print_json(error_json("interrupted", message))
        warn(message)
        raise typer.Exit(128 + (stopped.number if isinstance(stopped, SignalledError) else signal.SIGINT)) from stopped
    finally:
        signal.signal(signal.SIGTERM, before)


def _render(
    document: TrainingDocument,
    directory: Path,
    overrides: tuple[str, ...],
    where: tuple[str, str, str, int, str],
    memory: str,
) -> None:
    from jellybean.documents.checks.files import sha256_of
    from jellybean.documents.training import TRAINING_FILE
    from jellybean_k8s import GPU_RESOURCES, TrainingJob, training_objects, yaml_documents

    image, claim, folder, pods, gpu = where
    if not image or not claim:
        raise typer.BadParameter("--render needs --image (for the pods) and --claim (the volume with DIR)")
    if not _CLAIM.fullmatch(claim):
        raise typer.BadParameter(
            f"--claim {claim}: not a valid claim name; use lower-case letters, digits, '-' and '.'"
        )
    if PurePosixPath(folder).is_absolute() or ".." in PurePosixPath(folder).parts:
        raise typer.BadParameter(f"--folder {folder}: write the path of DIR in the claim, for example runs/digits")
    if gpu and gpu not in GPU_RESOURCES and not _RESOURCE.fullmatch(gpu):
        known = ", ".join(GPU_RESOURCES)
        raise typer.BadParameter(f"--gpu {gpu}: write {known}, or an extended resource such as vendor.example/gpu")
    if document.ranks % pods:
        raise typer.BadParameter(f"--pods {pods} does not divide the {document.ranks} processes (devices x replicas)")
    version = importlib.metadata.version("jellybean-serving")
    job = TrainingJob(
        *(directory.resolve().name, image, claim, pods, document.ranks // pods, version),
        folder=folder,
        gpu=gpu or None,
        memory_bytes=_host_memory_bytes(document, memory, on_gpu=bool(gpu)),
        overrides=overrides,
        document_sha256=sha256_of(directory / TRAINING_FILE),
    )
    print(yaml_documents(training_objects(job)), end="")


def _host_memory_bytes(document: TrainingDocument, given: str, *, on_gpu: bool) -> float:
    """Host memory of a process in bytes: `given` (option --memory) if not empty, otherwise an estimate.

    On a CPU, the estimate includes the device memory that the document declares.
    """
    if given:
        try:
            return parse_quantity(SIZE, given)
        except InvalidValueError as error:
            raise typer.BadParameter(f"--memory: {error}; {error.hint}") from error
    return HOST_BYTES_ON_GPU if on_gpu else HOST_BYTES + (document.memory_bytes or 0.0)


def _launch(document: TrainingDocument, directory: Path, overrides: list[str], *, json: bool) -> None:
    """Run this command in one process per rank; all are restarted if one dies."""
    from jellybean.training.processes.launch import run_processes

    arguments = [
        *("-u", "-m", "jellybean", "train", str(directory)),
        *(part for text in overrides for part in ("--set", text)),
        *(["--json"] if json else []),
    ]
    run_processes(arguments, document.ranks, warn)


def _train(document: TrainingDocument, directory: Path, *, json: bool) -> None:
    from jellybean.training.export import EXPORT_ROWS, check_export, export_variant, served_arguments
    from jellybean.training.hand_back import trained_model, write_model
    from jellybean.training.logs import TrainingLogs, headline, idle_note, line
    from jellybean.training.processes.launch import lock_folder
    from jellybean.training.processes.ranks import fit_to_processes, process_group
    from jellybean.training.saving import run_folder
    from jellybean.training.setup import set_up_run
    from jellybean.training.train import train as run_epochs

    document = fit_to_processes(document)
    with process_group(document) as rank, lock_folder(directory) if rank.is_first else nullcontext():
        if rank.is_first:
            check_export(document.export, directory)
        run = set_up_run(document, directory, rank)
        logs = TrainingLogs(run_folder(directory) / "logs", warn) if rank.is_first else None
        if rank.is_first:
            say(headline(run, document))
        notes_left = _IDLE_NOTE_EPOCHS

        def report(epoch: EpochResult) -> None:
            nonlocal notes_left
            say(line(epoch, document.epochs))
            notes_left -= 1
            if notes_left >= 0 and (more := idle_note(epoch)):
                say(more)
                notes_left = 0
            if logs is not None:
                logs.add(epoch)

        epochs = run_epochs(run, document, directory, report, warn)
        module = trained_model(run, document, directory)
        if logs is None or module is None:
            return
        logs.close()
        module = write_model(module, run_folder(directory))
        exported = None
        if document.export is not None:
            rows = served_arguments(run.data.test.example(EXPORT_ROWS).inputs, document.loss)
            exported = export_variant(module, document.export, directory, rows)
            say(
                f"wrote {exported.path} (differs from torch by at most {exported.max_difference:.1g}) "
                "and its variant in "
                "workflow.yaml"
            )
    _print_result(run, epochs, exported, json=json)
    if exported is not None:
        say(f"next: jellybean profile {directory}; jellybean plan {directory}")


def _print_result(run: RankRun, epochs: list[EpochResult], exported: ExportedModel | None, *, json: bool) -> None:
    from jellybean.training.epoch import epoch_json
    from jellybean.training.logs import measured

    if json:
        print_json(
            {
                "schedule": run.choice.name,
                "stages": run.schedule.stages,
                "predicted_idle": run.choice.bubble,
                "rejected": run.choice.rejected,
                "epochs": [epoch_json(epoch) for epoch in epochs],
                "exported": None if exported is None else {"model": str(exported.path), "sha256": exported.sha256},
            }
        )
    elif epochs:
        out.print(f"trained {len(epochs)} epochs: loss {epochs[-1].loss:.4f}{measured(epochs[-1])}")
    else:
        out.print("all epochs are done; for more: --set epochs=N, from scratch: --fresh")
