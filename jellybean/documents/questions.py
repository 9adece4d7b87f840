"""What is asked of a project: values of its documents that are replaced, as `--set` options and without reading files.

A search asks about many projects that differ in a rate, a target or the objective. Each question is a few settings. A
setting is told as the `--set` option that gives the same project to any command, and applied to the documents in
memory, whose models read its value as they read the option's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import ValidationError

from jellybean.documents.multi_workflow import AnyProject, MultiWorkflowProject, by_site, name_at
from jellybean.documents.overrides import LONG_FORMS, last_of_each_path
from jellybean.documents.project import Project
from jellybean.documents.schema.fields import DocumentModel
from jellybean.documents.schema.validation import plain_message
from jellybean.documents.site_table import SiteTable
from jellybean.errors import DocumentError, DocumentProblem, InputError
from jellybean.quantities import (
    CARBON_PER_H,
    DURATION,
    POWER,
    PRICE_PER_H,
    RATE,
    InvalidValueError,
    did_you_mean,
    format_quantity,
    rounded_up,
)
from jellybean_solver import WORKFLOW_SEPARATOR, Objective

DIGITS = 4  # of rates and times in settings
ACCURACY_DIGITS = 10
MOST_NAMED = 6  # workflows in a message
FLEET = ("limits", "workers", "energy", "carbon")  # first keys of paths in infrastructure.yaml

Path = tuple[str, ...]
Value = str | int | float | Mapping[str, str | float] | None
Model = TypeVar("Model", bound=DocumentModel)


@dataclass(frozen=True, slots=True)
class Setting:
    """A value at a path of the documents; None removes it.

    `part`: the workflow, if there are several. `site`: of sites that differ the one whose row of the file has the
    value; empty: the documents have it.
    """

    path: Path
    value: Value
    part: str = ""
    site: str = ""

    def __str__(self) -> str:
        return f"{f'{self.site}.' if self.site else ''}{self.column}={_text(self.value)}"

    @property
    def column(self) -> str:
        """The path as a column of a file of sites."""
        return ".".join((self.part, *self.path) if self.part else self.path)


Settings = tuple[Setting, ...]


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, float):
        return f"{value:.{ACCURACY_DIGITS}g}"
    return "null" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where settings of a workflow go: into its documents, and into the rows of `sites` that state a value."""

    part: str
    project: Project
    site: str = ""

    def settings(self, path: Path, value: Value, of_site: Mapping[str, Value] | None = None) -> Iterator[Setting]:
        """The setting of a value, and of each site that states one. `of_site`: site -> its value; None: the same."""
        yield Setting(path, value, self.part, self.site)
        column, table = Setting(path, value, self.part).column, None if self.site else self.project.site_table
        for site in table.sites if table is not None else ():
            if column in site.values:
                yield Setting(path, value if of_site is None else of_site[site.name], self.part, site.name)

    def stated(self, path: Path) -> Mapping[str, Any]:
        """Site -> the value that it states."""
        column, table = Setting(path, None, self.part).column, None if self.site else self.project.site_table
        return {one.name: one.values[column] for one in (table.sites if table else ()) if column in one.values}


def parts_of(project: AnyProject) -> Mapping[str, Project]:
    """Part of a setting -> the workflow as it is written; the only workflow, also of sites that differ, has no name."""
    if isinstance(project, Project):
        return {"": project}
    return project.written or project.workflows


def workflows_named(project: AnyProject, names: Sequence[str]) -> tuple[str, ...]:
    """The problem's workflows that are named: one, with sites that differ one of a site, or all of a workflow or site.

    InputError for another name.
    """
    known = [] if isinstance(project, Project) else [*project.workflows]
    found: list[str] = []
    for name in names:
        own = [one for one in known if name in (one, *one.split("@"))]
        if not own:
            instead = did_you_mean(name, known) or f"workflows: {', '.join(known[:MOST_NAMED])}"
            raise InputError(f"no workflow is called {name}; {instead if known else 'the project has only one'}")
        found += own
    return tuple(dict.fromkeys(found))


def _places(project: AnyProject, names: Sequence[str]) -> Iterator[_Place]:
    """Of the problem's workflows that are named, or of all that are written."""
    for part, own in parts_of(project).items():
        sites = [] if own.site_table is None else [site.name for site in own.site_table.sites]
        every = [name_at(part, site) for site in sites] or [part]
        if not names or set(every) <= set(names):
            yield _Place(part, own)
        elif isinstance(project, MultiWorkflowProject):
            at = dict(zip(every, sites or [""], strict=True))
            yield from (_Place(part, project.workflows[name], site) for name, site in at.items() if name in names)


def scaled_rates(
    project: AnyProject, factor: float, digits: int | None = DIGITS, names: Sequence[str] = ()
) -> Settings:
    """So many times the rates of all sources, or of those of named workflows, and of the streams that make them up."""
    found: list[Setting] = []
    for place in _places(project, names):
        for name, source in place.project.workflow.sources.items():
            path = ("sources", name, "rate")
            of_site = {site: format_quantity(RATE, factor * rate, digits) for site, rate in place.stated(path).items()}
            found += place.settings(path, format_quantity(RATE, factor * source.rate_per_s, digits), of_site)
            if source.streams is not None:
                found += place.settings((*path[:-1], "streams"), max(1, round(factor * source.streams)))
    return tuple(found)


def rates_of_sources(project: AnyProject, rates_per_s: Mapping[str, float]) -> Settings:
    """The rates of sources, which are named as in the problem; those without requests keep theirs."""
    places = {name: (name, "") for name in parts_of(project)}
    for part, own in parts_of(project).items():
        for site in own.site_table.sites if own.site_table is not None else ():
            places[name_at(part, site.name)] = part, site.name
    found: list[Setting] = []
    for source, rate_per_s in rates_per_s.items():
        workflow, _, name = source.rpartition(WORKFLOW_SEPARATOR)
        if rate_per_s > 0:
            found.append(Setting(("sources", name, "rate"), f"{rate_per_s:.6g}/s", *places[workflow]))
    return tuple(found)


def objective(project: AnyProject, asked: Objective) -> Settings:
    """The objective of all workflows."""
    return tuple(Setting(("objective",), asked.value, part) for part in parts_of(project))


def latency_target(project: AnyProject, seconds: float | None, names: Sequence[str] = ()) -> Settings:
    """One p99 target of workflows, by default of all, in place of theirs, hard or soft; None: no target."""
    text = None if seconds is None else format_quantity(DURATION, rounded_up(DURATION, seconds))
    places = list(_places(project, names))
    if any(place.site for place in places):
        raise InputError(
            "sites have the p99 target of their workflow, not one of their own: name the workflow, or none"
        )
    return tuple(Setting(("slo", "latency_p99"), text, place.part) for place in places)


def accuracy_target(
    project: AnyProject, percent: float | None, names: Sequence[str] = (), *, is_mean: bool = False
) -> Settings:
    """One accuracy target of workflows, by default of all, in place of theirs; None: no target.

    `is_mean`: of all requests together. The least accuracy of any request then stays as it is.
    """
    found: list[Setting] = []
    for place in _places(project, names):
        slo, part = place.project.workflow.slo, place.part
        if is_mean and place.site:
            raise InputError("sites have the mean accuracy of their workflow: name the workflow, or none")
        if slo.mean_accuracy is not None and not place.site:  # it may be written by a key of its own
            found += (Setting(("slo", key), None, part) for key in ("mean_accuracy", "penalty"))
        if not is_mean:
            found += place.settings(("slo", "accuracy"), percent)
            continue
        least = {} if slo.accuracy is None else {"least": slo.accuracy}
        found.append(
            Setting(("slo", "accuracy"), slo.accuracy if percent is None else {"mean": percent, **least}, part)
        )
    return tuple(found)


def budget(project: AnyProject, usd_per_h: float | None) -> Settings:
    """The budget of all workflows together; None: no budget."""
    text = None if usd_per_h is None else format_quantity(PRICE_PER_H, usd_per_h)
    return (Setting(("slo" if "" in parts_of(project) else "limits", "budget"), text),)


def resource_limit(resource: str, amount: float | None) -> Settings:
    """The limit of energy (W) or carbon (g/h) of all workflows together; None: no limit."""
    kind = POWER if resource == Objective.ENERGY else CARBON_PER_H
    text = None if amount is None else format_quantity(kind, rounded_up(kind, amount))
    return (Setting((resource, "limit"), text),)


def worker_counts(counts: Mapping[str, int]) -> Settings:
    """The number of workers of pools, which are named as in the problem."""
    names = ((*pool.rpartition(WORKFLOW_SEPARATOR)[::2], count) for pool, count in counts.items())
    return tuple(Setting(("workers", name, "count"), count, site=site) for site, name, count in names)


def everyone_served(project: AnyProject) -> Settings:
    """No workflow may be left out: of plans that may leave workflows out, the fastest serves nobody."""
    path = ("admission", "worth")
    return tuple(
        setting
        for place in _places(project, ())
        for setting in place.settings(path, None)
        if setting.site or place.project.workflow.admission.worth_usd_per_h is not None
    )


def with_settings(project: AnyProject, settings: Iterable[Setting]) -> AnyProject:
    """The project as it is loaded with the settings as options."""
    asked = tuple(settings)
    if isinstance(project, Project):
        return _told(_changed(project, "", asked), asked)
    overrides = last_of_each_path((*project.overrides, *map(str, asked)))
    parts = {name: _changed(own, name, asked) for name, own in parts_of(project).items()}
    fleet = _with_values(project.infrastructure, _of_fleet(asked))
    if not project.written:
        return replace(project, infrastructure=fleet, workflows=parts, overrides=overrides)
    only = parts.get("")
    if only is not None:
        parts = {"": _told(only, asked)}
    most = fleet.limits.budget_usd_per_h if only is None else only.workflow.slo.budget_usd_per_h
    return by_site(project.directory, parts, most, overrides)


def _told(project: Project, settings: Settings) -> Project:
    """The project, and its alternatives, with the settings among its overrides."""
    overrides = last_of_each_path((*project.overrides, *map(str, settings)))
    others = tuple(replace(one, overrides=overrides) for one in project.alternatives)
    return replace(project, overrides=overrides, alternatives=others)


def _of_fleet(settings: Sequence[Setting]) -> list[tuple[Path, Value]]:
    """Values of infrastructure.yaml, without those of sites."""
    return [(one.path, one.value) for one in settings if one.path[0] in FLEET and not one.site]


def _changed(project: Project, part: str, settings: Sequence[Setting]) -> Project:
    """The workflow `part` with the settings that are its own, and those of the fleet and of sites."""
    table = project.site_table
    of_sites: dict[str, dict[str, Any]] = {}
    for one in settings:
        if table is not None and one.site and (one.part == part or one.path[0] in FLEET):
            of_sites.setdefault(one.site, {})[one.column] = _of_site(table, one)
    own = [one for one in settings if one.part == part and one.path[0] not in FLEET]
    values = [(one.path, one.value) for one in own if not one.site]
    return replace(
        project,
        infrastructure=_with_values(project.infrastructure, _of_fleet(settings)),
        workflow=_with_values(project.workflow, values),
        site_table=table.with_values(of_sites) if table is not None and of_sites else table,
        alternatives=tuple(_changed(one, part, settings) for one in project.alternatives),
    )


def _of_site(table: SiteTable, setting: Setting) -> Any:
    """The value of a site's column. DocumentError if it is none of that column."""
    if setting.value is None:
        return None
    try:
        return table.read(setting.column, _text(setting.value))
    except InvalidValueError as error:
        path = f"{setting.site}.{setting.column}"
        problem = DocumentProblem(f"--set {setting}", None, None, path, error.message, error.hint)
        raise DocumentError([problem]) from error


def _with_values(model: Model, values: Sequence[tuple[Path, Value]], at: Path = ()) -> Model:
    """The model, at the path `at` of its document, with the values at their paths, which it checks."""
    names = {info.alias or name: name for name, info in type(model).model_fields.items()}
    inner: dict[str, list[tuple[Path, Value]]] = {}
    own: dict[str, Value] = {}
    for (key, *rest), value in values:
        if rest:
            inner.setdefault(key, []).append((tuple(rest), value))
        else:
            own |= {**dict.fromkeys(LONG_FORMS.get((*at, key), ())), key: value}
    changed = {names[key]: _with_inner_values(getattr(model, names[key]), of, (*at, key)) for key, of in inner.items()}
    model = model.model_copy(update=changed) if changed else model
    if not own:
        return model
    stated = {key: getattr(model, name) for key, name in names.items() if name in model.model_fields_set}
    try:
        return type(model).model_validate({key: value for key, value in (stated | own).items() if value is not None})
    except ValidationError as error:
        raise DocumentError(_problems(error, at)) from error


def _problems(error: ValidationError, at: Path) -> Iterator[DocumentProblem]:
    """Why values are refused, as options with them would be."""
    for details in error.errors(include_url=False):
        path, cause = ".".join(map(str, (*at, *details["loc"]))), details.get("ctx", {}).get("error")
        hint = cause.hint if isinstance(cause, InvalidValueError) else ""
        yield DocumentProblem(f"--set {path}={details['input']}", None, None, path, plain_message(details), hint)


def _with_inner_values(node: Any, values: Sequence[tuple[Path, Value]], at: Path) -> Any:
    """The same of a model in a model, or of a map of models."""
    if isinstance(node, DocumentModel):
        return _with_values(node, values, at)
    by_name = {name: [(tuple(rest), value) for (own, *rest), value in values if own == name] for name in node}
    return {name: _with_values(spec, by_name[name], (*at, name)) for name, spec in node.items()}
