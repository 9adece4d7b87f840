"""Sites that differ: what the file of sites means, and everything that can be wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from jellybean.documents import MultiWorkflowProject, build_problem, load_any_project, load_project
from jellybean.errors import DocumentError
from jellybean_solver import LossKind, Plan, Problem, evaluate, losses, served_shares, solve
from tests.plan_check import complaints
from tests.support.unlike_sites import INFRASTRUCTURE, PROFILES, WORKFLOW, random_stores, write_shops

HEADER = "site,sources.camera.rate,workers.box.count\n"
MBIT = 1e6 / 8


@pytest.fixture
def shops(tmp_path: Path) -> Path:
    return write_shops(tmp_path)


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")


def told(folder: Path, overrides: Sequence[str] = ()) -> list[str]:
    with pytest.raises(DocumentError) as caught:
        load_any_project(folder, overrides)
    return [str(problem).replace(f"{folder}/", "") for problem in caught.value.problems]


def problem_of(folder: Path, overrides: Sequence[str] = ()) -> Problem:
    return build_problem(load_any_project(folder, overrides))


def planned(problem: Problem) -> Plan:
    plan = solve(problem).plan
    assert plan is not None
    assert complaints(problem, plan) == []
    return plan


def test_each_site_is_a_workflow_on_its_own_tier_pools_and_link(shops: Path) -> None:
    problem = problem_of(shops)
    assert problem.name == "shops"
    assert problem.tiers == ("store/berlin", "store/paris", "store/rome", "cloud")
    assert {source.name: (source.tier, source.rate_per_s) for source in problem.sources} == {
        "berlin/camera": ("store/berlin", 2.0),
        "paris/camera": ("store/paris", 4.0),
        "rome/camera": ("store/rome", 2.0),
    }
    pools = {pool.name: (pool.tier, pool.count, pool.price_usd_per_h) for pool in problem.pools}
    assert pools == {
        "gpu": ("cloud", 6, 0.6),
        "berlin/box": ("store/berlin", 1, 0.05),
        "paris/box": ("store/paris", 4, 0.04),
    }
    assert {link.upstream_tier: link.bandwidth_bytes_per_s for link in problem.links} == {
        "store/berlin": 20 * MBIT,
        "store/paris": 50 * MBIT,
        "store/rome": 20 * MBIT,
    }
    assert {workflow.name: workflow.slo.accuracy for workflow in problem.workflows} == {
        "berlin": 80.0,
        "paris": 95.0,
        "rome": 80.0,
    }
    assert problem.operator_by_name["paris/count"].tiers == ("store/paris", "cloud")


def test_a_variant_has_times_only_where_the_data_of_its_site_can_be(shops: Path) -> None:
    operators = problem_of(shops).operator_by_name
    assert [set(operators[f"{site}/detect"].variant("small").service) for site in ("berlin", "rome")] == [
        {"berlin/box", "gpu"},
        {"gpu"},
    ]
    first, second = (operators[f"{site}/detect"].variant("small").service for site in ("berlin", "paris"))
    assert first["berlin/box"] is second["paris/box"]  # figures are shared, as there may be many sites


STATE = "detect: {inputs: [camera], state: {by: stream, tensors: {seen: seen_next}},"


def keep_states(shops: Path) -> Path:
    """Let the shops' detectors keep a state by stream, of two streams where the file does not say how many."""
    edit(shops / "workflow.yaml", "rate: 4/s,", "rate: 4/s, streams: 2,")
    edit(shops / "workflow.yaml", "detect: {inputs: [camera],", STATE)
    return shops


def test_sites_have_streams_of_their_own(shops: Path) -> None:
    """A box takes 0.8 / (60 ms x 1/s) = 13 streams of one image per second, and 6 of two per second."""
    keep_states(shops)
    stores = "site,sources.camera.rate,sources.camera.streams\na,4/s,4\nb,4/s,2\nc,,\n"
    (shops / "stores.csv").write_text(stores, encoding="utf-8")
    problem = problem_of(shops)
    assert [source.streams for source in problem.sources] == [4, 2, 2]
    load_s = [
        problem.operator_by_name[f"{site}/detect"].variant("small").service[f"{site}/box"][1].load_s for site in "ab"
    ]
    assert load_s == pytest.approx([0.8 / 13, 0.8 / 12])
    planned(problem)
    (shops / "stores.csv").write_text("site,sources.camera.rate\na,\nb,1000/s\n", encoding="utf-8")
    with pytest.raises(DocumentError, match="b: no worker takes one stream: it sends 500 chunks/s"):
        problem_of(shops)


def test_only_sources_of_states_have_streams(shops: Path) -> None:
    (shops / "stores.csv").write_text("site,sources.camera.streams\na,3\n", encoding="utf-8")
    assert "a site has no 'sources.camera.streams'" in told(shops)[0]


def by_hand(folder: Path, stores: str) -> Path:
    """The same fleet as folders of workflows, each in a tier of its own."""
    columns, *rows = [line.split(",") for line in stores.splitlines()]
    sites = [{name: cell for name, cell in zip(columns, row, strict=True) if cell} for row in rows]
    tiers, pools, links = [], [], []
    for row in sites:
        site = row["site"]
        tiers.append(f"at-{site}")
        count, price = row.get("workers.box.count", "2"), row.get("workers.box.price", "0.05 USD/h")
        pools.append(f"  box-{site}: {{tier: at-{site}, type: box, count: {count}, price: {price}}}")
        bandwidth = row.get("links.cloud.bandwidth", "20 Mbit/s")
        links.append(f"  - {{from: at-{site}, to: cloud, price: 0.05 USD/GiB, bandwidth: {bandwidth}, latency: 20 ms}}")
        own = folder / "workflows" / site
        own.mkdir(parents=True)
        workflow = WORKFLOW.replace("store", f"at-{site}").replace("4/s", row.get("sources.camera.rate", "4/s"))
        workflow = workflow.replace("accuracy: 80", f"accuracy: {row.get('slo.accuracy', '80')}")
        (own / "workflow.yaml").write_text(workflow, encoding="utf-8")
        (own / "profiles.yaml").write_text(PROFILES, encoding="utf-8")
    gpu = next(line for line in INFRASTRUCTURE.splitlines() if "gpu:" in line)
    lines = ["kind: Infrastructure", f"tiers: [{', '.join(tiers)}, cloud]", "workers:", *pools, gpu, "links:", *links]
    (folder / "infrastructure.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_plan_is_that_of_workflows_written_one_by_one(tmp_path: Path, seed: int) -> None:
    (tmp_path / "sites").mkdir()
    stores = random_stores(4, seed)
    sites = planned(problem_of(write_shops(tmp_path / "sites", stores)))
    folders = planned(problem_of(by_hand(tmp_path / "shops", stores)))
    assert sites.cost.total_usd_per_h == pytest.approx(folders.cost.total_usd_per_h)
    assert sites.certificate.bound == pytest.approx(folders.certificate.bound)
    assert {w.name: w.slo for w in sites.workflows} == {w.name: w.slo for w in folders.workflows}


def test_equal_sites_cost_what_identical_sites_cost(shops: Path) -> None:
    (shops / "stores.csv").write_text("site\na\nb\nc\n", encoding="utf-8")
    assert planned(problem_of(shops)).cost.total_usd_per_h == pytest.approx(
        planned(problem_of(shops, ["sites.store=3"])).cost.total_usd_per_h
    )


def test_options_change_the_documents_before_the_sites(shops: Path) -> None:
    options = ["sources.camera.rate=3/s", "workers.gpu.count=9", "slo.accuracy=85", "slo.budget=7 USD/h"]
    problem = problem_of(shops, options)
    assert [source.rate_per_s for source in problem.sources] == [2.0, 3.0, 2.0]
    assert problem.pool_by_name["gpu"].count == 9
    assert [workflow.slo.accuracy for workflow in problem.workflows] == [85.0, 95.0, 85.0]
    assert problem.slo.budget_usd_per_h == 7.0
    assert {workflow.slo.budget_usd_per_h for workflow in problem.workflows} == {None}


def test_a_number_of_sites_takes_the_place_of_the_file(shops: Path) -> None:
    problem = build_problem(load_project(shops, ["sites.store=2"]))
    assert (problem.sites, problem.workflows) == ({"store": 2}, ())


def test_a_pool_may_be_in_some_sites_only(shops: Path) -> None:
    edit(shops / "infrastructure.yaml", "count: 2", "count: 0")
    edit(shops / "infrastructure.yaml", "gpu: {tier: cloud, count: 6", "gpu: {tier: cloud, count: 0")
    (shops / "stores.csv").write_text("site,workers.box.count\na,4\nb,5\n", encoding="utf-8")
    assert [pool.name for pool in problem_of(shops).pools] == ["a/box", "b/box"]


def test_tiers_of_data_are_those_of_the_site(shops: Path) -> None:
    edit(shops / "workflow.yaml", "message: 60 KiB}", "message: 60 KiB, stays_in: [store]}")
    operators = problem_of(shops).operator_by_name
    assert operators["paris/detect"].inputs[0].tiers == ("store/paris",)


def test_commands_for_one_workflow_say_what_to_do(shops: Path) -> None:
    with pytest.raises(DocumentError, match=r"has 3 sites that differ \(stores.csv\).* not served yet.*sites.store=2"):
        load_project(shops)


def test_the_written_documents_are_read_once(shops: Path) -> None:
    project = load_any_project(shops)
    assert isinstance(project, MultiWorkflowProject)
    assert list(project.workflows) == ["berlin", "paris", "rome"]
    assert list(project.written_workflows) == ["shops"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "stores.csv:1:1: the file is empty; write a header, for example site,sources.camera.rate,"),
        ("site\n\n", "stores.csv:1:1: the file has no rows below the header; add a row for each site"),
        ("name,note\na,b\n", "stores.csv:1:1: site: the header has no column site; write for example site,"),
        ("site;note\na;b\n", "stores.csv:1:1: site: the header has no column site; separate the columns by commas"),
        (
            "site,workers.box.cuont\na,1\n",
            "stores.csv:1:6: workers.box.cuont: a site has no 'workers.box.cuont'; did you mean 'workers.box.count'?",
        ),
        (
            "site,workers.gpu.count\na,1\n",
            "stores.csv:1:6: workers.gpu.count: gpu is in cloud, so it does not belong to a site of store; write it",
        ),
        ("site,slo.latency_p99\na,1 s\n", "stores.csv:1:6: slo.latency_p99: a site has no 'slo.latency_p99'"),
        ("site,note,note\na,b,c\n", "stores.csv:1:11: note: a second column of this name; keep one of them"),
        ("site,,note\na,b,c\n", "stores.csv:1:6: column 2 has no name; name or remove it"),
        ("site,note\na,b,c\n", "stores.csv:2:5: 3 cells, but the header has 2 columns; quote a cell"),
        ("site\na\nb\na\n", "stores.csv:4:1: site: a second site 'a', first on line 2; rename one"),
        ("site,note\n,b\n", "stores.csv:2:1: site: the site has no name; write a name that no other site has"),
        ("site\nbad name\n", "stores.csv:2:1: site: 'bad name' is not a valid name; use at most 63"),
        (HEADER + "a,4,1\n", "stores.csv:3:3: sources.camera.rate: 4 has no unit; give a unit: 4/s, 4/min or 4/h"),
        (HEADER + "a,0/s,1\n", "stores.csv:3:3: sources.camera.rate: must be above 0"),
        (HEADER + "a,,-1\n", "stores.csv:3:4: workers.box.count: must be at least 0, not -1"),
        (HEADER + "a,,1.5\n", "stores.csv:3:4: workers.box.count: the number 1.5 is not an integer; write 1 or 2"),
        ("site,slo.accuracy\na,120\n", "stores.csv:2:3: slo.accuracy: must be at most 100, not 120"),
    ],
)
def test_a_wrong_file_is_refused_with_line_and_column(shops: Path, text: str, message: str) -> None:
    (shops / "stores.csv").write_text(text.replace(HEADER, f"{HEADER}\n"), encoding="utf-8")
    (problem,) = told(shops)
    assert problem.startswith(message)


def test_all_problems_of_a_file_are_told_at_once(shops: Path) -> None:
    text = "site,workers.box.cout,sources.camera.rate\na,1,2\na,2,2/s\nc,2,2/s,9\n"
    (shops / "stores.csv").write_text(text, encoding="utf-8")
    edit(shops / "workflow.yaml", "[camera]", "[kamera]")
    places = [problem.split(": ")[0] for problem in told(shops)]
    assert places == ["stores.csv:1:6", "stores.csv:2:5", "stores.csv:3:1", "stores.csv:4:9", "workflow.yaml:6:21"]


def test_a_missing_file_is_told_where_it_is_named(shops: Path) -> None:
    edit(shops / "infrastructure.yaml", "stores.csv", "store.csv")
    assert told(shops) == [
        "infrastructure.yaml:3:16: sites.store: store.csv: file not found; did you mean 'stores.csv'?"
    ]


def test_a_file_that_is_not_text_is_told(shops: Path) -> None:
    (shops / "stores.csv").write_bytes(b"site\n\xff\n")
    assert told(shops)[0].startswith("stores.csv:1:1: is not UTF-8 text")


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "infrastructure.yaml",
            "stores.csv",
            "many",
            "sites.store: 'many' is neither a number of sites nor a .csv file",
        ),
        ("infrastructure.yaml", "stores.csv", "../stores.csv", "sites.store: '../stores.csv' is neither a number"),
        ("infrastructure.yaml", "stores.csv", "0", "sites.store: must be at least 1, not 0"),
        ("infrastructure.yaml", "stores.csv", "1.5", "sites.store: the number 1.5 is not an integer; write 1 or 2"),
        ("infrastructure.yaml", "stores.csv}", "stores.csv, cloud: 1}", "sites.cloud: store has sites that differ"),
        ("infrastructure.yaml", "{store: ", "{cloud: ", "no source is in cloud; write sites: {store: ...}"),
    ],
)
def test_what_sites_that_differ_cannot_have_is_refused(
    shops: Path, file: str, old: str, new: str, message: str
) -> None:
    edit(shops / file, old, new)
    assert any(problem.startswith(f"{file}:") and message in problem for problem in told(shops))


def test_each_request_begins_in_one_site(shops: Path) -> None:
    more = "  till: {tier: cloud, rate: 4/s, message: 1 KiB}\noperators:"
    edit(shops / "workflow.yaml", "operators:", more)
    edit(shops / "workflow.yaml", "inputs: [detect]", "inputs: [detect, till]")
    problems = told(shops)
    assert any("sources.till.tier: this source is in cloud, but with sites that differ" in text for text in problems)


def test_sources_of_one_request_have_one_rate_in_each_site(shops: Path) -> None:
    edit(shops / "workflow.yaml", "operators:", "  till: {tier: store, rate: 4/s, message: 1 KiB}\noperators:")
    edit(shops / "workflow.yaml", "inputs: [detect]", "inputs: [detect, till]")
    (shops / "stores.csv").write_text("site,sources.till.rate\na,4/s\nb,3/s\n", encoding="utf-8")
    assert told(shops) == [
        "stores.csv:3:3: sources.till.rate: a request has one message of each source, but their rates differ: "
        "camera 4/s, till 3/s; give them one rate"
    ]


def test_an_accuracy_target_needs_accuracies(shops: Path) -> None:
    edit(shops / "profiles.yaml", PROFILES[PROFILES.index("accuracy:") :], "")
    edit(shops / "workflow.yaml", "slo: {accuracy: 80}\n", "")
    (shops / "stores.csv").write_text("site,slo.accuracy\na,\nb,90\n", encoding="utf-8")
    assert told(shops)[0].startswith(
        "stores.csv:3:3: slo.accuracy: the target is accuracy 90, but the profiles have no"
    )


def test_a_workflow_of_several_has_the_fleet_with_its_sites(shops: Path) -> None:
    (shops / "stores.csv").write_text(
        "site,one.sources.camera.rate,two.slo.accuracy\na,4/s,\nb,,90\n", encoding="utf-8"
    )
    for workflow in ("one", "two"):
        own = shops / "workflows" / workflow
        own.mkdir(parents=True)
        for name in ("workflow.yaml", "profiles.yaml"):
            (own / name).write_text((shops / name).read_text(encoding="utf-8"), encoding="utf-8")
    for name in ("workflow.yaml", "profiles.yaml"):
        (shops / name).unlink()
    for workflow in ("one", "two"):
        alone = load_any_project(shops / "workflows" / workflow)
        assert isinstance(alone, MultiWorkflowProject)
        assert list(alone.workflows) == ["a", "b"]
    together = load_any_project(shops)
    assert isinstance(together, MultiWorkflowProject)
    assert list(together.workflows) == ["one@a", "one@b", "two@a", "two@b"]
    assert together.workflows["two@b"].workflow.slo.accuracy == 90


def test_sites_survive_losses_of_their_own_and_of_what_they_share(shops: Path) -> None:
    edit(shops / "workflow.yaml", "accuracy: 80", "accuracy: 80, survive: [1 worker, 1 link]")
    (shops / "stores.csv").write_text(f"{HEADER}berlin,2/s,3\nparis,6/s,2\n", encoding="utf-8")
    problem = problem_of(shops)
    plan = planned(problem)
    assert evaluate(problem, plan).complaints == ()
    used = {worker.tier for worker in plan.workers}
    assert {loss.of for loss in losses(plan, problem.survives) if loss.kind is LossKind.WORKER} == {
        (worker.name,) for worker in plan.workers
    }
    assert used >= {"store/berlin", "store/paris"}, "without their links they serve themselves"
    for shares in served_shares(plan).values():
        assert shares == {"berlin": pytest.approx(1.0), "paris": pytest.approx(1.0)}
    edit(shops / "stores.csv", "paris,6/s,2", "paris,6/s,0")
    refused = solve(problem_of(shops)).infeasibility
    assert refused is not None
    assert "no plan holds after the loss of any one link" in refused.reasons[0]


def test_a_site_may_survive_alone(shops: Path) -> None:
    """All data goes to the cloud, of whose two workers one is left."""
    (shops / "stores.csv").write_text(
        "site,sources.camera.rate,workers.box.count,slo.survive\nberlin,100/s,0,1 worker\nparis,100/s,0,\n",
        encoding="utf-8",
    )
    edit(shops / "infrastructure.yaml", "bandwidth: 20 Mbit/s, ", "")
    problem = problem_of(shops, ["slo.accuracy=94"])
    assert {one.name: one.slo.survives for one in problem.workflows} == {"berlin": (LossKind.WORKER,), "paris": ()}
    plan = planned(problem)
    shares = [*served_shares(plan).values()]
    assert all(own["berlin"] == pytest.approx(1.0) for own in shares)
    assert all(0.0 < own["paris"] < 1.0 for own in shares)
