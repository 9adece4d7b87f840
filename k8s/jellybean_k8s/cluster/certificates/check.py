"""Checks the certificates that a deployment's pods will mount, before anything is applied."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jellybean_k8s.cluster.certificates.expiry import CA_KEY, SecretCertificate, mounted_certificates
from jellybean_k8s.cluster.certificates.report import CertificateReport, report_certificates
from jellybean_k8s.cluster.cluster import Cluster
from jellybean_k8s.manifests.pods.commands import gateway_secret
from jellybean_k8s.manifests.service_names import service_names
from jellybean_k8s.objects import KubeObjectView

_MOST_SHOWN = 4


def check_certificates(
    cluster: Cluster, app: str, objects: Sequence[KubeObjectView], now_unix_s: float
) -> tuple[list[str], list[str]]:
    """Problems (certificates that have expired or are none), and warnings (late ones, names that clients need)."""
    brought = {item["metadata"]["name"]: item for item in objects if item["kind"] == "Secret"}
    names = sorted(mounted_certificates(objects))
    there = {name: item for name in names if name not in brought and (item := cluster.get("Secret", name)) is not None}
    report = report_certificates(objects, {**there, **brought}, now_unix_s)
    return list(_problems(report)), [*_late(report), *_missing_name(cluster, app, report.certificates)]


def _problems(report: CertificateReport) -> Iterable[str]:
    for item in report.expired[:_MOST_SHOWN]:
        yield f"{item.words(report.at_unix_s)}: {_advice(item)}"
    if len(report.expired) > _MOST_SHOWN:
        yield f"{len(report.expired) - _MOST_SHOWN} more certificates have expired"
    yield from report.damaged


def _late(report: CertificateReport) -> Iterable[str]:
    if report.late:
        first, more = report.late[0], len(report.late) - 1
        others = f" (and of {more} more)" if more else ""
        words = f"{first.words(report.at_unix_s)}, less than a third of its lifetime{others}"
        yield f"{words}: {_advice(first)}"


def _advice(item: SecretCertificate) -> str:
    option = " --new-ca" if item.key == CA_KEY else ""
    return f"renew it by `jellybean certs DIR{option}` and deploy again, or where the Secret is made"


def _missing_name(cluster: Cluster, app: str, certificates: Iterable[SecretCertificate]) -> Iterable[str]:
    """A warning if clients that check host names would refuse the gateway under the name that `deploy` prints."""
    secret, namespace = gateway_secret(app), cluster.namespace
    name = service_names(app, namespace)[2]
    for item in certificates:
        if (item.secret, item.key) == (secret, "tls.crt") and not {name, f"*.{namespace}.svc"} & set(item.hosts):
            yield (
                f"the gateway's certificate lacks the name {name} of its Service: only clients of JellyBean accept it; "
                f"`jellybean certs DIR --namespace {namespace}` and deploying again adds it"
            )
