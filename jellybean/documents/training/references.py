"""Checks that the functions, files and folders that training.yaml names exist on this machine."""

from __future__ import annotations

from pathlib import Path

from jellybean.documents.checks.function_references import check_reference
from jellybean.documents.schema.reader import DocPath, Tree
from jellybean.documents.training.data import FUNCTION
from jellybean.quantities import InvalidValueError, did_you_mean, quoted

RUN_FOLDER = "training"  # of checkpoints, logs and the trained model, beside the document


def check_references(tree: Tree, directory: Path) -> None:
    """Add missing functions and data folders to the tree's problems, even if the document has other problems."""
    data = tree.data if isinstance(tree.data, dict) else {}
    if isinstance(data.get("weights"), str):
        _check_weights(tree, directory, data["weights"])
    spec = data.get("data")
    settings = spec if isinstance(spec, dict) else {}
    functions: dict[DocPath, object] = {(key,): data.get(key) for key in ("model", "stages", "data", "loss")}
    functions["data", "function"] = settings.get("function")
    for key, names in (("loss", ("function", "counts")), ("optimizer", ("name",)), ("lr_schedule", ("name",))):
        part = data.get(key)
        functions |= {(key, name): part.get(name) for name in names if isinstance(part, dict)}
    metrics = data.get("metrics")
    functions |= {("metrics", place): text for place, text in enumerate(metrics if isinstance(metrics, list) else ())}
    for path, value in functions.items():
        if isinstance(value, str) and FUNCTION.fullmatch(value):
            try:
                check_reference(directory, value)
            except InvalidValueError as error:
                tree.add(path, str(error), error.hint)
    folder, table = settings.get("folder"), settings.get("csv")
    if isinstance(folder, str) and "\0" not in folder and not (directory / folder).is_dir():
        siblings = [item.name for item in directory.iterdir() if item.is_dir()]
        _add_missing(tree, ("data", "folder"), f"there is no folder {quoted(folder)}", did_you_mean(folder, siblings))
    if isinstance(table, str) and "\0" not in table and not (directory / table).is_file():
        siblings = [item.name for item in directory.glob("*.csv")]
        _add_missing(tree, ("data", "csv"), f"there is no file {quoted(table)}", did_you_mean(table, siblings))


def _check_weights(tree: Tree, directory: Path, weights: str) -> None:
    if "\0" in weights or not (directory / weights).exists():
        tree.add(("weights",), f"there is no file or folder {quoted(weights)}", f"looked in {directory}")
    elif (directory / weights).resolve().is_relative_to((directory / RUN_FOLDER).resolve()):
        hint = f"move it out of {RUN_FOLDER}/, which --fresh deletes"
        tree.add(("weights",), f"this run itself writes {quoted(weights)}", hint)


def _add_missing(tree: Tree, path: DocPath, message: str, hint: str) -> None:
    tree.add(path, message, hint or f"looked in {Path(tree.file).parent}")
