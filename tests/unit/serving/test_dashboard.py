"""The Grafana dashboard: its grid, and one meaning per colour."""

from __future__ import annotations

import itertools
import re
from typing import Any

from jellybean.serving import dashboard
from jellybean.serving.top.dashboard import LIMITS

PANELS: list[dict[str, Any]] = dashboard()["panels"]
COLUMNS = 24


def test_panels_fill_the_grid_and_do_not_overlap() -> None:
    cells = [
        {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        for at in (panel["gridPos"] for panel in PANELS)
    ]
    assert all(one.isdisjoint(other) for one, other in itertools.combinations(cells, 2))
    covered = set().union(*cells)
    assert covered == set(itertools.product(range(COLUMNS), range(max(y for _, y in covered) + 1)))


def test_every_figure_of_the_plan_is_a_dashed_line_in_the_colour_of_the_text() -> None:
    planned = 0
    for panel in PANELS:
        for legend in [query["legendFormat"] for query in panel["targets"]]:
            shown = legend.replace("{{worker}}", "cloud-1")
            found = [
                {part["id"]: part["value"] for part in override["properties"]}
                for override in panel["fieldConfig"]["overrides"]
                if re.search(override["matcher"]["options"].strip("/"), shown)
            ]
            if re.search(r"\b(planned|target|bound|budget)$", shown):
                planned += 1
                assert found[0]["color"] == {"mode": "fixed", "fixedColor": "text"}, (panel["title"], legend)
                assert found[0]["custom.lineStyle"]["fill"] == "dash"
            else:
                assert found == [], (panel["title"], legend)
    assert planned >= 6


def test_a_stat_without_limits_has_no_colour_of_a_verdict() -> None:
    stats = {panel["title"]: panel["fieldConfig"]["defaults"] for panel in PANELS if panel["type"] == "stat"}
    assert LIMITS.keys() < stats.keys()
    for title, defaults in stats.items():
        if title in LIMITS:
            assert [step["color"] for step in defaults["thresholds"]["steps"]] == ["green", "yellow", "red"]
        else:
            assert defaults["color"] == {"mode": "fixed", "fixedColor": "text"}, title


def test_series_of_workflows_are_those_that_are_chosen_and_those_of_the_process_are_all() -> None:
    queries = [query["expr"] for panel in PANELS for query in panel["targets"]]
    chosen, whole = set[str](), set[str]()
    for name, labels in re.findall(r"(jellybean_\w+)({[^}]*})?", " ".join(queries)):
        (chosen if 'workflow=~"$workflow"' in labels else whole).add(name)
    assert not chosen & whole
    assert {"jellybean_gateway_received_total", "jellybean_gateway_requests_total"} <= chosen
    assert {"jellybean_plan_requests_per_second", "jellybean_slo_latency_p99_seconds"} <= chosen
    assert {"jellybean_gateway_workers", "jellybean_slo_budget_usd_per_h"} <= whole
    assert {"jellybean_busy_seconds_total", "jellybean_network_cost_usd_total"} <= whole
    assert 'requests_total{outcome="client_error", workflow=~"$workflow"}' in " ".join(queries)
    (variable,) = [one for one in dashboard()["templating"]["list"] if one["name"] == "workflow"]
    assert re.fullmatch(variable["allValue"], ""), "series of a plan of one have no such label"


def test_figures_of_the_whole_plan_count_once_for_several_gateways() -> None:
    """Sums of figures that each gateway states of all are divided by their number, where they state one."""
    queries = [query["expr"] for panel in PANELS for query in panel["targets"]]
    stated = r"jellybean_(?:plan_\w+|slo_budget\w+|gateway_workers|gateway_cost_usd_total)"
    for query in queries:
        if re.search(r"sum[^()]*(?:\([^()]*\) )?\(+(?:rate\()?" + stated, query):
            assert "/ on (job, instance) group_left () jellybean_gateway_replicas or" in query, query
    assert sum("jellybean_gateway_replicas" in query for query in queries) >= 8
    assert all("jellybean_gateway_replicas{" not in query for query in queries), "it has no label `workflow`"


def test_percentiles_are_of_each_workflow() -> None:
    queries = [query["expr"] for panel in PANELS for query in panel["targets"]]
    percentiles = [query for query in queries if "histogram_quantile" in query]
    assert len(percentiles) == 4
    assert all("sum by (workflow, le)" in query for query in percentiles)
