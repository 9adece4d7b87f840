"""Write the files of a new project: documents, models and held-out data."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jellybean.documents.draft.blank import BLANK_INFRASTRUCTURE, blank_workflow
from jellybean.documents.draft.heldout import read_data
from jellybean.documents.draft.models import DraftModel, group_variants, read_models, valid_name
from jellybean.documents.draft.text import HELD_OUT_FILE, draft_infrastructure, draft_workflow
from jellybean.documents.draft.trials import tried_inputs
from jellybean.documents.draft.wiring import Draft, wire
from jellybean.documents.layout import INFRASTRUCTURE_FILE, PROFILES_FILE, WORKFLOW_FILE, WORKFLOWS_FOLDER
from jellybean.errors import InputError
from jellybean.folders import require_no_link, write_output
from jellybean.tensor_files import write_archive
from jellybean_agent import ModelError, data_names, data_path

_MODELS_FOLDER = "models"


@dataclass(frozen=True)
class Drafted:
    """The draft that was written. `array_of`: source with held-out inputs -> its array. `refusals`: source for which no
    random inputs were taken -> why.
    """

    draft: Draft
    array_of: Mapping[str, str]
    refusals: Mapping[str, str] = field(default_factory=dict)


def require_new(directory: Path) -> None:
    """InputError if a project cannot be started in this folder, because it has documents already or is a file."""
    if directory.exists() and not directory.is_dir():
        raise InputError(f"{directory} is a file; a project is a folder")
    for name in (WORKFLOW_FILE, INFRASTRUCTURE_FILE, PROFILES_FILE, WORKFLOWS_FOLDER):
        if (directory / name).exists() or (directory / name).is_symlink():
            raise InputError(f"{directory} is a project already: it has {name}; choose another folder")


def write_blank(directory: Path) -> None:
    """Write a commented skeleton of workflow.yaml and infrastructure.yaml. InputError if `directory` is a project."""
    require_new(directory)
    directory.mkdir(parents=True, exist_ok=True)
    name = project_name(directory)
    write_output(directory / WORKFLOW_FILE, blank_workflow(name))
    write_output(directory / INFRASTRUCTURE_FILE, BLANK_INFRASTRUCTURE)


def write_draft(directory: Path, files: Sequence[Path], data: Path | None = None) -> Drafted:
    """Write a project for these ONNX files, copied into it unless they lie there, and for the held-out data.

    `data`: the user's arrays; random inputs by default. InputError if a file cannot be used; then nothing is written.
    """
    require_new(directory)
    models = read_models(files)
    draft = wire(group_variants(models))
    held_out = directory / HELD_OUT_FILE
    is_there = data is not None and held_out.exists() and held_out.samefile(data)
    if held_out.exists() and not is_there:
        raise InputError(f"{held_out} exists and would be overwritten; move it away, or give it with --data")
    given = tried_inputs(draft) if data is None else read_data(data, draft.sources)
    places, copies = _places(directory, models)
    for target, source in copies.items():
        require_no_link(target.parent, directory)
        target.parent.mkdir(parents=True, exist_ok=True)
        require_no_link(target, directory)
        shutil.copyfile(source, target)
    if given.arrays and not is_there:
        require_no_link(held_out.parent, directory)
        held_out.parent.mkdir(parents=True, exist_ok=True)
        require_no_link(held_out, directory)
        write_archive(held_out, given.arrays)
    text = draft_workflow(project_name(directory), draft, directory, places, given)
    write_output(directory / WORKFLOW_FILE, text)
    write_output(directory / INFRASTRUCTURE_FILE, draft_infrastructure())
    return Drafted(draft, given.array_of, given.refusals)


def project_name(directory: Path) -> str:
    """The workflow's name: that of its folder, as a valid name."""
    return valid_name(directory.resolve().name)


def _places(directory: Path, models: Sequence[DraftModel]) -> tuple[dict[str, str], dict[Path, Path]]:
    """(model -> its path in the project, target -> source of the files to copy).

    Models from elsewhere become models/NAME.onnx. Exporters give data files one name in every folder
    (`model.onnx_data`), so models whose files would replace each other's become models/NAME/NAME.onnx. InputError if a
    target exists, or a file is missing.
    """
    places = {model.name: _place(directory, model) for model in models}
    copies = {model.name: _copies(model.path, directory / places[model.name]) for model in models}
    clashing = _clashing(copies)
    for model in (one for one in models if one.name in clashing):
        places[model.name] = f"{_MODELS_FOLDER}/{model.name}/{model.name}.onnx"
        copies[model.name] = _copies(model.path, directory / places[model.name])
    if names := _clashing(copies):
        raise InputError(f"files of {', '.join(sorted(names))} would replace each other: copy them into the project")
    targets = {target: source for pairs in copies.values() for source, target in pairs}
    if existing := next((target for target in targets if target.exists()), None):
        raise InputError(f"{existing} exists; move it away, or choose another folder: {targets[existing]} goes there")
    return places, targets


def _clashing(copies: Mapping[str, Sequence[tuple[Path, Path]]]) -> set[str]:
    """The models with a target that is also that of another source."""
    users: dict[Path, dict[Path, set[str]]] = {}
    for name, pairs in copies.items():
        for source, target in pairs:
            users.setdefault(target, {}).setdefault(source.resolve(), set()).add(name)
    return {name for sources in users.values() if len(sources) > 1 for names in sources.values() for name in names}


def _place(directory: Path, model: DraftModel) -> str:
    """The model's path in the project: models/NAME.onnx for a file from elsewhere. InputError if that exists."""
    if model.path.resolve().is_relative_to(directory.resolve()):
        return model.path.resolve().relative_to(directory.resolve()).as_posix()
    target = directory / _MODELS_FOLDER / f"{model.name}.onnx"
    if target.exists():
        raise InputError(f"{target} exists; name it instead of {model.path}, or choose another folder")
    return target.relative_to(directory).as_posix()


def _copies(model: Path, target: Path) -> list[tuple[Path, Path]]:
    """(source, target) of a model's files; data files keep their names. InputError if one is missing."""
    if target.exists() and target.samefile(model):
        return []
    try:
        copies = [(model, target), *((data_path(model, name), data_path(target, name)) for name in data_names(model))]
    except ModelError as error:
        raise InputError(str(error)) from error
    if missing := next((source for source, _ in copies if not source.is_file()), None):
        raise InputError(f"model {model.name} keeps weights in {missing.name}: there is no such file; copy it there")
    return copies
