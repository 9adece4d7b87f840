"""Two clusters joined by a relay: changes of the relay's Service, the order of deletion, and ServiceMonitors."""

from __future__ import annotations

import dataclasses

import pytest

from jellybean_k8s import (
    NotCompared,
    PreflightError,
    RelaySettings,
    ServiceSettings,
    deploy_parts,
    dry_run_parts,
    undeploy_parts,
)
from tests.k8s_sites import Sites
from tests.k8s_target import OTHER, PLAN, QUICK, UNLIKE_APIS, mock_only

CHANGED = [
    (RelaySettings("relay.example:8443"), r"spec\.ports\[0\]\.port is 7443, the plan has 8443"),
    pytest.param(
        RelaySettings("relay.example:7443", ServiceSettings("ClusterIP")),
        'spec.type is "LoadBalancer"',
        marks=pytest.mark.slow,
    ),
]


def deleted(sites: Sites) -> list[str]:
    """Names of the objects that were deleted in the gateway's cluster, in that order."""
    paths = [path for method, path in sites.cloud.target.writes() if method == "DELETE"]
    return ["/".join(path.split("/")[-2:]) for path in paths]


@pytest.mark.parametrize(("relay", "words"), CHANGED)
def test_the_service_that_tunnels_dial_is_not_changed_under_the_running_plan(
    sites: Sites, relay: RelaySettings, words: str
) -> None:
    deploy_parts(sites.relayed_parts(), QUICK)
    sites.writes()
    with pytest.raises(PreflightError, match=words) as caught:
        deploy_parts(sites.relayed_parts(OTHER, relay), QUICK)
    assert "cloud: Service digits-relay would change" in str(caught.value)
    assert sites.writes() == []
    assert deploy_parts(sites.relayed_parts(OTHER), QUICK)["cloud"].number == 2
    in_place = dataclasses.replace(QUICK, in_place=True)
    assert deploy_parts(sites.relayed_parts(OTHER, relay), in_place)["cloud"].number == 3
    with pytest.raises(PreflightError, match="Service digits-relay would change"):
        sites.rollback(1)
    assert sites.rollback(1, in_place) == {"cloud": 4, "edge": 4}


@pytest.mark.slow
def test_the_service_that_tunnels_dial_is_repaired(sites: Sites) -> None:
    deploy_parts(sites.relayed_parts(), QUICK)
    sites.cloud.cluster.merge("Service", "digits-relay", {"spec": {"type": "ClusterIP"}})
    deploy_parts(sites.relayed_parts(), dataclasses.replace(QUICK, force=True))
    assert sites.cloud.cluster.get("Service", "digits-relay")["spec"]["type"] == "LoadBalancer"


def test_a_relay_is_pruned_after_the_sets_that_answer_through_it(sites: Sites) -> None:
    old = sites.relayed_parts()[0].deployed
    deploy_parts(sites.relayed_parts(), QUICK)
    sites.writes()
    deploy_parts(sites.relayed_parts(OTHER), QUICK)
    gone = deleted(sites)
    sets = [i for i, name in enumerate(gone) if name.startswith(("deployments/", "statefulsets/"))]
    assert gone.index(f"services/{old.relay}") > max(sets)
    assert gone.index(f"services/{old.gateway}") < min(sets)
    assert sites.cloud.cluster.get("Service", "digits-relay") is not None


def test_a_relay_stays_until_the_pods_of_the_gateway_are_gone(sites: Sites) -> None:
    deployed = sites.relayed_parts()[0].deployed
    deploy_parts(sites.relayed_parts(), QUICK)
    log = sites.cloud.target.wire.log
    log.clear()
    undeploy_parts(sites.clusters, "digits", QUICK)
    waited = [i for i, (_, _, params) in enumerate(log) if "component=gateway" in params.get("labelSelector", "")]
    gone = {"/".join(path.split("/")[-2:]): i for i, (method, path, _) in enumerate(log) if method == "DELETE"}
    for name in ("services/digits", f"deployments/{deployed.gateway}"):
        assert gone[name] < min(waited)
    for name in (f"deployments/{deployed.relay}", f"services/{deployed.relay}", "services/digits-relay"):
        assert gone[name] > max(waited)


@mock_only(UNLIKE_APIS)
def test_monitors_are_left_out_where_a_cluster_has_none(sites: Sites) -> None:
    assert sites.cloud.target.server is not None
    sites.cloud.target.server.api.monitoring = True
    assert deploy_parts(sites.relayed_parts(), QUICK)["edge"].number == 1
    assert len(sites.cloud.target.names("ServiceMonitor")) == 1
    assert sites.edge.target.names("ServiceMonitor") == set()
    assert sites.well()
    assert dry_run_parts(sites.relayed_parts()) == {"cloud": [], "edge": []}


@mock_only(UNLIKE_APIS)
def test_a_cluster_that_is_away_for_a_moment_gets_its_monitor(sites: Sites) -> None:
    assert sites.edge.target.server is not None
    sites.edge.target.server.api.monitoring = True

    def asked(method: str, path: str) -> int | None:
        return 503 if path.endswith("/monitoring.coreos.com/v1") else None

    def tell(text: str) -> None:
        if text.startswith("edge does not answer"):
            sites.edge.target.wire.fault = None

    sites.on_say, sites.edge.target.wire.fault = tell, asked
    deploy_parts(sites.relayed_parts(), sites.options(QUICK))
    assert len(sites.edge.target.names("ServiceMonitor")) == 1


def test_all_clusters_that_answer_are_compared(sites: Sites) -> None:
    sites.deploy()
    sites.edge.leave()
    found = dry_run_parts(sites.parts(OTHER))
    assert not isinstance(found["cloud"], NotCompared)
    assert found["cloud"]
    edge = found["edge"]
    assert isinstance(edge, NotCompared)
    assert edge.is_away
    sites.edge.come_back()
    sites.edge.target.wire.fault = lambda method, _: 422 if method == "PATCH" else None
    refused = dry_run_parts(sites.parts(OTHER))["edge"]
    assert isinstance(refused, NotCompared)
    assert not refused.is_away
    assert "a fault of the test" in refused.reason
    assert dry_run_parts(sites.parts(PLAN)) == {"cloud": [], "edge": []}
