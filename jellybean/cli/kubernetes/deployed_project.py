"""The plan of a project as it is deployed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jellybean.cli.current_plan import load_current_plan
from jellybean.documents import AnyProject
from jellybean.errors import DocumentError, DocumentProblem

if TYPE_CHECKING:
    from jellybean_k8s import DeployedPlan


def deployed_project(project: AnyProject, *, service_monitor: bool, what_if: bool) -> DeployedPlan:
    """The project's current plan with the settings of its kubernetes.yaml. DeployError if it cannot be served.

    DocumentError if the clusters that it names do not fit the plan.
    """
    from jellybean.documents.kubernetes import KUBERNETES_FILE, load_settings, with_label_rules
    from jellybean_k8s import ClustersError, deployed_plan

    settings = with_label_rules(load_settings(project.directory), project)
    monitored = service_monitor and not settings.clusters  # of several clusters each view says so itself
    plan = load_current_plan(project, what_if=what_if)
    try:
        return deployed_plan(plan, settings, service_monitor=monitored)
    except ClustersError as error:
        file = str(project.directory / KUBERNETES_FILE)
        raise DocumentError([DocumentProblem(file, None, None, "", str(error))]) from error
