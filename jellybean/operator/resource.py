"""The spec of a Workflow resource: workflow, fleet, profiles and deployment in one object, with the documents' keys.

Or several workflows on one fleet, each with its profiles, in `spec.workflows`.

Its schema is generated from the documents' models. To read a resource, its parts are written as a project's documents
and validated as such. Model files are identified by their hashes, not read: only the pods have them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from jellybean.documents import (
    AnyProject,
    InfrastructureDocument,
    ProfilesDocument,
    Project,
    WorkflowDocument,
    load_any_project,
    load_project,
    require_current,
    written_projects,
)
from jellybean.documents.cascades.expansion import stated_flows
from jellybean.documents.kubernetes import KUBERNETES_FILE, KubernetesDocument, load_settings, with_label_rules
from jellybean.documents.layout import INFRASTRUCTURE_FILE, PROFILES_FILE, WORKFLOW_FILE, WORKFLOWS_FOLDER
from jellybean.documents.planning_problem.model_files import model_ref, python_ref
from jellybean.documents.planning_problem.stream_capacity import utilisation_of
from jellybean.documents.schema.fields import AUTO, FROM_DOCUMENT, DocumentModel, Duration, Name, PricePerHour, Tiers
from jellybean.documents.schema.infrastructure import LimitsSpec, LinkSpec, MigrationSpec
from jellybean.documents.schema.profiles import without_provenance
from jellybean.documents.schema.validation import plain_message
from jellybean.errors import DocumentError, DocumentProblem, StaleProfilesError
from jellybean_agent import BUILTIN_STEPS_MODULE, split_function_name
from jellybean_k8s import (
    CRD_API_VERSION,
    CRD_KIND,
    DeploymentSettings,
    SchemaRules,
    crd,
    dns_name,
    structural_schema,
    without_descriptions,
)

Object = Mapping[str, Any]
_NOT_IN_SPEC = ("kind", "name")  # of workflow.yaml: a resource has its own
_WORKFLOW_KEYS = tuple(name for name in WorkflowDocument.model_fields if name not in _NOT_IN_SPEC)
_WORKFLOWS = "workflows"  # key of the spec: several instead of one
_ONE_CLUSTER = ("clusters", "relay")  # of kubernetes.yaml, not of a resource: an operator deploys to its own cluster
_MOST_WORKFLOWS = 50  # in one resource, whose size is limited
_PARTS = {  # file name of a document -> path in the spec
    WORKFLOW_FILE: "spec.",
    INFRASTRUCTURE_FILE: "spec.infrastructure.",
    PROFILES_FILE: "spec.profiles.",
    KUBERNETES_FILE: "spec.kubernetes.",
}


class DiscoverSpec(DocumentModel):
    """A fleet discovered from the cluster's nodes by their labels: pools, counts and memory."""

    tiers: Tiers = Field(description="Nearest the data first, as nodes' labels name them.")
    prices: dict[Name, PricePerHour] = Field(
        default={}, description="By pool, instance type or node; the label jellybean.dev/price-usd-per-h goes first."
    )
    links: Annotated[tuple[LinkSpec, ...], Field(strict=False)] = Field(
        default=(), description="Between tiers: what they cost and carry."
    )
    limits: LimitsSpec = LimitsSpec()
    migration: MigrationSpec = MigrationSpec()


class ConfigMapKey(DocumentModel):
    """A text in a ConfigMap of the same namespace."""

    config_map: Annotated[str, Field(min_length=1, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")] = Field(
        description="Its name."
    )
    key: Annotated[str, Field(min_length=1)] = PROFILES_FILE


class ReplanSpec(DocumentModel):
    """When a running plan is re-planned, and what a change must gain."""

    horizon_s: Duration = Field(
        default=86400.0, alias="horizon", gt=0, description="Time over which a change must pay; 24 h unless given."
    )
    debounce_s: Duration = Field(
        default=15.0, alias="debounce", description="What changed must have stayed so for this long; 15 s unless given."
    )
    time_limit_s: Duration = Field(
        default=60.0, alias="time_limit", gt=0, description="Of one search; the best plan so far counts."
    )


class OperatorSpec(DocumentModel):
    """The part of the spec that belongs to no document of a project."""

    kind: Literal["Workflow"]
    discover: DiscoverSpec | None = Field(default=None, description="Instead of infrastructure.")
    profiles_from: ConfigMapKey | None = Field(default=None, description="Instead of profiles: profiles.yaml.")
    replan: ReplanSpec = ReplanSpec()
    certificates: Literal["issued", "given"] = Field(
        default="issued",
        description="issued: by an authority of this workflow, kept in a Secret, and renewed; given: you bring them.",
    )
    in_place: bool = Field(
        default=False, description="The running plan goes before the new one comes: where nodes have no room for two."
    )
    start_s: Duration = Field(
        default=600.0, alias="timeout", gt=0, description="Longest that a new plan may take to be ready."
    )
    suspend: bool = Field(default=False, description="Leave all as it is.")


RULES: SchemaRules = {
    "InputSpec": [
        ("!(has(self.gather) && self.gather && has(self.ratio))", "gather and ratio exclude each other"),
    ],
    "VariantSpec": [
        ("has(self.python) || has(self.model) == has(self.sha256)", "a model is named by its file and its sha256"),
        ("!(has(self.python) && has(self.model))", "model and python exclude each other"),
    ],
    "AccuracyProfile": [
        (
            "[has(self.end_to_end), has(self.per_operator), has(self.independent)].exists_one(given, given)",
            "accuracy has one form: end_to_end, per_operator or independent",
        )
    ],
    "ShareSpec": [
        (
            "[has(self.mig), has(self.mps), has(self.slots)].exists_one(given, given)",
            "a share has one form: mig, mps or slots",
        )
    ],
    "CacheSpec": [
        ("has(self.claim) != has(self.host_path)", "a cache is either claim or host_path"),
    ],
    "TracesSpec": [
        ("!has(self.secret) || self.endpoint.startsWith('https://')", "a secret is sent to https:// alone"),
    ],
    "ModelsSpec": [
        (
            "[has(self.url), has(self.image), has(self.claim)].exists_one(given, given)",
            "one of url, image or claim says where the model files are",
        ),
        ("!has(self.cache) || has(self.url)", "only files of a url are kept in a cache"),
        (
            "!(has(self.secret) && has(self.url)) || self.url.startsWith('https://')",
            "only https:// keeps a secret secret",
        ),
    ],
}
_FLEET_RULES = [
    ("self.workers.all(pool, self.workers[pool].tier in self.tiers)", "a pool's tier must be one of tiers"),
    (
        "!has(self.links) || self.links.all(link, link.from in self.tiers && link.to in self.tiers)",
        "links lead from a tier to a tier",
    ),
]
_SPEC_RULES = [
    ("has(self.infrastructure) != has(self.discover)", "the fleet is either infrastructure or discover"),
    (
        "has(self.workflows) || has(self.profiles) != has(self.profiles_from)",
        "either profiles or profiles_from",
    ),
    (
        "has(self.workflows) ? !has(self.sources) && !has(self.operators) && !has(self.profiles) && "
        "!has(self.profiles_from) : has(self.sources) && has(self.operators)",
        "either sources and operators of one workflow, or workflows with theirs",
    ),
    (
        "(has(self.kubernetes.name) ? self.kubernetes.name : '') == "
        "(has(oldSelf.kubernetes.name) ? oldSelf.kubernetes.name : '')",
        "the name of a deployment stays; make another Workflow",
    ),
]
_ROOT_RULES = [("size(self.metadata.name) <= 63", "the name of a workflow has at most 63 characters")]


def resource_definition() -> dict[str, Any]:
    """The CustomResourceDefinition."""
    spec = structural_schema(WorkflowDocument.model_json_schema(), RULES, without=_NOT_IN_SPEC)
    own = structural_schema(OperatorSpec.model_json_schema(), RULES, without=("kind",))
    fleet = structural_schema(InfrastructureDocument.model_json_schema(), RULES, without=("kind",))
    deployment = structural_schema(KubernetesDocument.model_json_schema(), RULES, without=("kind", *_ONE_CLUSTER))
    profiles = structural_schema(ProfilesDocument.model_json_schema(), RULES, without=("kind",))
    fleet["x-kubernetes-validations"] = [{"rule": rule, "message": text} for rule, text in _FLEET_RULES]
    spec["properties"] |= {"infrastructure": fleet, "profiles": profiles, "kubernetes": deployment, **own["properties"]}
    spec["properties"][_WORKFLOWS] = {
        "type": "object",
        "description": "Several workflows on one fleet, by name, instead of sources, operators and profiles.",
        "maxProperties": _MOST_WORKFLOWS,
        "additionalProperties": _one_of_several(),
    }
    spec["required"] = ["kubernetes"]
    spec["x-kubernetes-validations"] = [{"rule": rule, "message": text} for rule, text in _SPEC_RULES]
    spec["description"] = "workflow.yaml, and beside it the fleet, the profiles and the deployment."
    return crd(spec, _ROOT_RULES)


def _one_of_several() -> dict[str, Any]:
    """The schema of a workflow in `spec.workflows`.

    Without rules, which would cost the API server too much for many workflows: the operator checks the same. Without
    descriptions, which are those of the spec: `kubectl apply` takes definitions up to 256 KiB.
    """
    found = structural_schema(WorkflowDocument.model_json_schema(), {}, without=_NOT_IN_SPEC)
    profiles = structural_schema(ProfilesDocument.model_json_schema(), {}, without=("kind",))
    found["properties"] |= {"profiles": profiles}
    found["required"] = [*found["required"], "profiles"]
    return without_descriptions(found)


def operator_spec(resource: Object) -> OperatorSpec:
    """Parse the operator's own part of a resource's spec. DocumentError with every problem."""
    own = {key: value for key, value in resource["spec"].items() if key in _own_keys()}
    try:
        return OperatorSpec.model_validate(
            {"kind": CRD_KIND, **own}, context=FROM_DOCUMENT, by_alias=True, by_name=False
        )
    except ValidationError as error:
        problems = [
            DocumentProblem("spec", None, None, ".".join(map(str, found["loc"])), plain_message(found))
            for found in error.errors(include_url=False)
        ]
        raise DocumentError(problems) from error


def _own_keys() -> frozenset[str]:
    return frozenset(info.alias or name for name, info in OperatorSpec.model_fields.items()) - {"kind"}


@dataclass(frozen=True)
class ResourceProject:
    """A resource as a project in a folder, with the settings of its deployment."""

    project: AnyProject
    settings: DeploymentSettings


def lay_out(resource: Object, infrastructure: Object, profiles: str, folder: Path) -> ResourceProject:
    """Write a resource's documents to a folder and validate them. DocumentError with paths of the resource.

    `infrastructure`: from the spec, or discovered. `profiles`: text of profiles.yaml; of several workflows each has its
    own in the spec.
    """
    spec, name = resource["spec"], resource["metadata"]["name"]
    _refuse_clusters(spec["kubernetes"])
    _require_names(spec.get(_WORKFLOWS, {}))
    root = folder / name  # a project of several workflows has the name of its folder
    root.mkdir()
    _write(root / INFRASTRUCTURE_FILE, {"kind": "Infrastructure", **infrastructure})
    _write(root / KUBERNETES_FILE, {"kind": "Kubernetes", **spec["kubernetes"]})
    for own, part in spec.get(_WORKFLOWS, {}).items():
        _lay_out_workflow(root / WORKFLOWS_FOLDER / own, own, part, stated_profiles(part))
    if _WORKFLOWS not in spec:
        _lay_out_workflow(root, name, spec, profiles)
    try:
        project = load_any_project(root, files=False) if _WORKFLOWS in spec else load_project(root, files=False)
        require_current(project)
        return ResourceProject(project, with_label_rules(load_settings(root), project))
    except StaleProfilesError as error:
        hint = "run `jellybean profile` and `jellybean render --resource` (--stale accepts the old figures)"
        problems = [replace(_in_resource(problem, spec), hint=hint) for problem in error.problems]
        raise DocumentError(problems) from error
    except DocumentError as error:
        raise DocumentError([_in_resource(problem, spec) for problem in error.problems]) from error


def _refuse_clusters(kubernetes: Object) -> None:
    """DocumentError if a resource names several clusters."""
    for key in _ONE_CLUSTER:
        if kubernetes.get(key):
            what = "an operator deploys to its own cluster only"
            hint = f"remove {key}; `jellybean deploy` deploys to several clusters"
            raise DocumentError([DocumentProblem(f"spec.kubernetes.{key}", None, None, "", what, hint)])


def _require_names(workflows: Object) -> None:
    """DocumentError for a key that is no name of a workflow: each becomes a folder."""
    valid = TypeAdapter(Name)
    for own in workflows:
        try:
            valid.validate_python(own, context=FROM_DOCUMENT)
        except ValidationError as error:
            message = plain_message(error.errors(include_url=False)[0])
            raise DocumentError([DocumentProblem(f"spec.{_WORKFLOWS}", None, None, "", message)]) from error


def _lay_out_workflow(folder: Path, name: str, part: Object, profiles: str) -> None:
    """Write workflow.yaml and profiles.yaml of a workflow."""
    folder.mkdir(parents=True, exist_ok=True)
    workflow = {key: part[key] for key in _WORKFLOW_KEYS if key in part}
    _write(folder / WORKFLOW_FILE, {"kind": "Workflow", "name": name, **workflow})
    (folder / PROFILES_FILE).write_text(profiles, encoding="utf-8")


def _write(path: Path, document: Object) -> None:
    path.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")


def _in_resource(problem: DocumentProblem, spec: Object) -> DocumentProblem:
    """A problem of a document, located by its path in the resource."""
    file = Path(problem.file).name
    if _WORKFLOWS in spec and file in (WORKFLOW_FILE, PROFILES_FILE):
        own = "profiles." if file == PROFILES_FILE else ""
        place = f"spec.{_WORKFLOWS}.{Path(problem.file).parent.name}.{own}{problem.path}".rstrip(".")
        return DocumentProblem(place, None, None, "", problem.message, problem.hint)
    if file == PROFILES_FILE and "profiles_from" in spec:
        where = f"ConfigMap {spec['profiles_from'].get('config_map')}"
        return DocumentProblem(where, problem.line, problem.column, problem.path, problem.message, problem.hint)
    prefix = "spec.discover." if file == INFRASTRUCTURE_FILE and "discover" in spec else _PARTS.get(file, "")
    place = f"{prefix}{problem.path}".rstrip(".") or file
    return DocumentProblem(place, None, None, "", problem.message, problem.hint)


def stated_profiles(spec: Object) -> str:
    """spec.profiles as the text of profiles.yaml."""
    return json.dumps({"kind": "Profiles", **spec["profiles"]}, ensure_ascii=False)


def to_resource(project: AnyProject, kubernetes: KubernetesDocument) -> dict[str, Any]:
    """A project as a resource, with every value in its long form. ValueError without profiles.

    DocumentError if it is deployed to several clusters.
    """
    _refuse_clusters(_dump(kubernetes))
    parts = written_projects(project)
    dumped = {name: _workflow_part(part) for name, part in parts.items()}
    infrastructure = _dump(project.infrastructure)
    if project.infrastructure.limits.utilisation == AUTO:
        limits = [utilisation_of(part.workflow, part.infrastructure) for part in parts.values()]
        infrastructure["limits"]["utilisation"] = min(limits)
    if isinstance(project, Project):
        name, spec = project.workflow.name, dumped[project.workflow.name]
    else:
        name, spec = project.name, {_WORKFLOWS: dumped}
    return {
        "apiVersion": CRD_API_VERSION,
        "kind": CRD_KIND,
        "metadata": {"name": dns_name(name)},
        "spec": {**spec, "infrastructure": infrastructure, "kubernetes": _dump(kubernetes)},
    }


def _workflow_part(project: Project) -> dict[str, Any]:
    """A workflow with its profiles, as the spec states them."""
    if project.profiles is None:
        raise ValueError("a resource has profiles")
    workflow = _dump(project.workflow)
    _state_measured(project.workflow, project.profiles, workflow)
    _name_modules(project, workflow)
    _name_files(project, workflow)
    _state_cascades(project, workflow)
    profiles = _dump(without_provenance(project.profiles) if project.accept_stale else project.profiles)
    return {**{key: value for key, value in workflow.items() if key in _WORKFLOW_KEYS}, "profiles": profiles}


def _state_measured(workflow: WorkflowDocument, profiles: ProfilesDocument, dumped: dict[str, Any]) -> None:
    """Replace `ratio: measured` by the measured ratios."""
    for name, operator in workflow.operators.items():
        for edge, written in zip(operator.inputs, dumped["operators"][name]["inputs"], strict=True):
            if edge.measured:
                variants = profiles.operators[edge.upstream]
                known = workflow.operators[edge.upstream].variants
                written["ratio"] = {variant: variants[variant].mean_children for variant in known}


def _name_modules(project: Project, dumped: dict[str, Any]) -> None:
    """Add to the spec the sha256 of the project's Python modules; the agent's own modules need none."""
    for name, operator in project.workflow.operators.items():
        for variant, spec in operator.variants.items():
            found = python_ref(project.directory, name, variant, spec)
            if (
                found is not None
                and found.python is not None
                and split_function_name(found.python.function)[0] != BUILTIN_STEPS_MODULE
            ):
                dumped["operators"][name]["variants"][variant]["sha256"] = found.python.module_sha256


def _name_files(project: Project, dumped: dict[str, Any]) -> None:
    """Add to the spec the files of models with data files, as the operator has no files to read that from."""
    for name, operator in project.workflow.operators.items():
        for variant, spec in operator.variants.items():
            found = model_ref(project.directory, spec.model, spec.sha256)
            if found is not None and found.files:
                files = {file.path: file.sha256 for file in found.files}
                dumped["operators"][name]["variants"][variant]["files"] = files


def _state_cascades(project: Project, dumped: dict[str, Any]) -> None:
    """Add the cascades to the spec, with what flows in them, as the operator has no models to read that from."""
    for own in project.alternatives:
        if (cascade := own.cascade) is not None:
            spec = cascade.spec.model_copy(update={"flows": stated_flows(cascade, own.workflow)})
            dumped["operators"][cascade.operator]["variants"][cascade.variant] = {"cascade": _dump(spec)}


def _dump(document: DocumentModel) -> dict[str, Any]:
    found = document.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude_defaults=True, context={"long": True}
    )
    return {key: value for key, value in found.items() if key not in ("kind", "name")}
