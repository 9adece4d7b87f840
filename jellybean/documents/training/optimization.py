"""Optimizer, learning rate schedule and early stop in training.yaml. Does not import torch."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from jellybean.documents.schema.fields import DocumentModel
from jellybean.documents.training.data import FUNCTION, Count
from jellybean.quantities import InvalidValueError, did_you_mean, nearest_name, quoted

METRICS = {"accuracy": "max", "perplexity": "min"}  # name -> what is better
LR_SCHEDULES = ("constant", "linear", "cosine")


def _lr_schedule(text: str) -> str:
    if text not in LR_SCHEDULES and not text[:1].isupper() and not FUNCTION.fullmatch(text):
        classes = "a class of torch.optim.lr_scheduler such as StepLR, or FILE.py:NAME"
        known = f"known: {', '.join(LR_SCHEDULES)}, or {classes}"
        raise InvalidValueError(
            f"unknown learning rate schedule {quoted(text)}", did_you_mean(text, LR_SCHEDULES) or known
        )
    return text


Positive = Annotated[float, Field(strict=False, gt=0)]
NotNegative = Annotated[float, Field(strict=False, ge=0)]


def _optimizer(text: str) -> str:
    if ":" in text and not FUNCTION.fullmatch(text):
        hint = "write FILE.py:NAME or PACKAGE.MODULE:NAME, or a class of torch.optim such as AdamW"
        raise InvalidValueError(f"{quoted(text)} does not name an optimizer", hint)
    return text


class OptimizerGroup(DocumentModel):
    """A parameter group: `match` (a pattern of parameter names) and arguments of the optimizer as further keys."""

    model_config = ConfigDict(extra="allow")

    match: Annotated[str, Field(min_length=1)] = Field(
        description="Pattern of parameter names, with * and ?: head.*, *.bias"
    )

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the optimizer's class that differ in this group."""
        return dict(self.model_extra or {})


class OptimizerSpec(DocumentModel):
    """Optimizer settings; further keys are arguments of the class, checked when training starts."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Field(min_length=1), AfterValidator(_optimizer)] = Field(
        description="A class of torch.optim, in any case (sgd, AdamW), or FILE.py:NAME or MODULE:NAME."
    )
    lr: Positive
    weight_decay: NotNegative = Field(default=0.0, description="0 unless given, whatever the class' default.")
    groups: tuple[OptimizerGroup, ...] = Field(
        default=(),
        strict=False,
        description="Parameter groups; a parameter takes the arguments of all groups that match, later ones win.",
    )

    @model_validator(mode="before")
    @classmethod
    def _check_rate(cls, given: Any) -> Any:
        """A misspelt `lr` would be an argument of the class, and `lr` only missing."""
        if isinstance(given, dict) and "lr" not in given:
            wrong = nearest_name("lr", [key for key in given if isinstance(key, str) and key not in cls.model_fields])
            if wrong is not None:
                raise InvalidValueError(f"unknown key {quoted(wrong)}", "did you mean 'lr'?", keys=(wrong,))
        return given

    @property
    def of_user(self) -> bool:
        """True if this is no class of torch.optim."""
        return ":" in self.name

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the optimizer's class that the document gives."""
        given = {"weight_decay": self.weight_decay} if self.weight_decay else {}
        return {"lr": self.lr, **given, **(self.model_extra or {})}


class LrSpec(DocumentModel):
    """Learning rate schedule: built in, or a class of torch.optim.lr_scheduler with its arguments as further keys."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, AfterValidator(_lr_schedule)] = Field(
        description="constant, linear or cosine (linear and cosine end at 0), or a class of torch.optim.lr_scheduler, "
        "or FILE.py:NAME."
    )
    warmup: NotNegative = Field(
        default=0.0, description="Epochs in which the rate rises from 0 to the optimizer's rate."
    )
    per: Literal["epoch", "update"] | None = Field(
        default=None,
        description="When a class steps: by default each epoch, OneCycleLR and CyclicLR each update.",
    )

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the scheduler's class."""
        return dict(self.model_extra or {})

    @property
    def of_user(self) -> bool:
        """True if this is no class of torch."""
        return ":" in self.name

    @property
    def built_in(self) -> bool:
        """True if this is one of LR_SCHEDULES."""
        return self.name in LR_SCHEDULES

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        further = [*self.arguments, *(["per"] if self.per is not None else [])]
        if self.built_in and further:
            raise InvalidValueError(
                f"{self.name} has no {further[0]!r}",
                did_you_mean(further[0], ["warmup"]) or "it takes `warmup` only",
                keys=("name", further[0]),
            )
        if not self.built_in and self.warmup:
            raise InvalidValueError(
                f"{self.name} takes no warmup, which belongs to {', '.join(LR_SCHEDULES)}",
                "remove it, or use OneCycleLR",
                keys=("name", "warmup"),
            )
        return self


class EarlyStopSpec(DocumentModel):
    """Ends a run when a metric on the test rows no longer improves."""

    metric: Annotated[str, Field(min_length=1)] = Field(description="loss, or the name of one of `metrics`.")
    patience: Count = Field(description="Epochs without improvement after which the run ends.")
    mode: Literal["min", "max"] | None = Field(
        default=None, description="What is better; needed for a metric of your own."
    )
    min_delta: NotNegative = Field(default=0.0, description="Smallest change that counts as an improvement.")
    restore: Literal["best", "last"] = Field(
        default="best", description="The epoch whose weights the run ends with; its checkpoint is kept."
    )

    @property
    def minimizes(self) -> bool:
        """True if less is better."""
        return (self.mode or METRICS.get(self.metric, "min")) == "min"
