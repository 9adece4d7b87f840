"""The operator's certificate of the gateway has every name of its Service."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from jellybean.operator.certificates import issued
from jellybean.serving import certificate_hosts, open_authority
from jellybean_agent import Identity, Role
from jellybean_k8s import deployed_plan, service_names
from tests.k8s_target import PLAN, SETTINGS, Target


def gateway_secret(objects: Any) -> dict[str, Any]:
    return next(item for item in objects if item["metadata"]["name"] == "digits-gateway-tls")


def names_in(secret: dict[str, Any], folder: Path) -> set[str]:
    folder.mkdir()
    (folder / "tls.crt").write_bytes(base64.b64decode(secret["data"]["tls.crt"]))
    return set(certificate_hosts(folder))


def test_the_certificate_has_every_name_and_one_that_lacks_some_is_replaced(target: Target, tmp_path: Path) -> None:
    deployed, namespace = deployed_plan(PLAN, SETTINGS), target.cluster.namespace
    made = issued(target.cluster, deployed, tmp_path / "issued")
    wanted = {*service_names("digits", namespace), "localhost"}
    assert f"digits.{namespace}.svc.cluster.local" in wanted
    assert names_in(gateway_secret(made), tmp_path / "names") == wanted
    for secret in made:
        target.create(secret)
    again = issued(target.cluster, deployed, tmp_path / "kept")
    assert [item["data"] for item in again] == [item["data"] for item in made]

    authority = open_authority(tmp_path / "issued/ca")
    authority.equip(tmp_path / "old", Identity(PLAN.name, Role.GATEWAY), hosts=["digits"])
    old = {name: base64.b64encode((tmp_path / "old" / name).read_bytes()).decode() for name in ("tls.crt", "tls.key")}
    there = target.cluster.get("Secret", "digits-gateway-tls")
    assert there is not None
    target.cluster.replace({**there, "kind": "Secret", "apiVersion": "v1", "data": {**there["data"], **old}})
    after = issued(target.cluster, deployed, tmp_path / "replaced")
    assert names_in(gateway_secret(after), tmp_path / "names-after") == wanted
    changed = [item["metadata"]["name"] for item, before in zip(after, made, strict=True) if item != before]
    assert changed == ["digits-gateway-tls"]
