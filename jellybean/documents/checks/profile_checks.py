"""Check the profiles against workflow and infrastructure: planning needs measurements of every variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jellybean.documents.checks.accuracy_checks import AccuracyCheck
from jellybean.documents.checks.checked import (
    CheckedInfrastructure,
    CheckedProfiles,
    CheckedWorkflow,
    variants_overridden,
)
from jellybean.documents.checks.model_fit import Models
from jellybean.documents.flow import Flow
from jellybean.documents.layout import profile_command
from jellybean.documents.schema.infrastructure import InfrastructureDocument
from jellybean.documents.schema.profiles import (
    ANY_DOWNSTREAM,
    BatchProfile,
    ProfilesDocument,
    VariantProfile,
    latency_statistic,
)
from jellybean.documents.schema.reader import DocPath
from jellybean.documents.schema.workflow import WorkflowDocument
from jellybean.quantities import did_you_mean, nearest_name

# Names in the profiles that the workflow does not have: operator -> variants; the key None -> operators.
UnknownNames = dict[str | None, list[str]]


def check_profiles(
    workflow: CheckedWorkflow, infrastructure: CheckedInfrastructure, profiles: CheckedProfiles, flow: Flow
) -> Mapping[str, tuple[str, ...]]:
    """Check names, measurements and accuracies. Returns operator -> pools that have a measured latency."""
    if workflow.document is None or profiles.document is None or workflow.is_broken("operators"):
        return {}
    unknown = _report_unknown_names(workflow, profiles, profiles.document)
    _check_variants(workflow, profiles, workflow.document, profiles.document, flow, unknown)
    _check_measured_ratios(workflow, profiles, workflow.document, profiles.document)
    _check_percent_target(workflow, workflow.document, profiles.document)
    if profiles.document.accuracy is not None:
        AccuracyCheck(workflow, workflow.document.operators, profiles, profiles.document.accuracy).run()
    elif workflow.document.slo.accuracy is not None and not profiles.is_broken("accuracy"):
        message = f"the target is accuracy {workflow.document.slo.accuracy:g}, but the profiles have no accuracy"
        hint = "add an accuracy section to profiles.yaml (labels in the workflow let `jellybean profile` measure it)"
        workflow.tree.add(("slo", "accuracy"), message, hint)
    if infrastructure.document is None:
        return {}
    return _check_workers(workflow, infrastructure, profiles, infrastructure.document)


def _check_percent_target(workflow: CheckedWorkflow, declared: WorkflowDocument, measured: ProfilesDocument) -> None:
    """Report an accuracy target between 0 and 1 (percent) that was probably meant as a fraction."""
    rows = (measured.accuracy.end_to_end or ()) if measured.accuracy is not None else ()
    target, known = declared.slo.accuracy, [row.accuracy for row in rows]
    if target is not None and 0 < target <= 1 and known and min(known) > 1:
        message = f"accuracy is in percent: {target:g} is below all measured ones ({min(known):g} to {max(known):g})"
        workflow.tree.add(("slo", "accuracy"), message, f"write {100 * target:g}, or remove it")


def _report_unknown_names(
    workflow: CheckedWorkflow, profiles: CheckedProfiles, measured: ProfilesDocument
) -> UnknownNames:
    """Report and return operators and variants of the profiles that the workflow does not have."""
    operators = workflow.names("operators")
    unknown: UnknownNames = {None: []}
    for operator, variants in measured.operators.items():
        path: DocPath = ("operators", operator)
        if operator not in operators:
            hint = did_you_mean(operator, operators) or f"operators: {', '.join(operators)}"
            profiles.tree.add(path, f"the workflow has no operator {operator!r}", hint, key=True)
            unknown[None].append(operator)
        elif not workflow.is_broken("operators", operator) and not variants_overridden(workflow, operator):
            known = workflow.document.operators[operator].variants if workflow.document else {}
            for variant in variants:
                if variant not in known:
                    hint = did_you_mean(variant, known) or f"variants: {', '.join(known)}"
                    message = f"the workflow's {operator} has no variant {variant!r}"
                    profiles.tree.add((*path, variant), message, hint, key=True)
                    unknown.setdefault(operator, []).append(variant)
    return unknown


def _check_variants(
    workflow: CheckedWorkflow,
    profiles: CheckedProfiles,
    declared: WorkflowDocument,
    measured: ProfilesDocument,
    flow: Flow,
    unknown: UnknownNames,
) -> None:
    """Check that each variant has a profile with a message size for every downstream operator."""
    hint = f"run `{profile_command(workflow.tree.file)}`, or write its latency"
    known = {*declared.sources, *declared.operators}
    # Downstream operators are known only if all upstream names exist and the graph has no cycle.
    linked = bool(flow.order) and all(e.upstream in known for spec in declared.operators.values() for e in spec.inputs)
    for operator, spec in declared.operators.items():
        if profiles.is_broken("operators", operator):
            continue
        profiled = measured.operators.get(operator, {})
        if not profiled:
            if nearest_name(operator, unknown[None]) is None:
                message = f"operator {operator!r} has no profile"
                workflow.tree.add(("operators", operator), message, hint, key=True)
            continue
        readers = [
            name for name, other in declared.operators.items() if any(e.upstream == operator for e in other.inputs)
        ]
        for variant in spec.variants:
            if variant not in profiled and nearest_name(variant, unknown.get(operator, ())) is not None:
                continue
            if variant not in profiled:
                path: DocPath = ("operators", operator, "variants")
                listed = (*path, list(spec.variants).index(variant))  # variants may be a list of names
                where = listed if listed in workflow.tree.values else (*path, variant)
                workflow.tree.add(where, f"variant {variant!r} of {operator} has no profile", hint)
                continue
            if linked and not declared.sources.keys() & declared.operators.keys():
                _check_messages(workflow, profiles, profiled[variant], ("operators", operator, variant), readers)


def _check_measured_ratios(
    workflow: CheckedWorkflow, profiles: CheckedProfiles, declared: WorkflowDocument, measured: ProfilesDocument
) -> None:
    """Check that profiles have the fan-out ratios that the workflow declares as `measured`.

    An operator may fan out only one of its outputs with a measured ratio.
    """
    for name, spec in declared.operators.items():
        for index, edge in enumerate(spec.inputs):
            if not edge.measured or edge.upstream not in declared.operators:
                continue
            others = [
                e
                for o in declared.operators.values()
                for e in o.inputs
                if e.upstream == edge.upstream and e.ratios is not None
            ]
            if any(other.output != edge.output for other in others):
                message = f"{edge.upstream} fans out several outputs, and the measured ratio does not say which"
                workflow.tree.add(("operators", name, "inputs", index, "ratio"), message, "write the ratios by variant")
                continue
            for variant in declared.operators[edge.upstream].variants:
                profile = measured.operators.get(edge.upstream, {}).get(variant)
                if profile is None or profile.mean_children > 0:
                    continue  # a missing profile is reported elsewhere
                path: DocPath = ("operators", edge.upstream, variant)
                command = profile_command(profiles.tree.file)
                hint = f"run `{command}`, or write for example children: [0, 20 %, 80 %]"
                if profile.children:
                    message = f"all outputs have no rows, but the ratio to {name} must be above 0"
                    profiles.tree.add((*path, "children"), message, "remove the variant, or write the ratio")
                else:
                    message = f"missing key 'children': the workflow says that the ratio to {name} is measured"
                    profiles.tree.add(path, message, hint, key=True)


def _check_messages(
    workflow: CheckedWorkflow, profiles: CheckedProfiles, profile: VariantProfile, path: DocPath, readers: list[str]
) -> None:
    missing = [name for name in readers if profile.bytes_to(name) is None]
    if missing:
        message = f"missing key 'message': the size of what it sends to {', '.join(missing)}"
        profiles.tree.add(path, message, "write for example message: 2 KiB", key=True)
    for name in profile.message_bytes:
        if name != ANY_DOWNSTREAM and name not in readers and not workflow.broken:
            hint = did_you_mean(name, readers) or f"read by: {', '.join(readers) or 'nothing'}"
            profiles.tree.add((*path, "message", name), f"{name!r} does not read this operator", hint, key=True)


def _check_workers(
    workflow: CheckedWorkflow,
    infrastructure: CheckedInfrastructure,
    profiles: CheckedProfiles,
    fleet: InfrastructureDocument,
) -> Mapping[str, tuple[str, ...]]:
    """Check worker types and latencies. Returns operator -> pools that have a measured latency."""
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
                _check_variant_types(profiles, path, profile, set(types.values()), pools, unknown)
            if not infrastructure.is_broken("limits"):
                check_latency(profiles, path, profile.latency, fleet)
    return runs_on


def check_types(infrastructure: CheckedInfrastructure, profiles: Sequence[CheckedProfiles]) -> None:
    """Check that each worker type of the fleet occurs in some workflow's profiles."""
    fleet = infrastructure.document
    if fleet is None or any(one.document is None for one in profiles):
        return
    profiled, unknown = sorted(_profiled_types(profiles)), set(_unknown_types(fleet, profiles))
    for name, pool in fleet.workers.items():
        type_ = pool.type or name
        if type_ in unknown:
            hint = did_you_mean(type_, profiled) or f"types with profiles: {', '.join(profiled)}"
            key = "type" if pool.type is not None else ""
            where: DocPath = ("workers", name, key) if key else ("workers", name)
            infrastructure.tree.add(where, f"no profile has the worker type {type_!r}", hint, key=not key)


def _profiled_types(profiles: Sequence[CheckedProfiles]) -> set[str]:
    variants = (v for one in profiles if one.document is not None for v in one.document.operators.values())
    return {type_ for profiled in variants for profile in profiled.values() for type_ in profile.latency}


def _unknown_types(fleet: InfrastructureDocument, profiles: Sequence[CheckedProfiles]) -> list[str]:
    """Worker types without any profile; empty if a profile is broken."""
    if any(one.broken for one in profiles):
        return []
    profiled = _profiled_types(profiles)
    return [type_ for name, pool in fleet.workers.items() if (type_ := pool.type or name) not in profiled]


def _check_variant_types(
    profiles: CheckedProfiles,
    path: DocPath,
    profile: VariantProfile,
    types: set[str],
    pools: tuple[str, ...],
    unknown: list[str],
) -> None:
    """Report misspelt worker types and variants without a latency on any worker type of the fleet.

    Types of the fleet that no profile has (`unknown`) are reported elsewhere; then nothing is reported here.
    """
    for type_ in profile.latency:
        meant = nearest_name(type_, sorted(types - set(profile.latency))) if type_ not in types else None
        if meant is not None and meant not in unknown:
            profiles.tree.add((*path, type_), f"no worker has the type {type_!r}", f"did you mean {meant!r}?", key=True)
    if not pools and not unknown:
        known = ", ".join(sorted(types))
        profiles.tree.add(
            path, "no latency for any worker type of the infrastructure", f"worker types: {known}", key=True
        )


def check_latency(
    profiles: CheckedProfiles,
    path: DocPath,
    latency: Mapping[str, Mapping[int, BatchProfile]],
    fleet: InfrastructureDocument,
) -> None:
    """Check that each worker type of the fleet has batch size 1 and the statistic of `limits.load_from`."""
    load_from = fleet.limits.load_from
    types = {pool.type or name for name, pool in fleet.workers.items()}
    for type_, batches in latency.items():
        if type_ not in types:
            continue
        if 1 not in batches:
            sizes = ", ".join(str(size) for size in batches)
            profiles.tree.add((*path, type_), f"no latency at batch size 1 (only {sizes})", "measure it", key=True)
        for size, figures in batches.items():
            if latency_statistic(figures, load_from) is None:
                message = f"no {load_from} latency, which limits.load_from names"
                where = (*path, type_, str(size))
                where = where if where in profiles.tree.values else where[:-1]
                profiles.tree.add(where, message, f"add {load_from}, or set limits.load_from to a measured statistic")


def check_batches(profiles: CheckedProfiles, models: Models) -> None:
    """Report batches measured for models whose inputs have exactly one row."""
    if profiles.document is None:
        return
    for operator, variants in models.items():
        for variant, model in variants.items():
            single = [port.name for port in model.inputs if port.tensor.shape and port.tensor.shape[0] == 1]
            profile = profiles.document.operators.get(operator, {}).get(variant)
            if single and profile is not None:
                _report_batches(profiles, ("operators", operator, variant, "latency"), profile, single[0])


def _report_batches(profiles: CheckedProfiles, path: DocPath, profile: VariantProfile, port: str) -> None:
    for type_, batches in profile.latency.items():
        for size in batches:
            if size > 1:
                message = f"a batch of {size}, but input {port!r} of the model takes exactly 1 row"
                hint = "remove it, or export the model with a dynamic leading dimension"
                profiles.tree.add((*path, type_, str(size)), message, hint, key=True)
