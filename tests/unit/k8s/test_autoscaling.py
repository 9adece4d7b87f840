"""Autoscalers: pools that may shrink without overload, and pods that an autoscaler of nodes may move."""

from __future__ import annotations

import dataclasses

import pytest

from jellybean_k8s import DeployError, ModelSource, PoolSettings, deployed_plan, render
from jellybean_k8s.cluster.readiness import WORKLOADS
from jellybean_solver import Plan
from tests.k8s_check import complaints, schema_complaints
from tests.k8s_plans import SETTINGS, on_device, wide
from tests.unit.k8s.rendered_objects import IMAGES, find


def test_pools_may_be_autoscaled_where_the_routes_leave_room(plan: Plan) -> None:
    many = wide(plan, "cloud", 4)
    settings = dataclasses.replace(SETTINGS, pools={"cloud": PoolSettings(autoscale=True)})
    objects = render(deployed_plan(many, settings))
    assert complaints(objects) == schema_complaints(objects) == []
    scaler = find(objects, "HorizontalPodAutoscaler")["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (1, 4)
    assert "replicas" not in find(objects, "StatefulSet", "cloud")["spec"]
    with pytest.raises(DeployError, match="cloud cannot shrink"):
        render(deployed_plan(plan, settings))
    with pytest.raises(DeployError, match="uses GPUs"):
        render(
            deployed_plan(
                on_device(many, "cloud", "rocm"), dataclasses.replace(settings, agent_images=IMAGES.agent_images)
            )
        )


def test_a_pool_whose_workers_feed_different_ones_has_no_room(plan: Plan) -> None:
    """Without cloud-2, its requests would go over edge-box-1, which is planned for its own only."""
    first, second = "edge-box-1", "edge-box-2"
    route = plan.routes[0]

    def via(edge: str, cloud: str) -> dict[str, str]:
        return {o: cloud if i else edge for i, o in enumerate(route.workers)}

    worker = plan.worker_by_name["cloud-1"]
    routes = (
        dataclasses.replace(route, weight=0.8, workers=via(first, "cloud-2")),
        dataclasses.replace(route, weight=0.2, workers=via(second, "cloud-1")),
    )
    others = tuple(w for w in plan.workers if w.pool != "cloud")
    cloud = tuple(dataclasses.replace(worker, name=f"cloud-{i}") for i in (1, 2))
    found = dataclasses.replace(plan, routes=routes, workers=(*others, *cloud))
    with pytest.raises(DeployError, match="would load others more than planned"):
        render(deployed_plan(found, dataclasses.replace(SETTINGS, pools={"cloud": PoolSettings(autoscale=True)})))


@pytest.mark.parametrize("models", [ModelSource(url="https://x"), ModelSource(claim="c"), ModelSource(image="m:1")])
def test_an_autoscaler_of_nodes_may_move_pods_whose_local_volumes_have_nothing_to_lose(
    plan: Plan, models: ModelSource
) -> None:
    """It removes no node with a local volume that this annotation does not name."""
    for item in render(deployed_plan(plan, dataclasses.replace(SETTINGS, models=models))):
        if item["kind"] in WORKLOADS:
            template = item["spec"]["template"]
            local = [volume["name"] for volume in template["spec"]["volumes"] if "emptyDir" in volume]
            named = template["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"]
            assert named.split(",") == local
            assert ("models" in local) is (item["kind"] == "StatefulSet" and models.url is not None)
