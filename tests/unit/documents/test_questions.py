"""A question is the project that its settings give as `--set` options, without reading files again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from jellybean.documents import (
    AnyProject,
    Project,
    Settings,
    accuracy_target,
    budget,
    build_problem,
    everyone_served,
    latency_target,
    load_any_project,
    objective,
    rates_of_sources,
    scaled_rates,
    with_settings,
    workflows_named,
)
from jellybean.errors import DocumentError, InputError
from jellybean_solver import Objective
from tests.support.two_scales import make_two_scales
from tests.support.unlike_sites import INFRASTRUCTURE, write_shops
from tests.unit.cli.test_workflows_by_site import HEADER, ROWS, written

Ask = Callable[[AnyProject], Settings]

QUESTIONS: dict[str, Ask] = {
    "rates": lambda project: scaled_rates(project, 1.7),
    "exact rates": lambda project: scaled_rates(project, 1 / 3, digits=None),
    "latency": lambda project: latency_target(project, 0.123456),
    "no latency": lambda project: latency_target(project, None),
    "accuracy": lambda project: accuracy_target(project, 70.0),
    "no accuracy": lambda project: accuracy_target(project, None),
    "mean": lambda project: accuracy_target(project, 70.0, is_mean=True),
    "no mean": lambda project: accuracy_target(project, None, is_mean=True),
    "budget": lambda project: budget(project, 3.0),
    "no budget": lambda project: budget(project, None),
    "objective": lambda project: objective(project, Objective.MEAN_ACCURACY),
    "everyone": everyone_served,
}
BUSY = {"berlin/camera": 3.0, "paris/camera": 7.0}
OPTIONS = {
    "shop": (
        (),
        ("slo.accuracy={mean: 85, least: 50, penalty: 1 USD/h}",),
        ("slo.mean_accuracy=85", "slo.penalty=1 USD/h"),
        ("slo.latency_p99={target: 300 ms, penalty: 0.02 USD/h per 10 ms}", "slo.budget=2 USD/h"),
    ),
    "two": ((), ("shop.slo.accuracy={mean: 85}", "yard.admission.worth=1 USD/h", "limits.budget=1 USD/h")),
    "shops": ((), ("slo.mean_accuracy=85", "berlin.admission.worth=3 USD/h", "rome.sources.camera.rate=9/s")),
    "stores": ((), ("berlin.shop.sources.camera.rate=9/s", "till.slo.accuracy={mean: 85}", "limits.budget=3 USD/h")),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    two = make_two_scales(tmp_path_factory.mktemp("two") / "two")
    stores = written(tmp_path_factory.mktemp("stores"), INFRASTRUCTURE, f"{HEADER}\n{ROWS}")
    shops = write_shops(tmp_path_factory.mktemp("shops"))
    return {"two": two, "shop": two / "workflows" / "shop", "shops": shops, "stores": stores}


def check(folder: Path, options: tuple[str, ...], ask: Ask) -> AnyProject:
    project = load_any_project(folder, options)
    settings = ask(project)
    changed = with_settings(project, settings)
    loaded = load_any_project(folder, (*options, *map(str, settings)))
    assert build_problem(changed) == build_problem(loaded)
    assert changed.overrides == loaded.overrides
    if isinstance(changed, Project) and isinstance(loaded, Project):
        assert changed.workflow == loaded.workflow
    return changed


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("kind", OPTIONS)
def test_a_project_with_settings_is_the_one_that_is_loaded_with_them(
    folders: dict[str, Path], kind: str, name: str
) -> None:
    for options in OPTIONS[kind]:
        if name == "objective" and any("penalty: 0.02" in option for option in options):
            continue  # a soft p99 is weighed against the cost alone
        check(folders[kind], options, QUESTIONS[name])


def test_rates_of_single_workflows_and_sites(folders: dict[str, Path]) -> None:
    check(folders["two"], (), lambda project: rates_of_sources(project, {"shop/x": 3.0, "yard/x": 0.0}))
    asked = check(folders["shops"], (), lambda project: rates_of_sources(project, BUSY))
    rates = {source.name: source.rate_per_s for source in build_problem(asked).sources}
    assert rates == {"berlin/camera": 3.0, "paris/camera": 7.0, "rome/camera": 2.0}


def test_one_workflow_of_one_site_is_asked_about(folders: dict[str, Path]) -> None:
    def ask(project: AnyProject) -> Settings:
        return (*scaled_rates(project, 2.0, names=("shop@rome",)), *accuracy_target(project, 84.0, ("till@paris",)))

    problem = build_problem(check(folders["stores"], (), ask))
    rates = {source.name: source.rate_per_s for source in problem.sources}
    assert rates["shop@rome/camera"] == 8.0
    assert rates["till@rome/camera"] == 4.0
    accuracies = {one.name: one.slo.accuracy for one in problem.workflows}
    assert (accuracies["till@paris"], accuracies["shop@paris"]) == (84.0, 80.0)
    project = load_any_project(folders["stores"])
    assert workflows_named(project, ("till", "shop@rome")) == ("till@berlin", "till@paris", "till@rome", "shop@rome")
    assert {*map(str, latency_target(project, 0.5, workflows_named(project, ("till",))))} == {
        "till.slo.latency_p99=500 ms"
    }
    with pytest.raises(InputError, match="no workflow is called shopp"):
        workflows_named(project, ("shopp",))


def test_rates_that_sites_state_are_scaled_too(folders: dict[str, Path]) -> None:
    project = load_any_project(folders["shops"])
    assert [*map(str, scaled_rates(project, 2.0))] == [
        "sources.camera.rate=8/s",
        "berlin.sources.camera.rate=4/s",
        "rome.sources.camera.rate=4/s",
    ]


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("berlin.sources.camera.rte=1/s", "a site has no 'sources.camera.rte'; did you mean 'sources.camera.rate'?"),
        ("berlin.sources.camera.rate=fast", "berlin.sources.camera.rate: 'fast' is not a rate"),
        ("oslo.sources.camera.rate=1/s", "unknown path: no document has 'oslo'"),
    ],
)
def test_wrong_values_of_sites_are_reported(folders: dict[str, Path], option: str, problem: str) -> None:
    with pytest.raises(DocumentError) as error:
        load_any_project(folders["shops"], (option,))
    assert problem in str(error.value)


@pytest.mark.parametrize("kind", ["shop", "shops"])
def test_a_value_out_of_range_is_refused_as_that_of_an_option(folders: dict[str, Path], kind: str) -> None:
    project = load_any_project(folders[kind], ())
    settings = scaled_rates(project, 1e20)
    with pytest.raises(DocumentError) as asked:
        with_settings(project, settings)
    with pytest.raises(DocumentError) as loaded:
        load_any_project(folders[kind], tuple(map(str, settings)))
    assert str(asked.value).splitlines()[0] in str(loaded.value)
    assert "is too large" in str(asked.value)


def test_null_gives_a_site_the_common_value(folders: dict[str, Path]) -> None:
    problem = build_problem(load_any_project(folders["shops"], ("berlin.sources.camera.rate=null",)))
    assert problem.source_by_name["berlin/camera"].rate_per_s == 4.0
