"""Command init: a project from an example, from ONNX files, or blank."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jellybean.cli.app import Json, app, example
from jellybean.cli.console import out, print_json, said_if_long
from jellybean.display import formats
from jellybean.errors import JellyBeanError
from jellybean.quantities import did_you_mean
from jellybean_protos.extras import install_command

if TYPE_CHECKING:
    from jellybean.documents.draft.project_files import Drafted

_ALIGNED = 64  # characters of the longest command with whose end the purposes of all commands are aligned
_FORMS = "EXAMPLE DIR, DIR --from MODEL.onnx ..., or DIR --blank"


class Example(StrEnum):
    """Example projects that `init` can copy."""

    DIGITS = "digits"
    SPLIT = "split"
    VQA = "vqa"
    TWO_WORKFLOWS = "two-workflows"
    PIPELINE = "pipeline"
    OCR = "ocr"
    LISTEN = "listen"


_OCR_STEPS = " ".join(
    f"--allow-python ocr_steps:{name}" for name in ("decode", "cut_lines", "thumbnail", "turn", "spell", "join")
)
_STEPS = {
    Example.DIGITS: (
        ("profile", "measure its models on this machine"),
        ("plan", "choose models, place operators"),
        ("simulate", "predict latency and the highest sustained rate"),
        ("up --detach", "serve the plan on this machine"),
        ("bench", "measure it under the declared load"),
        ("report", "compare predictions with measurements"),
        ("down", "stop it"),
    ),
    Example.SPLIT: (
        ("profile", "measure its models and their stages on this machine"),
        ("plan", "choose a model, where to cut it, and where its stages run"),
        ("up --detach", "serve the plan on this machine"),
        ("bench", "measure it under the declared load"),
        ("report", "compare predictions with measurements"),
        ("down", "stop it"),
    ),
    Example.VQA: (
        ("plan", "choose models, place operators; its profiles are published figures"),
        ("explain", "why this plan, and the alternatives"),
        ("frontier", "cost as a function of accuracy"),
    ),
    Example.TWO_WORKFLOWS: (
        ("plan", "plan both workflows together on one fleet; its profiles are included"),
        ("simulate", "predict latency and throughput of each"),
    ),
    Example.PIPELINE: (
        ("train", "train a small transformer on this machine; needs the extra `train` and scikit-learn"),
        ("train --fresh --set devices=2", "the same as a pipeline of two processes"),
    ),
    Example.OCR: (
        (f"profile {_OCR_STEPS}", "measure its models on this machine"),
        ("plan", "choose models, place operators"),
        (f"up --detach {_OCR_STEPS}", "serve the plan on this machine"),
        ("bench", "measure it under the declared load"),
        ("report", "compare predictions with measurements"),
        ("down", "stop it"),
    ),
    Example.LISTEN: (
        ("profile", "measure its models on this machine"),
        ("plan", "choose a model, and the boxes that hear the streams"),
        ("up --detach", "serve the plan on this machine"),
        ("bench", "send as many streams as were planned, and measure"),
        ("down", "stop it"),
    ),
}
_NOT_COPIED = frozenset({"__pycache__", ".jellybean", "plan.json", "training"})  # what running an example leaves there
_NEEDED_MODULES = {Example.OCR: ("rapidocr", "rapidocr_onnxruntime", "cv2", "pyclipper")}
_MAKE = "make.py"  # the script of an example that makes what is not shipped with it


@app.command(
    epilog=example(
        "jellybean init digits my-digits",
        "jellybean init my-project --from models/*.onnx",
        "jellybean init my-project --from models/*.onnx --data heldout.npz",
        "jellybean init my-project --blank",
    )
)
def init(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="[EXAMPLE] DIR",
            show_default=False,
            help="An example (digits, split, ocr and listen can be served on this machine, vqa and two-workflows are "
            "for planning only, pipeline for training only) and the folder to create; with --from or --blank only the "
            "folder.",
        ),
    ],
    models: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="MODEL.onnx ...",
            help="ONNX files, or folders of them: they become operators with variants, by their names and shapes.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npz",
            help="With --from: held-out requests, an array for each source, one request a row; and an array named "
            "labels. By default the inputs are random numbers.",
        ),
    ] = None,
    blank: Annotated[bool, typer.Option("--blank", help="Write commented skeletons of the documents.")] = False,
    json: Json = False,
) -> None:
    """Start a project: copy an example, draft its documents from ONNX files, or write commented skeletons."""
    if data is not None and not models:
        raise typer.BadParameter("--data needs --from MODEL.onnx")
    if models and blank:
        raise typer.BadParameter("--from and --blank exclude each other")
    if models:
        started = _init_from(names, models, data)
    elif blank:
        started = _init_blank(_only_folder(names, "--blank"))
    else:
        started = _init_example(names)
    if json:
        print_json(started.to_dict())
    else:
        out.print(f"{started.directory}: {started.text}; next commands:", soft_wrap=True)
        _print_next(started.next_commands)


@dataclass(frozen=True)
class _Started:
    """The project that was started. `text`: what was written. `next_commands`: command -> purpose."""

    directory: Path
    text: str
    next_commands: Mapping[str, str]
    drafted: Drafted | None = None

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values; the operators and sources of a draft."""
        commands = [{"command": command, "purpose": purpose} for command, purpose in self.next_commands.items()]
        found: dict[str, Any] = {"directory": str(self.directory), "text": self.text, "next": commands}
        if self.drafted is not None:
            draft, array_of = self.drafted.draft, self.drafted.array_of
            found["operators"] = {operator.name: list(operator.variants) for operator in draft.operators}
            found["sources"] = {source.name: array_of.get(source.name) for source in draft.sources}
        return found


def _init_example(names: Sequence[str]) -> _Started:
    known = [item.value for item in Example]
    if len(names) == 1 and names[0] in known:
        raise typer.BadParameter(f"missing the folder to create: jellybean init {names[0]} my-{names[0]}")
    if len(names) != 2:
        raise typer.BadParameter(f"write {_FORMS}")
    if names[0] not in known:
        hint = did_you_mean(names[0], known) or f"examples: {', '.join(known)}"
        raise typer.BadParameter(f"{names[0]!r} is not an example; {hint}")
    name, directory = Example(names[0]), Path(names[1])
    _check_needed(name)
    copy_example(name, directory)
    if (directory / _MAKE).exists():
        make_example(name, directory)
    return _Started(directory, f"copied from the example {name.value}", _commands(directory, _STEPS[name]))


def _init_blank(directory: Path) -> _Started:
    from jellybean.documents.draft.project_files import write_blank

    write_blank(directory)
    commands = _commands(directory, (("validate", "lists what is still to be written"),))
    return _Started(directory, "wrote workflow.yaml and infrastructure.yaml", commands)


def _init_from(names: Sequence[str], models: Sequence[Path], data: Path | None) -> _Started:
    """Draft a project. A shell's `--from *.onnx` gives the files after the first as arguments."""
    from jellybean.documents.draft.project_files import write_draft
    from jellybean.documents.draft.text import HELD_OUT_FILE

    more = [name for name in names if name.endswith(".onnx")]
    directory = _only_folder([name for name in names if name not in more], "--from")
    files = list(dict.fromkeys([*models, *map(Path, more)]))
    written = write_draft(directory, files, data)
    steps = [
        ("validate", "lists what to check and to write"),
        ("profile", "measure the models on this machine"),
        ("plan", "choose models, place operators"),
        ("up --detach", "serve the plan on this machine"),
    ]
    rows = (f"{name}={directory / HELD_OUT_FILE}#{array}[0]" for name, array in written.array_of.items())
    inputs = "".join(f" --input {shlex.quote(row)}" for row in rows)
    infer = {f"jellybean infer {shlex.quote(str(directory))}{inputs}": "send one request"}
    return _Started(directory, _drafted_text(written), {**_commands(directory, steps), **infer}, written)


def _drafted_text(written: Drafted) -> str:
    draft = written.draft
    models = sum(len(operator.variants) for operator in draft.operators)
    operators = ", ".join(
        operator.name + (f" ({', '.join(operator.variants)})" if len(operator.variants) > 1 else "")
        for operator in draft.operators
    )
    sources = ", ".join(source.name for source in draft.sources)
    return f"{formats.count(models, 'model')}, operators {operators}, from {sources}"


def _only_folder(names: Sequence[str], option: str) -> Path:
    if len(names) != 1:
        given = f"; given: {', '.join(names)}" if names else ""
        raise typer.BadParameter(f"{option} takes one folder DIR{given}")
    return Path(names[0])


def _commands(directory: Path, steps: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Command -> its purpose."""
    return {f"jellybean {step} {shlex.quote(str(directory))}": purpose for step, purpose in steps}


def _print_next(commands: Mapping[str, str]) -> None:
    """Print the commands with their purposes, aligned behind all commands but very long ones."""
    width = max((len(line) for line in commands if len(line) <= _ALIGNED), default=0)
    for line, purpose in commands.items():
        out.print(f"  {line:{width}}  # {purpose}", soft_wrap=True)


def copy_example(name: Example, directory: Path) -> None:
    """Copy an example project to `directory`. JellyBeanError if that is not empty.

    A copy that fails leaves nothing there, so that the command can be run again.
    """
    if directory.exists() and any(directory.iterdir() if directory.is_dir() else [directory]):
        raise JellyBeanError(f"{directory} exists and is not empty; choose another folder")
    source, is_new = _examples() / name.value, not directory.exists()
    files = [path.relative_to(source) for path in sorted(source.rglob("*")) if path.is_file()]
    try:
        for file in (file for file in files if not _NOT_COPIED.intersection(file.parts)):
            (directory / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / file, directory / file)
    except OSError:
        for path in directory.iterdir() if directory.is_dir() else ():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if is_new and directory.is_dir():
            directory.rmdir()
        raise


def _check_needed(name: Example) -> None:
    """JellyBeanError unless the packages that the example takes its models from, or computes with, are installed."""
    missing = [module for module in _NEEDED_MODULES.get(name, ()) if importlib.util.find_spec(module) is None]
    if missing:
        raise JellyBeanError(f"the example {name.value} needs {', '.join(missing)}: {install_command(name.value)}")


def make_example(name: Example, directory: Path) -> None:
    """Run the example's script in the copied folder and write the hashes of the models that it made.

    The script is a process of its own, so that its libraries are not loaded here. If it fails or is interrupted, the
    folder is removed; JellyBeanError says why.
    """
    from jellybean.documents.hashes import write_hashes, wrong_hashes

    command = [sys.executable, _MAKE]
    try:
        with said_if_long(f"init: makes models and held-out data of {name.value}, about a minute"):
            made = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
        if made.returncode:
            lines = made.stderr.strip().splitlines() or [f"it ended with status {made.returncode}"]
            raise JellyBeanError(f"the example {name.value} could not be made: {lines[-1]}")
    except BaseException:
        shutil.rmtree(directory)  # half an example would be in the way of the next try
        raise
    write_hashes(wrong_hashes(directory))


def _examples() -> Path:
    """The folder of example projects: in a checkout next to the package, in a wheel inside the package."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "examples", package.parent / "examples"):
        if (folder / "vqa" / "workflow.yaml").exists():
            return folder
    raise JellyBeanError(f"the examples are missing from this installation ({package})")
