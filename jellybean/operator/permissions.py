"""What a resource may have the operator do: nothing that needs the operator's rights.

Who may create a Workflow chooses the images of its pods. So pods get no more than the Pod Security
level `baseline` lets any pod have, and of the namespace only objects that are theirs, or that their
owner has labelled for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jellybean_k8s import (
    APP_PREFIX,
    FIELD_MANAGER,
    OWN_PREFIX,
    POD_RULES,
    Cluster,
    DeployError,
    restricted_fields,
    used_objects,
)

Object = Mapping[str, Any]
USED_BY_LABEL = f"{OWN_PREFIX}/used-by"  # of a Secret or claim: the deployment that may use it, or `any`
ANY = "any"
_NAMED_RULES = {"secret": "Secret", "claim": "PersistentVolumeClaim", "service-account": "ServiceAccount"}
_RULE_OF_KIND = {kind: rule for rule, kind in _NAMED_RULES.items()}


@dataclass(frozen=True, slots=True)
class Permissions:
    """What resources may ask for beyond the default. `rules`: of `parse_permissions`."""

    rules: frozenset[str] = frozenset()

    def allows(self, rule: str, name: str = "") -> bool:
        """True if a rule is lifted: for all, or for the object of this name."""
        return not self.rules.isdisjoint({ANY, rule, f"{rule}={name}"})

    def require(self, cluster: Cluster, app: str, objects: Iterable[Object], issued: Iterable[str] = ()) -> None:
        """DeployError, with every problem, if the objects of a deployment need what is not allowed.

        `issued`: names of Secrets that the operator fills itself.
        """
        objects = tuple(objects)
        problems = [
            f"{field.path} needs {field.rule}" + (f"={field.name}" if field.name else "")
            for field in restricted_fields(objects, app)
            if not self.allows(field.rule, field.name)
        ]
        wanted = {("ServiceAccount", app), *used_objects(objects), *(("Secret", name) for name in issued)}
        problems += self._foreign(cluster, app, sorted(wanted))
        if problems:
            text = "\n".join(dict.fromkeys(problems))
            raise DeployError(
                f"the resource asks for more than its author may have the operator do:\n{text}\nwho runs the operator "
                "may allow it: `jellybean operator run --allow-patch RULE` (chart: allowPatch), see docs/security.md"
            )

    def _foreign(self, cluster: Cluster, app: str, wanted: Iterable[tuple[str, str]]) -> Iterator[str]:
        """A line for each object that exists, is not the deployment's, and was not given to it."""
        for kind, name in wanted:
            rule = _RULE_OF_KIND[kind]
            existing = None if self.allows(rule, name) else cluster.get(kind, name)
            if existing is None or is_of_deployment(existing, app):
                continue
            if kind == "ServiceAccount":
                yield f"{kind} {name} is not of deployment {app}: needs {rule}={name}, or name the deployment otherwise"
            elif _labels(existing).get(USED_BY_LABEL) not in (app, ANY):
                yield f"{kind} {name} is not labelled {USED_BY_LABEL}={app}: label it so, or allow {rule}={name}"


def parse_permissions(texts: Iterable[str]) -> Permissions:
    """Parse `--allow-patch`. ValueError for what is no rule."""
    rules = frozenset(texts)
    for rule in rules:
        kind, _, name = rule.partition("=")
        if rule not in (ANY, *POD_RULES, *_NAMED_RULES) and not (kind in _NAMED_RULES and name):
            known = ", ".join((ANY, *POD_RULES, *(f"{name}[=NAME]" for name in _NAMED_RULES)))
            raise ValueError(f"{rule!r} is no rule; the rules: {known}")
    return Permissions(rules)


def is_of_deployment(item: Object, app: str) -> bool:
    """True if an object was made for this deployment by JellyBean."""
    labels = _labels(item)
    return labels.get(f"{APP_PREFIX}/instance") == app and labels.get(f"{APP_PREFIX}/managed-by") == FIELD_MANAGER


def _labels(item: Object) -> dict[str, str]:
    return dict(item["metadata"].get("labels") or {})
