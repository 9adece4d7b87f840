"""Checks of profiles against workflow and infrastructure: every variant must be known well enough to be planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jellybean.documents.checks.files import Models
from jellybean.documents.checks.names import Infrastructure, Workflow
from jellybean.documents.flow import Flow
from jellybean.documents.schema.error_words import Checked
from jellybean.documents.schema.models import InfrastructureDocument, WorkflowDocument
from jellybean.documents.schema.profiles import (
    ANY_DOWNSTREAM,
    AccuracyProfile,
    Figures,
    ProfilesDocument,
    VariantProfile,
    latency_figure,
)
from jellybean.documents.schema.reader import DocPath, dotted
from jellybean.documents.schema.units import close, nearest

Profiles = Checked[ProfilesDocument]
Strangers = dict[str | None, list[str]]  # operator -> variants that the workflow does not have; None -> operators
_PROFILE_IT = "run `jellybean profile`, or write its latency by hand"


def check_profiles(
    workflow: Workflow, infrastructure: Infrastructure, profiles: Profiles, flow: Flow
) -> Mapping[str, tuple[str, ...]]:
    """Names, figures and accuracies. Returns operator -> pools that can run it, as far as known."""
    if workflow.document is None or profiles.document is None or workflow.unknown("operators"):
        return {}
    strangers = _unknown_names(workflow, profiles, profiles.document)
    _variants(workflow, profiles, workflow.document, profiles.document, flow, strangers)
    _measured_ratios(workflow, profiles, workflow.document, profiles.document)
    _percent(workflow, workflow.document, profiles.document)
    if profiles.document.accuracy is not None:
        _Accuracy(workflow, profiles, workflow.document, profiles.document.accuracy, flow).check()
    elif workflow.document.slo.accuracy is not None and not profiles.unknown("accuracy"):
        message = f"accuracy {workflow.document.slo.accuracy:g} is asked for, but the profiles know no accuracy"
        hint = "add an accuracy section to profiles.yaml (labels in the workflow let `jellybean profile` measure it)"
        workflow.tree.add(("slo", "accuracy"), message, hint)
    if infrastructure.document is None:
        return {}
    return _workers(workflow, infrastructure, profiles, infrastructure.document)


def _percent(workflow: Workflow, plan: WorkflowDocument, document: ProfilesDocument) -> None:
    """A target that was meant as a share would be met by anything."""
    rows = (document.accuracy.end_to_end or ()) if document.accuracy is not None else ()
    target, known = plan.slo.accuracy, [row.accuracy for row in rows]
    if target is not None and 0 < target <= 1 and known and min(known) > 1:
        message = (
            f"accuracy is in percent: {target:g} is below all that was measured ({min(known):g} to {max(known):g})"
        )
        workflow.tree.add(("slo", "accuracy"), message, f"write {100 * target:g}, or leave it out")


def _replaced(workflow: Workflow, operator: str) -> bool:
    """Whether an override chose this operator's variants, so that profiles of others are no mistake."""
    return workflow.tree.place(("operators", operator, "variants")).line is None


def _unknown_names(workflow: Workflow, profiles: Profiles, document: ProfilesDocument) -> Strangers:
    """Tell operators and variants that only the profiles have; returns them: what was meant by them has no profile."""
    operators = workflow.names("operators")
    found: Strangers = {None: []}
    for operator, variants in document.operators.items():
        path: DocPath = ("operators", operator)
        if operator not in operators:
            hint = close(operator, operators) or f"operators: {', '.join(operators)}"
            profiles.tree.add(path, f"the workflow has no operator {operator!r}", hint, key=True)
            found[None].append(operator)
        elif not workflow.unknown("operators", operator) and not _replaced(workflow, operator):
            known = workflow.document.operators[operator].variants if workflow.document else {}
            for variant in variants:
                if variant not in known:
                    hint = close(variant, known) or f"variants: {', '.join(known)}"
                    message = f"the workflow's {operator} has no variant {variant!r}"
                    profiles.tree.add((*path, variant), message, hint, key=True)
                    found.setdefault(operator, []).append(variant)
    return found


def _variants(
    workflow: Workflow,
    profiles: Profiles,
    plan: WorkflowDocument,
    document: ProfilesDocument,
    flow: Flow,
    strangers: Strangers,
) -> None:
    """Each variant has a profile, with message sizes for all that read it."""
    known = {*plan.sources, *plan.operators}
    # Who reads whom is only known when every input is, and none runs in a circle.
    linked = bool(flow.order) and all(e.upstream in known for spec in plan.operators.values() for e in spec.inputs)
    for operator, spec in plan.operators.items():
        if profiles.unknown("operators", operator):
            continue
        profiled = document.operators.get(operator, {})
        if not profiled:
            if nearest(operator, strangers[None]) is None:
                message = f"operator {operator!r} has no profile"
                workflow.tree.add(("operators", operator), message, _PROFILE_IT, key=True)
            continue
        readers = [name for name, other in plan.operators.items() if any(e.upstream == operator for e in other.inputs)]
        for variant in spec.variants:
            if variant not in profiled and nearest(variant, strangers.get(operator, ())) is not None:
                continue
            if variant not in profiled:
                path: DocPath = ("operators", operator, "variants")
                listed = (*path, list(spec.variants).index(variant))  # variants may be a list of names
                where = listed if listed in workflow.tree.values else (*path, variant)
                workflow.tree.add(where, f"variant {variant!r} of {operator} has no profile", _PROFILE_IT)
                continue
            if linked and not plan.sources.keys() & plan.operators.keys():
                _messages(workflow, profiles, profiled[variant], ("operators", operator, variant), readers)


def _measured_ratios(
    workflow: Workflow, profiles: Profiles, plan: WorkflowDocument, document: ProfilesDocument
) -> None:
    """Where the workflow leaves ratios to the profile it must know them, of the one output that fans out."""
    for name, spec in plan.operators.items():
        for index, edge in enumerate(spec.inputs):
            if not edge.measured or edge.upstream not in plan.operators:
                continue
            others = [
                e
                for o in plan.operators.values()
                for e in o.inputs
                if e.upstream == edge.upstream and e.ratios is not None
            ]
            if any(other.output != edge.output for other in others):
                message = f"{edge.upstream} fans out several outputs: whose rows were measured is not known"
                workflow.tree.add(("operators", name, "inputs", index, "ratio"), message, "write the ratios by variant")
                continue
            for variant in plan.operators[edge.upstream].variants:
                profile = document.operators.get(edge.upstream, {}).get(variant)
                if profile is None or profile.mean_children > 0:
                    continue  # without a profile: told already
                path: DocPath = ("operators", edge.upstream, variant)
                hint = "run `jellybean profile`, or write for example children: [0, 20 %, 80 %]"
                if profile.children:
                    message = f"all outputs have no row, but the ratio to {name} must be above 0"
                    profiles.tree.add((*path, "children"), message, "drop the variant, or write the ratio yourself")
                else:
                    message = f"missing key 'children': the ratio to {name} is said to be measured"
                    profiles.tree.add(path, message, hint, key=True)


def _messages(
    workflow: Workflow, profiles: Profiles, profile: VariantProfile, path: DocPath, readers: list[str]
) -> None:
    missing = [name for name in readers if profile.bytes_to(name) is None]
    if missing:
        message = f"missing key 'message': the size of what it sends to {', '.join(missing)}"
        profiles.tree.add(path, message, "write for example message: 2 KiB", key=True)
    for name in profile.message_bytes:
        if name != ANY_DOWNSTREAM and name not in readers and not workflow.broken:
            hint = close(name, readers) or f"read by: {', '.join(readers) or 'nothing'}"
            profiles.tree.add((*path, "message", name), f"{name!r} does not read this operator", hint, key=True)


def _workers(
    workflow: Workflow, infrastructure: Infrastructure, profiles: Profiles, fleet: InfrastructureDocument
) -> Mapping[str, tuple[str, ...]]:
    """Worker types against latencies, and the figure that capacity counts."""
    types = {name: pool.type or name for name, pool in fleet.workers.items()}
    broken = any(path[0] == "workers" for path in infrastructure.broken)
    operators = profiles.document.operators if profiles.document is not None else {}
    unknown = _unknown_types(fleet, [profiles])
    runs_on: dict[str, tuple[str, ...]] = {}
    for operator, variants in operators.items():
        selected = workflow.document.operators.get(operator) if workflow.document else None
        for variant, profile in variants.items():
            if selected is None or variant not in selected.variants:
                continue
            path: DocPath = ("operators", operator, variant, "latency")
            pools = tuple(name for name, type_ in types.items() if type_ in profile.latency)
            runs_on[operator] = tuple(dict.fromkeys([*runs_on.get(operator, ()), *pools]))
            if not broken:
                _types(profiles, path, profile, set(types.values()), pools, unknown)
            if not infrastructure.unknown("limits"):
                check_latency(profiles, path, profile.latency, fleet)
    return runs_on


def check_types(infrastructure: Infrastructure, profiles: Sequence[Profiles]) -> None:
    """Every worker's type is known to the profiles of some workflow on the fleet."""
    fleet = infrastructure.document
    if fleet is None or any(one.document is None for one in profiles):
        return
    profiled = sorted(_profiled_types(profiles))
    for name, pool in fleet.workers.items():
        type_ = pool.type or name
        if type_ in _unknown_types(fleet, profiles):
            hint = close(type_, profiled) or f"types with profiles: {', '.join(profiled)}"
            key = "type" if pool.type is not None else ""
            where: DocPath = ("workers", name, key) if key else ("workers", name)
            infrastructure.tree.add(where, f"no profile knows the worker type {type_!r}", hint, key=not key)


def _profiled_types(profiles: Sequence[Profiles]) -> set[str]:
    variants = (v for one in profiles if one.document is not None for v in one.document.operators.values())
    return {type_ for profiled in variants for profile in profiled.values() for type_ in profile.latency}


def _unknown_types(fleet: InfrastructureDocument, profiles: Sequence[Profiles]) -> list[str]:
    """Worker types that no profile knows; none is told where a profile is broken."""
    if any(one.broken for one in profiles):
        return []
    profiled = _profiled_types(profiles)
    return [type_ for name, pool in fleet.workers.items() if (type_ := pool.type or name) not in profiled]


def _types(
    profiles: Profiles,
    path: DocPath,
    profile: VariantProfile,
    types: set[str],
    pools: tuple[str, ...],
    unknown: list[str],
) -> None:
    """Profiles may know more types than the fleet has, but not a misspelt one, and at least one of the fleet's.

    Where the fleet has a type that is `unknown` to all profiles, that is told instead.
    """
    for type_ in profile.latency:
        meant = nearest(type_, sorted(types - set(profile.latency))) if type_ not in types else None
        if meant is not None and meant not in unknown:
            profiles.tree.add((*path, type_), f"no worker has the type {type_!r}", f"did you mean {meant!r}?", key=True)
    if not pools and not unknown:
        known = ", ".join(sorted(types))
        profiles.tree.add(path, "no latency on any worker of the infrastructure", f"worker types: {known}", key=True)


def check_latency(
    profiles: Profiles, path: DocPath, latency: Mapping[str, Mapping[int, Figures]], fleet: InfrastructureDocument
) -> None:
    """Each type of worker in the fleet has batch size 1, and the figure that capacity counts."""
    load_from = fleet.limits.load_from
    types = {pool.type or name for name, pool in fleet.workers.items()}
    for type_, batches in latency.items():
        if type_ not in types:
            continue
        if 1 not in batches:
            sizes = ", ".join(str(size) for size in batches)
            profiles.tree.add((*path, type_), f"no latency at batch size 1 (there is {sizes})", "measure it", key=True)
        for size, figures in batches.items():
            if latency_figure(figures, load_from) is None:
                message = f"no {load_from} latency, which limits.load_from asks for"
                where = (*path, type_, str(size))
                where = where if where in profiles.tree.values else where[:-1]
                profiles.tree.add(where, message, f"add {load_from}, or set limits.load_from to a figure it has")


def check_batches(profiles: Profiles, models: Models) -> None:
    """No batch was measured of a model that takes one request at a time."""
    if profiles.document is None:
        return
    for operator, variants in models.items():
        for variant, model in variants.items():
            single = [port.name for port in model.inputs if port.tensor.shape and port.tensor.shape[0] == 1]
            profile = profiles.document.operators.get(operator, {}).get(variant)
            if single and profile is not None:
                _one_row(profiles, ("operators", operator, variant, "latency"), profile, single[0])


def _one_row(profiles: Profiles, path: DocPath, profile: VariantProfile, port: str) -> None:
    for type_, batches in profile.latency.items():
        for size in batches:
            if size > 1:
                message = f"a batch of {size}, but input {port!r} of the model takes exactly 1 row"
                hint = "take it out, or export the model with an open leading dimension"
                profiles.tree.add((*path, type_, str(size)), message, hint, key=True)


class _Accuracy:
    """Checks of the accuracy section."""

    def __init__(
        self, workflow: Workflow, profiles: Profiles, plan: WorkflowDocument, accuracy: AccuracyProfile, flow: Flow
    ) -> None:
        self.workflow, self.profiles, self.plan, self.accuracy, self.flow = workflow, profiles, plan, accuracy, flow

    def check(self) -> None:
        """The one form that is given."""
        if self.accuracy.end_to_end is not None:
            self._end_to_end()
        elif self.accuracy.per_operator is not None:
            self._tables(("accuracy", "per_operator"), self.accuracy.per_operator)
            self._points()
        elif self.accuracy.independent is not None:
            self._tables(("accuracy", "independent"), self.accuracy.independent)
            for operator, variants in self.accuracy.independent.items():
                for variant, percent in variants.items():
                    if not 0 <= percent <= 100:
                        path = ("accuracy", "independent", operator, variant)
                        message = f"an independent accuracy lies between 0 and 100, not {percent:g}"
                        self.profiles.tree.add(path, message, "the workflow has the product of the operators' shares")

    def _name(self, path: DocPath, operator: str, variant: str | None) -> bool:
        """Tell an operator or variant that the workflow does not have; True when both are known and sound."""
        operators = self.workflow.names("operators")
        if operator not in operators:
            hint = close(operator, operators) or f"operators: {', '.join(operators)}"
            self.profiles.tree.add(path, f"the workflow has no operator {operator!r}", hint, key=True)
            return False
        if self.workflow.unknown("operators", operator):
            return False
        known = self.plan.operators[operator].variants
        if variant is not None and variant not in known:
            if not _replaced(self.workflow, operator):
                hint = close(variant, known) or f"variants: {', '.join(known)}"
                self.profiles.tree.add(path, f"the workflow's {operator} has no variant {variant!r}", hint)
            return False
        return True

    def _measured(self, operator: str) -> int:
        """How many of the workflow's variants of an operator have a profile; what lacks one is told already."""
        profiled = self.profiles.document.operators.get(operator, {}) if self.profiles.document is not None else {}
        return sum(variant in profiled for variant in self.plan.operators[operator].variants)

    def _end_to_end(self) -> None:
        needed = [name for name, spec in self.plan.operators.items() if len(spec.variants) > 1]
        seen: dict[tuple[tuple[str, str], ...], int] = {}
        for index, row in enumerate(self.accuracy.end_to_end or ()):
            path: DocPath = ("accuracy", "end_to_end", index)
            named = [self._name((*path, "selection", name), name, variant) for name, variant in row.selection.items()]
            if not all(named):
                continue
            missing = [name for name in needed if name not in row.selection and self._measured(name) > 1]
            if missing:
                hint = "only operators with one variant may be left out"
                message = f"the selection says nothing about {', '.join(missing)}"
                self.profiles.tree.add((*path, "selection"), message, hint, key=True)
            chosen = tuple(sorted((name, row.selection[name]) for name in needed if name in row.selection))
            single = [n for n, spec in self.plan.operators.items() if len(spec.variants) == 1 and n in row.selection]
            whole = (*chosen, *sorted((name, row.selection[name]) for name in single))
            if whole in seen and not self.workflow.broken:
                message = f"the same selection as {dotted((*path[:-1], seen[whole]))}"
                self.profiles.tree.add(path, message, "keep one of them")
            seen.setdefault(whole, index)

    def _tables(self, path: DocPath, tables: Mapping[str, Mapping[str, object]]) -> None:
        for operator, variants in tables.items():
            if not self._name((*path, operator), operator, None):
                continue
            for variant in variants:
                self._name((*path, operator, variant), operator, variant)
            missing = [name for name in self.plan.operators[operator].variants if name not in variants]
            if missing:
                message = f"no accuracy of variant {', '.join(missing)}"
                self.profiles.tree.add((*path, operator), message, "add it, or drop the variant", key=True)

    def _points(self) -> None:
        """Rows have one accuracy per input that has accuracies itself."""
        tables = self.accuracy.per_operator or {}
        for operator, variants in tables.items():
            if operator not in self.plan.operators:
                continue
            inputs = [edge.upstream for edge in self.plan.operators[operator].inputs if edge.upstream in tables]
            for variant, points in variants.items():
                for index, point in enumerate(points):
                    if len(point.inputs) != len(inputs):
                        path: DocPath = ("accuracy", "per_operator", operator, variant, index)
                        path = path if path in self.profiles.tree.values else path[:-1]
                        wanted = f"{len(inputs)} ({', '.join(inputs)})" if inputs else "none"
                        message = f"{len(point.inputs)} input accuracies, but {operator} has {wanted} with a table"
                        self.profiles.tree.add(path, message, "write one per input, in the order of its inputs")
