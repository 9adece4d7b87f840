"""The profiles of a workflow with a cascade: those of the other operators, and the cascade's own."""

from __future__ import annotations

from collections.abc import Mapping

from jellybean.documents.cascades.cascade import Cascade
from jellybean.documents.schema.profiles import CascadeProfile, ProfilesDocument, VariantProfile, by_hand
from jellybean.documents.schema.provenance import DocumentProvenance


def profiles_of(profiles: ProfilesDocument, cascade: Cascade) -> ProfilesDocument:
    """The profiles as the workflow with the cascade has them; without those of the cascade if it was not measured.

    The other operators' entries have no origin, so that they count as current: the plain workflow is what they are
    compared with.
    """
    own = profiles.cascades.get(cascade.operator, {}).get(cascade.variant)
    others = {name: variants for name, variants in profiles.operators.items() if name != cascade.operator}
    before = by_hand({name: _redirected(variants, cascade) for name, variants in others.items()})
    return profiles.model_copy(
        update={
            "operators": {**before, **(own.operators if own is not None else {})},
            "cascades": {},
            "accuracy": own.accuracy if own is not None else None,
            "provenance": own.provenance if own is not None else DocumentProvenance(),
        }
    )


def _redirected(variants: Mapping[str, VariantProfile], cascade: Cascade) -> dict[str, VariantProfile]:
    """Profiles of an operator's variants: what goes to the operator goes to two of the cascade's instead."""
    found: dict[str, VariantProfile] = {}
    for variant, profile in variants.items():
        sizes = dict(profile.message_bytes)
        if (size := sizes.pop(cascade.operator, None)) is not None:
            sizes |= {cascade.first: size, cascade.unsure: size}
        found[variant] = profile.model_copy(update={"message_bytes": sizes})
    return found


def with_cascade(profiles: ProfilesDocument, cascade: Cascade, measured: ProfilesDocument) -> ProfilesDocument:
    """The profiles with what a run measured of a cascade. `measured`: of the workflow with the cascade."""
    own = CascadeProfile(
        operators={name: measured.operators[name] for name in cascade.variants if name in measured.operators},
        accuracy=measured.accuracy,
        provenance=DocumentProvenance(accuracy=measured.provenance.accuracy),
    )
    cascades = {operator: dict(variants) for operator, variants in profiles.cascades.items()}
    cascades.setdefault(cascade.operator, {})[cascade.variant] = own
    return profiles.model_copy(update={"cascades": cascades, "runs": {**profiles.runs, **measured.runs}})
