"""Where the data of training.yaml comes from: a function, a CSV file or a labelled folder. Does not import torch."""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Discriminator, Field, Tag

from jellybean.documents.schema.fields import DocumentModel
from jellybean.quantities import InvalidValueError, quoted

FUNCTION = re.compile(r"[^:\s]+:[A-Za-z_]\w*")


def _function(text: str) -> str:
    if not FUNCTION.fullmatch(text):
        raise InvalidValueError(
            f"{quoted(text)} does not name a function", "write FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION"
        )
    return text


TrainingFunction = Annotated[str, AfterValidator(_function)]
Count = Annotated[int, Field(ge=1)]
Processes = Annotated[int, Field(ge=1, le=65536)]


class FolderSpec(DocumentModel):
    """Images in folders named by label: FOLDER/LABEL/*.png."""

    folder: str
    size: Annotated[int, Field(ge=1, le=4096)] = Field(description="Images are resized to SIZE x SIZE.")
    channels: Literal[1, 3] = 3
    heldout: Annotated[float, Field(strict=False, gt=0, lt=1)] = Field(
        default=0.2, description="Share held out for the test."
    )


class CsvSpec(DocumentModel):
    """A table with a header: numbers, and a target of numbers or, for cross_entropy, of classes."""

    csv: Annotated[str, Field(min_length=1)] = Field(description="File, relative to the folder.")
    target: Annotated[str, Field(min_length=1)] = Field(description="Column of the target.")
    columns: Annotated[tuple[str, ...], Field(min_length=1, strict=False)] | None = Field(
        default=None, description="Columns of the inputs, in this order; all others by default."
    )
    heldout: Annotated[float, Field(strict=False, gt=0, lt=1)] = Field(
        default=0.2, description="Share held out for the test."
    )


class FunctionSpec(DocumentModel):
    """A function that returns the data, with settings of data sets and streams."""

    function: TrainingFunction
    workers: Annotated[int, Field(ge=0, le=256)] | None = Field(
        default=None, description="Processes that read rows, of each rank; by default a DataLoader's, otherwise 0."
    )
    rows_per_epoch: Count | None = Field(default=None, description="Training rows of an epoch; a stream needs it.")
    test_rows: Count | None = Field(default=None, description="Test rows; a stream needs it.")


def _kind(given: object) -> str:
    keys = given if isinstance(given, dict) else ()
    if isinstance(given, CsvSpec) or "csv" in keys:
        return "(csv)"
    if isinstance(given, FunctionSpec) or "function" in keys:
        return "(settings)"
    return "(folder)" if isinstance(given, dict | FolderSpec) else "(function)"


DataSpec: TypeAlias = Annotated[
    Annotated[TrainingFunction, Tag("(function)")]
    | Annotated[FunctionSpec, Tag("(settings)")]
    | Annotated[CsvSpec, Tag("(csv)")]
    | Annotated[FolderSpec, Tag("(folder)")],
    Discriminator(_kind),
]


def data_name(spec: str | FunctionSpec | CsvSpec | FolderSpec) -> str:
    """The data source, for messages."""
    match spec:
        case FunctionSpec():
            return spec.function
        case CsvSpec():
            return spec.csv
        case FolderSpec():
            return spec.folder
    return spec
