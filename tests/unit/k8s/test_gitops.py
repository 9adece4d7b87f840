"""The examples for GitOps: what they refer to exists, and the Service of the clients comes last."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from jellybean_k8s import CONDITION_TYPES, CRD_GROUP, CRD_KIND, deployed_plan, kustomize_base, render
from tests import report_plans
from tests.k8s_plans import SETTINGS, with_models

FOLDER = Path(__file__).resolve().parents[3] / "k8s" / "examples" / "gitops"
WAVE = "argocd.argoproj.io/sync-wave"


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))


def test_the_service_of_the_clients_is_in_a_later_wave_than_all_pods() -> None:
    files = kustomize_base(render(deployed_plan(with_models(report_plans.digits()), SETTINGS)))
    texts = [text for name, text in files.items() if name != "kustomization.yaml"]
    waves = {
        (item["kind"], item["metadata"]["name"]): item["metadata"].get("annotations", {}).get(WAVE, "0")
        for text in texts
        for item in yaml.safe_load_all(text)
    }
    assert {key for key, wave in waves.items() if wave != "0"} == {("Service", "digits")}
    (application,) = documents("argocd-application.yaml")
    assert {"PruneLast=true", "ServerSideApply=true"} <= set(application["spec"]["syncPolicy"]["syncOptions"])


def test_the_health_of_argo_cd_knows_conditions_that_there_are() -> None:
    (config,) = documents("argocd-health.yaml")
    ((key, script),) = config["data"].items()
    assert key == f"resource.customizations.health.{CRD_GROUP}_{CRD_KIND}"
    named = set(re.findall(r'is_true\("(\w+)"\)|found\["(\w+)"\]', script))
    assert {a or b for a, b in named} == {"Stalled", "Reconciling", "Ready"} <= set(CONDITION_TYPES)


def test_flux_waits_longer_than_a_resource_does() -> None:
    source, kustomization = documents("flux.yaml")
    assert kustomization["spec"]["sourceRef"] == {"kind": source["kind"], "name": source["metadata"]["name"]}
    assert kustomization["spec"]["wait"]
    assert int(kustomization["spec"]["timeout"].removesuffix("m")) * 60 > 600
