"""The cascades of a workflow: which there are, what their operators are called, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from jellybean.documents.checks.checked import CheckedProfiles, CheckedWorkflow, variants_overridden
from jellybean.documents.layout import profile_command
from jellybean.documents.schema.cascade import CascadeSpec
from jellybean.documents.schema.fields import name_problem
from jellybean.documents.schema.reader import DocPath
from jellybean.documents.schema.workflow import InputSpec, OperatorSpec, WorkflowDocument
from jellybean.quantities import did_you_mean, quoted

NEEDS_MODELS = "a cascade is planned where the files of its models are: what flows in it is read from them"
FIRST, UNSURE, THEN = "first", "unsure", "then"  # the parts of a cascade, after the operator's name


def part_name(operator: str, part: str) -> str:
    """Name of the operator that is a part of a cascade."""
    return f"{operator}.{part}"


@dataclass(frozen=True)
class Cascade:
    """A variant of an operator that is a cascade, in the workflow as it is written."""

    workflow: WorkflowDocument
    operator: str
    variant: str

    @cached_property
    def spec(self) -> CascadeSpec:
        """The cascade as written."""
        spec = self.whole.variants[self.variant].cascade
        if spec is None:
            raise ValueError(f"{self.operator} {self.variant} is no cascade")
        return spec

    @property
    def whole(self) -> OperatorSpec:
        """The operator as written."""
        return self.workflow.operators[self.operator]

    @property
    def edge(self) -> InputSpec:
        """The operator's only input."""
        return self.whole.inputs[0]

    @property
    def path(self) -> DocPath:
        """Where the workflow states it."""
        return ("operators", self.operator, "variants", self.variant, "cascade")

    @property
    def first(self) -> str:
        """Name of the operator that runs the first variant."""
        return part_name(self.operator, FIRST)

    @property
    def unsure(self) -> str:
        """Name of the operator that passes inputs on."""
        return part_name(self.operator, UNSURE)

    @property
    def then(self) -> str:
        """Name of the operator that runs the second variant."""
        return part_name(self.operator, THEN)

    @property
    def is_served(self) -> bool:
        """True if its variants have models."""
        first = self.whole.variants.get(self.spec.first)
        return first is not None and first.is_served

    @property
    def variants(self) -> dict[str, str]:
        """Each of the four operators -> its variant."""
        return {
            self.first: self.spec.first,
            self.unsure: self.variant,
            self.then: self.spec.then,
            self.operator: self.variant,
        }

    @property
    def answer_output(self) -> str | None:
        """The model output that the readers of the operator name; None if they name none."""
        return next((edge.output for edge in readers(self.workflow, self.operator)), None)


def readers(workflow: WorkflowDocument, operator: str) -> Iterator[InputSpec]:
    """The edges that read an operator."""
    return (edge for spec in workflow.operators.values() for edge in spec.inputs if edge.upstream == operator)


def without_cascades(
    workflow: CheckedWorkflow, *, has_files: bool = True
) -> tuple[CheckedWorkflow, tuple[Cascade, ...]]:
    """The workflow without its cascades, and those of them that are stated rightly; problems are added to its tree.

    `has_files`: those of its models are there, so that what flows in a cascade can be read from them.
    """
    document = workflow.document
    if document is None:
        return workflow, ()
    stated = [
        Cascade(document, operator, variant)
        for operator, spec in document.operators.items()
        for variant, one in spec.variants.items()
        if one.cascade is not None
    ]
    if not stated:
        return workflow, ()
    right: list[Cascade] = []
    for cascade in stated:
        problems = [*_problems(cascade)]
        if not has_files and cascade.is_served and cascade.spec.flows is None:
            problems.append((cascade.path, NEEDS_MODELS, "write `flows`, as `jellybean render --resource` does"))
        for path, message, hint in problems:
            workflow.tree.add(path, message, hint)
        right += [] if problems else [cascade]
    return replace(workflow, document=plain_workflow(document)), tuple(right)


def plain_workflow(document: WorkflowDocument) -> WorkflowDocument:
    """The workflow without its cascades."""
    operators = {
        name: spec.model_copy(
            update={"variants": {variant: one for variant, one in spec.variants.items() if one.cascade is None}}
        )
        for name, spec in document.operators.items()
    }
    return document.model_copy(update={"operators": operators})


def _problems(cascade: Cascade) -> Iterator[tuple[DocPath, str, str]]:
    """(path, message, hint) of what makes a cascade impossible."""
    own, path = cascade.whole, cascade.path
    plain = [name for name, spec in own.variants.items() if spec.cascade is None]
    for key, name in (("first", cascade.spec.first), ("then", cascade.spec.then)):
        if name not in plain:
            hint = did_you_mean(name, plain) or f"variants that are no cascades: {', '.join(plain) or 'none'}"
            yield (*path, key), f"{quoted(name)} is no variant of {cascade.operator} that can be part of one", hint
    if cascade.spec.first == cascade.spec.then:
        yield (*path, "then"), "both variants are the same", "name a better one"
    if len({own.variants[name].is_served for name in (cascade.spec.first, cascade.spec.then) if name in plain}) > 1:
        yield path, "one of its variants has a model, the other has none", "give both a model, or none"
    yield from _problems_of_place(cascade)


def _problems_of_place(cascade: Cascade) -> Iterator[tuple[DocPath, str, str]]:
    """What makes an operator unfit for a cascade."""
    name, own, path = cascade.operator, cascade.whole, cascade.path
    edges = list(readers(cascade.workflow, name))
    for is_so, message, hint in (
        (len(own.inputs) > 1, f"{name} joins {len(own.inputs)} inputs", "join them in an operator before it"),
        (own.inputs[0].gather, f"{name} gathers", "gather in an operator before it"),
        (any(edge.ratios is not None for edge in edges), f"{name} fans out", "fan out in an operator behind it"),
        (own.state is not None, f"{name} has a state", "leave the state or the cascade out"),
        (
            len({edge.output for edge in edges}) > 1,
            f"operators read unlike outputs of {name}",
            "read one output: the answer of a cascade is one tensor",
        ),
    ):
        if is_so:
            yield path, f"{message}, and so cannot be a cascade", hint
    taken = {*cascade.workflow.sources, *cascade.workflow.operators}
    for part in (cascade.first, cascade.unsure, cascade.then):
        if part in taken:
            yield path, f"a cascade calls a part of {name} {part}, but that name is in use", "rename that one"
        elif (problem := name_problem(part)) is not None:
            yield path, f"a cascade calls a part of {name} {part}, which is too long", problem.hint


def check_measured(written: CheckedWorkflow, profiles: CheckedProfiles | None) -> None:
    """Report cascades of the profiles that the workflow does not have as it is written, unless `--set` chose them."""
    if profiles is None or profiles.document is None or written.document is None:
        return
    for operator, variants in profiles.document.cascades.items():
        spec = written.document.operators.get(operator)
        if written.is_broken("operators", operator) or variants_overridden(written, operator):
            continue
        stated = [name for name, one in spec.variants.items() if one.cascade is not None] if spec is not None else []
        for variant in variants:
            if variant not in stated:
                message = f"the workflow's {operator} has no cascade {variant!r}"
                hint = did_you_mean(variant, stated) or f"remove it, or run `{profile_command(written.tree.file)}`"
                profiles.tree.add(("cascades", operator, variant), message, hint, key=True)
