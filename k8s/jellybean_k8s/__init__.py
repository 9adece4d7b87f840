"""Plans on Kubernetes: manifests as a pure function of plan and settings, and their deployment to a cluster.

Public surface of this package; other packages import from here only. Subpackages: `manifests` (pure rendering),
`resource` (the custom resource Workflow), `cluster` (calls to the API server). Names are loaded on first use (PEP 562).
"""

from __future__ import annotations

from jellybean_protos.lazy_surface import lazy_surface

_NAMES: dict[str, tuple[str, ...]] = {  # by module
    "cluster.certificates.expiry": ("SecretCertificate",),
    "cluster.certificates.report": ("CertificateReport",),
    "cluster.certificates.rendered": ("certificate_secrets",),
    "cluster.cluster": (
        "Cluster",
        "ClusterError",
        "UnreachableError",
        "connect",
        "is_unavailable",
    ),
    "cluster.several.common_rollout": ("PartlyDeployedError",),
    "cluster.deploy": (
        "deploy",
        "dry_run",
        "rollback",
        "undeploy",
    ),
    "cluster.discover": (
        "NodeFleet",
        "INSTANCE_LABELS",
        "NodePool",
        "POOL_LABEL",
        "PRICE_LABEL",
        "discover_pools",
    ),
    "cluster.drift": (
        "Drift",
        "heal",
    ),
    "cluster.lock": (
        "DeployLock",
        "LockedError",
    ),
    "cluster.several.parts": (
        "ClusterPart",
        "deploy_parts",
    ),
    "cluster.several.dry_run": (
        "NotCompared",
        "dry_run_parts",
    ),
    "cluster.several.removal": ("undeploy_parts",),
    "cluster.several.rollback": ("rollback_parts",),
    "cluster.several.status": (
        "PartsStatus",
        "read_statuses",
    ),
    "cluster.phases": ("DeployResult",),
    "cluster.port_forward": (
        "forwarded_gateway",
        "gateway_pod",
        "gateway_pods",
    ),
    "cluster.checks.preflight": ("PreflightError",),
    "cluster.certificates.renewal": (
        "DeployedCertificates",
        "read_deployed_certificates",
        "renew_certificates",
    ),
    "cluster.revisions": (
        "plan_record",
        "read_inventory",
        "read_plan_record",
    ),
    "cluster.rollout": (
        "DeployOptions",
        "DeployStoppedError",
    ),
    "cluster.status": (
        "DeploymentStatus",
        "read_status",
    ),
    "cluster.readiness": ("NotReadyError",),
    "errors": (
        "DeployError",
        "NoCertificatesError",
        "NotDeployedError",
    ),
    "manifests.clusters": (
        "ClusterPlace",
        "ClustersError",
        "RelaySettings",
        "cluster_of",
        "relay_port",
    ),
    "manifests.pods.commands": (
        "admin_secret",
        "tls_secret",
    ),
    "manifests.identity": ("deployed_plan",),
    "manifests.kustomize": ("kustomize_base",),
    "manifests.render": (
        "Objects",
        "render",
    ),
    "manifests.deployed_plan": (
        "METRICS_PORT",
        "DeployedPlan",
        "app_name",
        "deployment_name",
        "json_sha256",
    ),
    "manifests.pods.patch": ("patch_problems",),
    "manifests.pod_settings": (
        "OWN_ENV",
        "PodSettings",
        "ServiceSettings",
        "ServiceType",
        "is_own_annotation",
        "is_own_label",
    ),
    "manifests.settings": (
        "GPU_RESOURCES",
        "MAX_GATEWAYS",
        "MIB",
        "LedgerDatabase",
        "ModelCache",
        "ModelSource",
        "PoolSettings",
        "DeploymentSettings",
        "model_port",
    ),
    "manifests.service_names": (
        "service_names",
        "service_namespaces",
    ),
    "manifests.traces": (
        "TraceSettings",
        "trace_port",
    ),
    "manifests.training_job": (
        "TrainingJob",
        "training_objects",
    ),
    "manifests.yaml_text": (
        "yaml_documents",
        "to_yaml",
    ),
    "names": (
        "APP_PREFIX",
        "FIELD_MANAGER",
        "SITE_LABEL",
        "TIER_LABEL",
        "dns_name",
        "ENV_NAME_PATTERN",
        "LABEL_KEY_PATTERN",
        "LABEL_VALUE_PATTERN",
        "MAX_OBJECT_NAME_LENGTH",
        "OBJECT_NAME_PATTERN",
    ),
    "resource.crd": (
        "CRD_API_VERSION",
        "CONDITION_TYPES",
        "CRD_NAME",
        "CONDITION_DEPLOYED",
        "CRD_GROUP",
        "CRD_KIND",
        "CONDITION_PLANNED",
        "CRD_PLURAL",
        "CONDITION_READY",
        "CONDITION_PROGRESSING",
        "CONDITION_RECONCILING",
        "CONDITION_STALLED",
        "CONDITION_DEGRADED",
        "RETRY_ANNOTATION",
        "CRD_VERSION",
        "crd",
    ),
    "resource.rbac": ("deployer_role",),
    "resource.structural_schema": (
        "SchemaRules",
        "structural_schema",
        "without_descriptions",
    ),
}

__all__, __getattr__ = lazy_surface(__name__, _NAMES)  # the stub beside this file has the same names
