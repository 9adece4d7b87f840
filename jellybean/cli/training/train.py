"""Command train: its options, and which of its ways to run they ask for."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from jellybean.cli.app import Json, Overrides, app, example
from jellybean.cli.training.job import JobOptions, print_job
from jellybean.cli.training.run import check_installed, silent_end_of_rank, train_here, train_under_launcher
from jellybean.documents import require_folder

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder with training.yaml.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start from scratch; existing checkpoints are deleted.")]
Render = Annotated[bool, typer.Option("--render", help="Only print the Kubernetes objects of the run.")]
Image = Annotated[str, typer.Option(metavar="IMAGE", help="With --render: image with jellybean-serving[train].")]
Claim = Annotated[str, typer.Option(metavar="NAME", help="With --render: volume claim that contains DIR.")]
FolderInClaim = Annotated[str, typer.Option(metavar="PATH", help="With --render: path of DIR in the claim.")]
Pods = Annotated[int, typer.Option(min=1, help="With --render: number of pods for the processes.")]
Gpu = Annotated[str, typer.Option(metavar="VENDOR", help="With --render: nvidia, amd, intel or an extended resource.")]
Memory = Annotated[
    str,
    typer.Option(
        metavar="SIZE", help="With --render: host memory of a process; 8 GiB with a GPU, otherwise estimated."
    ),
]


@app.command(
    epilog=example(
        "jellybean train my-digits",
        "jellybean train my-digits --set devices=2 --set schedule=1f1b",
        "torchrun --nproc-per-node 4 -m jellybean train my-digits --set devices=4",
        "jellybean train my-digits --render --image registry.example/train:1 --claim projects --pods 2",
    )
)
def train(
    directory: Folder,
    overrides: Overrides = None,
    fresh: Fresh = False,
    render: Render = False,
    image: Image = "",
    claim: Claim = "",
    folder: FolderInClaim = "",
    pods: Pods = 1,
    gpu: Gpu = "",
    memory: Memory = "",
    json: Json = False,
) -> None:
    """Train a model as described in training.yaml, resuming from the newest checkpoint. Starts its own processes."""
    from jellybean.training.processes.environment import started_by_launcher

    job = JobOptions(image, claim, folder, pods, gpu, memory)
    if not render:
        job.check_unused()
    with silent_end_of_rank() if started_by_launcher() else nullcontext():
        _train(directory, overrides or (), job if render else None, fresh=fresh, json=json)


def _train(directory: Path, overrides: Sequence[str], job: JobOptions | None, *, fresh: bool, json: bool) -> None:
    """Train, or print the objects of a `job`."""
    from jellybean.documents.training import load_training
    from jellybean.training.processes.environment import started_by_launcher

    require_folder(directory)
    document = load_training(directory, overrides, references=job is None)
    if job is not None:
        print_job(document, directory, overrides, job)
        return
    check_installed(document)
    if not started_by_launcher():
        train_here(document, directory, overrides, fresh=fresh, json=json)
    elif fresh:
        raise typer.BadParameter(
            f"--fresh under torchrun would start from scratch at every restart: delete {directory}/training instead"
        )
    else:
        train_under_launcher(document, directory, json=json)
