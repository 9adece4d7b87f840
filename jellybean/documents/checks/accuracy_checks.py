"""Check the accuracy section of the profiles against the workflow."""

from __future__ import annotations

from collections.abc import Mapping

from jellybean.documents.checks.checked import CheckedProfiles, CheckedWorkflow, variants_overridden
from jellybean.documents.schema.profiles import AccuracyProfile
from jellybean.documents.schema.reader import DocPath, dotted
from jellybean.documents.schema.workflow import OperatorSpec
from jellybean.quantities import did_you_mean


class AccuracyCheck:
    """Checks of the accuracy section."""

    def __init__(
        self,
        workflow: CheckedWorkflow,
        operators: Mapping[str, OperatorSpec],
        profiles: CheckedProfiles,
        accuracy: AccuracyProfile,
    ) -> None:
        self.workflow, self.operators, self.profiles, self.accuracy = workflow, operators, profiles, accuracy

    def run(self) -> None:
        """Check the form of the accuracy section that the document uses; adds problems to the profiles' tree."""
        if self.accuracy.end_to_end is not None:
            self._check_end_to_end()
        elif self.accuracy.per_operator is not None:
            self._check_tables(("accuracy", "per_operator"), self.accuracy.per_operator)
            self._check_points()
        elif self.accuracy.independent is not None:
            self._check_tables(("accuracy", "independent"), self.accuracy.independent)

    def _is_known(self, path: DocPath, operator: str, variant: str | None) -> bool:
        """True if the workflow has this operator and variant and they are valid; an unknown name is reported."""
        operators = self.workflow.names("operators")
        if operator not in operators:
            hint = did_you_mean(operator, operators) or f"operators: {', '.join(operators)}"
            self.profiles.tree.add(path, f"the workflow has no operator {operator!r}", hint, key=True)
            return False
        if self.workflow.is_broken("operators", operator):
            return False
        known = self.operators[operator].variants
        if variant is not None and variant not in known:
            if not variants_overridden(self.workflow, operator):
                hint = did_you_mean(variant, known) or f"variants: {', '.join(known)}"
                self.profiles.tree.add(path, f"the workflow's {operator} has no variant {variant!r}", hint)
            return False
        return True

    def _profiled_count(self, operator: str) -> int:
        """Number of the operator's variants that have a profile."""
        profiled = self.profiles.document.operators.get(operator, {}) if self.profiles.document is not None else {}
        return sum(variant in profiled for variant in self.operators[operator].variants)

    def _check_end_to_end(self) -> None:
        needed = [name for name, spec in self.operators.items() if len(spec.variants) > 1]
        seen: dict[tuple[tuple[str, str], ...], int] = {}
        for index, row in enumerate(self.accuracy.end_to_end or ()):
            path: DocPath = ("accuracy", "end_to_end", index)
            named = [
                self._is_known((*path, "selection", name), name, variant) for name, variant in row.selection.items()
            ]
            if not all(named):
                continue
            missing = [name for name in needed if name not in row.selection and self._profiled_count(name) > 1]
            if missing:
                hint = "only operators with one variant may be left out"
                message = f"the selection does not give a variant of {', '.join(missing)}"
                self.profiles.tree.add((*path, "selection"), message, hint, key=True)
            chosen = tuple(sorted((name, row.selection[name]) for name in needed if name in row.selection))
            single = [n for n, spec in self.operators.items() if len(spec.variants) == 1 and n in row.selection]
            whole = (*chosen, *sorted((name, row.selection[name]) for name in single))
            if whole in seen and not self.workflow.broken:
                message = f"the same selection as {dotted((*path[:-1], seen[whole]))}"
                self.profiles.tree.add(path, message, "keep one of them")
            seen.setdefault(whole, index)

    def _check_tables(self, path: DocPath, tables: Mapping[str, Mapping[str, object]]) -> None:
        for operator, variants in tables.items():
            if not self._is_known((*path, operator), operator, None):
                continue
            for variant in variants:
                self._is_known((*path, operator, variant), operator, variant)
            missing = [name for name in self.operators[operator].variants if name not in variants]
            if missing:
                message = f"no accuracy for variant {', '.join(missing)}"
                self.profiles.tree.add((*path, operator), message, "add it, or remove the variant", key=True)

    def _check_points(self) -> None:
        """Check that each point gives one input accuracy per input whose upstream has accuracy points itself."""
        tables = self.accuracy.per_operator or {}
        for operator, variants in tables.items():
            if operator not in self.operators:
                continue
            inputs = [edge.upstream for edge in self.operators[operator].inputs if edge.upstream in tables]
            for variant, points in variants.items():
                for index, point in enumerate(points):
                    if len(point.inputs) != len(inputs):
                        path: DocPath = ("accuracy", "per_operator", operator, variant, index)
                        path = path if path in self.profiles.tree.values else path[:-1]
                        wanted = f"{len(inputs)} ({', '.join(inputs)})" if inputs else "none"
                        message = f"{len(point.inputs)} input accuracies, but {operator} has {wanted} with a table"
                        self.profiles.tree.add(path, message, "write one per input, in the order of its inputs")
