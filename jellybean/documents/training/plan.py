"""The plan of a training run: which layers are a stage, and which devices hold its replicas. Does not import torch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from jellybean.documents.schema.fields import DocumentModel
from jellybean.documents.schema.reader import Tree
from jellybean.documents.schema.validation import plain_message
from jellybean.errors import DocumentError, DocumentProblem
from jellybean.quantities import InvalidValueError, quoted
from jellybean_agent import describe_error, read_regular

_HOW_TO_MAKE = (
    "jellybean pipeline profile DIR --out layers.txt, then jellybean pipeline plan layers.txt --out stages.json"
)
BRANCHES = "branches"
PLANNER_OBJECTIVES = {"pipedream": "slowest-stage", "dapple": "dapple", "alpa": "alpa-inter", BRANCHES: BRANCHES}
_MOST_NAMED = 3  # layers in a message
_MAX_BYTES = 64 * 2**20


def objective_hint(name: str, *, planner: bool) -> str:
    """`did you mean 'x'?` for the name that the same objective has in `pipeline plan` (`planner`), or in training."""
    others = PLANNER_OBJECTIVES if planner else {other: name for name, other in PLANNER_OBJECTIVES.items()}
    if others.get(name, name) == name:
        return ""
    return f"did you mean {others[name]!r}? {'training' if planner else '`pipeline plan`'} calls it {name}"


def _objective(name: Any) -> Any:
    if isinstance(name, str) and (hint := objective_hint(name, planner=False)):
        raise InvalidValueError(f"{quoted(name)} is not one of {', '.join(PLANNER_OBJECTIVES)}", hint)
    return name


def _plan_file(text: str) -> str:
    if PurePosixPath(text).suffix != ".json" or "\0" in text:
        raise InvalidValueError(f"{quoted(text)} is not the path of a plan (.json)", _HOW_TO_MAKE)
    return text


_Objective = Literal["pipedream", "dapple", "alpa", "branches"]


class PlanKeys(DocumentModel):
    """The keys of training.yaml that name a plan. `stages: plan.json` is another way to write `plan: plan.json`."""

    plan: Annotated[str, AfterValidator(_plan_file)] | None = Field(
        default=None,
        description="Stages and their devices, from `jellybean pipeline plan --out`; in place of balanced stages.",
    )
    objective: Annotated[_Objective, BeforeValidator(_objective)] | None = Field(
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
            raise InvalidValueError(
                "`plan` has its stages, and `objective` plans other ones",
                "remove one of them",
                keys=("plan", "objective"),
            )
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

    `microbatches`: those of the iteration that it minimises. With the objective `branches` each stage is all layers of
    a device; layers of several devices may need each other.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    stages: Annotated[tuple[PlannedStage, ...], Field(min_length=1, strict=False)]
    objective: str = ""
    microbatches: int | None = None

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
        return StagePlan.model_validate(json.loads(read_regular(path, _MAX_BYTES)))
    except FileNotFoundError as error:
        message = "there is no such file"
        raise _problem(path, message) from error
    except OSError as error:
        raise _problem(path, describe_error(error)) from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise _problem(path, f"is no plan: {place}{': ' * bool(place)}{plain_message(first)}") from error
    except (ValueError, RecursionError) as error:
        raise _problem(path, "is no plan: not JSON") from error


def name_layers(layers: Sequence[str]) -> str:
    """The first layers by name, and the number of the others."""
    more = len(layers) - _MOST_NAMED
    return ", ".join(layers[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def reason_against_training(stages: Iterable[PlannedStage]) -> str:
    """Why these stages are planned only, and what trains instead; empty if they can be trained."""
    split = [layer for stage in stages for one in stage.innermost for layer in one.split_layers]
    if not split:
        return ""
    return (
        f"planned only: it splits {name_layers(split)} over devices; to train, use --objective alpa-inter, or "
        "`tensor: N` in training.yaml in place of a plan"
    )


def few_microbatches(replicas: Sequence[int], microbatches: int, planned: int | None = None) -> str:
    """That an update has fewer micro-batches than a stage has replicas; empty if not. `planned`: those of the plan."""
    most = max(replicas)
    if microbatches >= most:
        return ""
    write = f"--set microbatches={most}, or more"
    if planned is not None and planned >= most:
        write = f"--set microbatches={planned}, for which it was planned"
    count = f"{microbatches} micro-batch{'es' if microbatches != 1 else ''}"
    return f"stage {replicas.index(most)} has {most} replicas, but an update has {count}: {write}"


def planned_devices(tree: Tree, directory: Path, plan: str, given: int | None) -> int:
    """Number of devices of a plan. Adds problems: another number is `given`, or the plan cannot be trained."""
    stages = read_stage_plan(directory / plan)
    if reason := reason_against_training(stages.stages):
        tree.add(("plan" if "plan" in tree.data else "stages",), f"{plan} is {reason}")
    if given not in (None, stages.devices):
        message = f"{plan} is for {stages.devices} devices ({stages.counts}), and the document has {given}"
        tree.add(("devices",), message, f"--set devices={stages.devices}, or leave `devices` out")
    return stages.devices


def _problem(path: Path, message: str) -> DocumentError:
    return DocumentError([DocumentProblem(str(path), None, None, "", message, _HOW_TO_MAKE)])
