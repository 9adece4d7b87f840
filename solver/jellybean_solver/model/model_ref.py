"""What a variant executes: model files or a Python function, each identified by its hash."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PythonRef:
    """A function, `module:name`, with its arguments as JSON. `module_sha256`: hash of its module's source code."""

    function: str
    arguments: str
    module_sha256: str


@dataclass(frozen=True, slots=True)
class ModelPorts:
    """A variant's names of its model's inputs and outputs.

    `inputs`: upstream -> model input. `output`: sent where an edge names none; None: the first. `outputs`: an edge's
    `output` -> model output. `rows`: the output with the number of rows of each request of a batch that is fanned out,
    `rows_of`: the same by output, where their numbers differ. `gathered_rows`: upstream that is gathered -> the input
    with the number of its rows of each request. `constants`: input -> the value that it takes in each run, as JSON.
    """

    inputs: Mapping[str, str] = field(default_factory=dict, hash=False)
    output: str | None = None
    outputs: Mapping[str, str] = field(default_factory=dict, hash=False)
    rows: str | None = field(default=None, metadata={"said": "if it is named"})
    rows_of: Mapping[str, str] = field(default_factory=dict, hash=False, metadata={"said": "if there are any"})
    gathered_rows: Mapping[str, str] = field(default_factory=dict, hash=False, metadata={"said": "if there are any"})
    constants: Mapping[str, str] = field(default_factory=dict, hash=False, metadata={"said": "if there are any"})


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of a model: path relative to the project's folder, its sha256 and size."""

    path: str
    sha256: str
    size_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class ModelRef:
    """What a variant executes: a model file, or a Python function installed on the workers; identified by its hash.

    `path`: relative to the project's folder, empty for a function. `sha256`: hash of the file, or of a function's
    source and arguments. `size_bytes`: size of the file, None if unknown. `ports`: the variant's names of its inputs
    and outputs, None if it gives none. `files`: the ONNX file and its data files, if it has data files;
    then `sha256` is of all of them, and `size_bytes` their sum.
    """

    path: str
    sha256: str
    size_bytes: float | None = None
    python: PythonRef | None = field(default=None, metadata={"said": "of functions"})
    ports: ModelPorts | None = field(default=None, metadata={"said": "of variants with names of their own"})
    files: tuple[ModelFile, ...] = field(default=(), metadata={"said": "of models with data files"})

    @property
    def all_files(self) -> tuple[ModelFile, ...]:
        """Every file that a worker needs, each with its own hash."""
        return self.files or (ModelFile(self.path, self.sha256, self.size_bytes),)
