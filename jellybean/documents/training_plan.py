"""The plan of a training run: which layers are a stage, and which devices hold its replicas. Does not import torch."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from jellybean.documents.schema.fields import DocumentModel
from jellybean.documents.schema.reader import Tree
from jellybean.errors import DocumentError, DocumentProblem
from jellybean.quantities import InvalidValueError, quoted

_HOW_TO_MAKE = (
    "jellybean pipeline profile DIR --out layers.txt, then jellybean pipeline plan layers.txt --out plan.json"
)


def _plan_file(text: str) -> str:
    if PurePosixPath(text).suffix != ".json" or "\0" in text:
        raise InvalidValueError(f"{quoted(text)} is not the path of a plan (.json)", _HOW_TO_MAKE)
    return text


class PlanKeys(DocumentModel):
    """The keys of training.yaml that name a plan. `stages: plan.json` is another way to write `plan: plan.json`."""

    plan: Annotated[str, AfterValidator(_plan_file)] | None = Field(
        default=None,
        description="Stages and their devices, from `jellybean pipeline plan --out`; in place of balanced stages.",
    )
    objective: Literal["pipedream", "dapple", "alpa", "branches"] | None = Field(
        default=None,
        description="Plan with the times measured before training: pipedream (the slowest stage), dapple or alpa (an "
        "iteration; devices of a submesh are replicas), branches (those of the model run at the same time).",
    )

    @model_validator(mode="before")
    @classmethod
    def _take_plan_from_stages(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "plan" in data:
            return data
        stages = data.get("stages")
        if not isinstance(stages, str) or not stages.endswith(".json"):
            return data
        return {**{key: value for key, value in data.items() if key != "stages"}, "plan": stages}

    @model_validator(mode="after")
    def _check_one_plan(self) -> PlanKeys:
        if self.plan is not None and self.objective is not None:
            raise InvalidValueError("`plan` has its stages, and `objective` plans other ones", "remove one of them")
        return self


class LayerSplit(BaseModel):
    """The dimension of a layer that is split over each axis of a submesh: samples, or a part of its weights."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    layer: str
    axes: Annotated[tuple[str | None, ...], Field(strict=False)]


class PlannedStage(BaseModel):
    """A stage of a plan: its layers by name, and the device of each replica; in a hierarchy the stages inside."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    layers: Annotated[tuple[str, ...], Field(min_length=1, strict=False)]
    devices: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False)] = ()
    stages: Annotated[tuple[PlannedStage, ...], Field(strict=False)] = ()
    split: Annotated[tuple[LayerSplit, ...], Field(strict=False)] = ()

    @property
    def innermost(self) -> tuple[PlannedStage, ...]:
        """The stages that have no others inside, in order."""
        return tuple(one for stage in self.stages for one in stage.innermost) if self.stages else (self,)

    @property
    def split_layers(self) -> tuple[str, ...]:
        """Its layers of which each device has a part."""
        return tuple(split.layer for split in self.split if {"in", "out"} & set(split.axes))

    @model_validator(mode="after")
    def _check_placed(self) -> PlannedStage:
        if not self.devices and not self.stages:
            raise ValueError("it has no devices")
        return self


class StagePlan(BaseModel):
    """What `jellybean pipeline plan` found. Keys about its costs are left out.

    With the objective `branches` each stage is all layers of a device; layers of several devices may need each other.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    stages: Annotated[tuple[PlannedStage, ...], Field(min_length=1, strict=False)]
    objective: str = ""

    @property
    def placement(self) -> tuple[PlannedStage, ...]:
        """The stages of the pipeline, in order, with their devices."""
        return tuple(one for stage in self.stages for one in stage.innermost)

    @property
    def replicas(self) -> tuple[int, ...]:
        """Replicas of each stage."""
        return tuple(len(stage.devices) for stage in self.placement)

    @property
    def counts(self) -> str:
        """Replicas of each stage, such as 2-1."""
        return "-".join(map(str, self.replicas))

    @property
    def devices(self) -> int:
        """Number of devices."""
        return sum(self.replicas)

    @model_validator(mode="after")
    def _check_devices_and_layers(self) -> StagePlan:
        devices = [device for stage in self.placement for device in stage.devices]
        if sorted(devices) != list(range(len(devices))):
            raise ValueError(f"its stages are on the devices {sorted(devices)}, which are not 0 to N - 1, once each")
        counts = Counter(name for stage in self.placement for name in stage.layers)
        twice = [name for name, count in counts.items() if count > 1]
        if twice:
            raise ValueError(f"the layer {twice[0]} stands in it twice")
        return self


def read_stage_plan(path: Path) -> StagePlan:
    """Read a plan. DocumentError if the file cannot be read or is no plan."""
    try:
        return StagePlan.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        message = "there is no such file"
        raise _problem(path, message) from error
    except OSError as error:
        raise _problem(path, (error.strerror or "cannot be read").lower()) from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise _problem(path, f"is no plan: {place}{': ' * bool(place)}{first['msg']}") from error
    except (ValueError, RecursionError) as error:
        raise _problem(path, "is no plan: not JSON") from error


def planned_devices(tree: Tree, directory: Path, plan: str, given: int | None) -> int:
    """Number of devices of a plan; one that differs from the `given` one is added to the tree's problems."""
    stages = read_stage_plan(directory / plan)
    if given not in (None, stages.devices):
        message = f"{plan} is for {stages.devices} devices ({stages.counts}), and the document has {given}"
        tree.add(("devices",), message, f"--set devices={stages.devices}, or leave `devices` out")
    return stages.devices


def _problem(path: Path, message: str) -> DocumentError:
    return DocumentError([DocumentProblem(str(path), None, None, "", message, _HOW_TO_MAKE)])
