"""The text of a plan of many workflows, or of sites that differ: groups that are planned alike instead of each one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from jellybean.display import formats
from jellybean_solver import WORKFLOW_SEPARATOR, Placement, Plan, PlannedWorkflow

FEWEST_SUMMARISED = 8  # workflows from which on a table of each would be too long to read
MOST_GROUPS = 8  # groups that are listed, the largest first
MOST_LEFT_OUT = 5  # workflows that are left out and named
MOST_NAMED = 3  # workflows of a group, and the dearest ones, that are named

Choices = tuple[tuple[str, tuple[tuple[str, str], ...]], ...]  # place -> its (operator, variant)


@dataclass(frozen=True)
class Group:
    """Workflows with the same variants in the same places."""

    choices: Choices
    workflows: tuple[PlannedWorkflow, ...]

    @property
    def usd_per_h(self) -> float:
        """Their cost together."""
        return sum(workflow.cost.total_usd_per_h for workflow in self.workflows)

    @property
    def names(self) -> str:
        """The names of its workflows, if they are few."""
        named = ", ".join(workflow.name for workflow in self.workflows[:MOST_NAMED])
        return named + (", ..." if len(self.workflows) > MOST_NAMED else "")

    @property
    def text(self) -> str:
        """What runs where: `store: detect small, read cnn; cloud: label rules`."""
        return "; ".join(
            f"{place}: {', '.join(f'{operator} {variant}' for operator, variant in chosen)}"
            for place, chosen in self.choices
        )


def is_summarised(plan: Plan) -> bool:
    """True if the plan has too many workflows to list each."""
    return len(plan.workflows) >= FEWEST_SUMMARISED


def noun(plan: Plan) -> str:
    """What the workflows of a plan are: sites that differ, each in a tier of its own, or unlike workflows."""
    return "site" if all(WORKFLOW_SEPARATOR in source.tier for source in plan.sources) else "workflow"


def stays_text(plan: Plan) -> str:
    """How many workflows of a plan were left as they were when others were added; empty if none."""
    keeps = plan.certificate.keeps
    return f" beside {formats.count(keeps, noun(plan))} that stay as they were" if keeps else ""


def admission_lines(plan: Plan) -> Iterator[str]:
    """Which workflows are left out, with what they are worth, and what the owners' workflows cost."""
    if plan.left_out:
        dearest = sorted(plan.left_out, key=lambda one: -one.worth_usd_per_h)
        named = ", ".join(f"{one.name} ({formats.usd(one.worth_usd_per_h)})" for one in dearest[:MOST_LEFT_OUT])
        more = len(dearest) - MOST_LEFT_OUT
        forgone = formats.usd(sum(one.worth_usd_per_h for one in dearest))
        count = formats.count(len(dearest), noun(plan))
        yield f"left out: {count} worth {forgone} USD/h: {named}" + (f" and {more:,} more" if more > 0 else "")
    owners: dict[str, list[PlannedWorkflow]] = {}
    for workflow in plan.workflows:
        owners.setdefault(workflow.owner, []).append(workflow)
    if any(owners):
        costs = {owner: sum(one.cost.total_usd_per_h for one in own) for owner, own in owners.items()}
        listed = ", ".join(
            f"{owner or 'nobody'} {formats.usd(costs[owner])} USD/h ({formats.count(len(owners[owner]), noun(plan))})"
            for owner in sorted(owners, key=lambda name: -costs[name])
        )
        yield f"by owner: {listed}"


def groups(plan: Plan) -> list[Group]:
    """The workflows by what is planned for them, the largest groups first."""
    placed: dict[str, list[Placement]] = {workflow.name: [] for workflow in plan.workflows}
    for placement in plan.placements:
        placed[plan.workflow_of(placement.operator)].append(placement)
    found: dict[Choices, list[PlannedWorkflow]] = {}
    for workflow in plan.workflows:
        found.setdefault(_choices(placed[workflow.name]), []).append(workflow)
    made = [Group(choices, tuple(workflows)) for choices, workflows in found.items()]
    return sorted(made, key=lambda group: (-len(group.workflows), -group.usd_per_h))


def summary(plan: Plan) -> list[Table | Text]:
    """Accuracies, workers by pool, groups of workflows and the dearest ones."""
    parts: list[Table | Text] = [Text(_headline(plan)), _pools(plan), *_groups(plan)]
    dearest = sorted(plan.workflows, key=lambda workflow: -workflow.cost.total_usd_per_h)[:MOST_NAMED]
    named = ", ".join(f"{workflow.name} {formats.usd(workflow.cost.total_usd_per_h)}" for workflow in dearest)
    parts.append(Text(f"dearest: {named} USD/h; all with --json", "dim"))
    return parts


def _headline(plan: Plan) -> str:
    """Number of workflows, and the range of their accuracies and targets."""
    text = formats.count(len(plan.workflows), noun(plan))
    known = [workflow.accuracy for workflow in plan.workflows if workflow.accuracy is not None]
    targets = [workflow.slo.accuracy for workflow in plan.workflows if workflow.slo.accuracy is not None]
    if known:
        text += f", accuracy {_range(known)}"
    if targets:
        text += f" (targets {_range(targets)}, all met)"
    return text


def _range(values: Iterable[float]) -> str:
    ordered = sorted(values)
    low, high = formats.accuracy(ordered[0]), formats.accuracy(ordered[-1])
    return low if low == high else f"{low} to {high}"


@dataclass
class _PoolUse:
    """Workers of a pool: of the one that workflows share, or of the pools of this name that each site has."""

    tier: str
    count: int = 0
    usd_per_h: float = 0.0
    load: float = 0.0


def _pools(plan: Plan) -> Table:
    """Table of the workers in use by pool, those of all sites together."""
    uses: dict[str, _PoolUse] = {}
    users: dict[str, set[str]] = {}
    for worker in plan.workers:
        names = {plan.workflow_of(name) for name in worker.rates_per_s}
        pool = written_pool(worker.pool)
        use = uses.setdefault(pool, _PoolUse(written_tier(worker.tier)))
        sites = plan.sites.get(worker.tier, 1)
        use.count += sites
        use.usd_per_h += sites * worker.price_usd_per_h
        use.load += sites * worker.load
        users.setdefault(pool, set()).update(names)
    table = _table("pool", "tier", right=("workers", "USD/h", "load", f"{noun(plan)}s"))
    for pool, use in uses.items():
        figures = (f"{use.count:,}", formats.usd(use.usd_per_h), formats.load(use.load / use.count))
        table.add_row(Text(pool), Text(use.tier), *figures, f"{len(users[pool]):,}")
    return table


def _groups(plan: Plan) -> list[Table | Text]:
    found = groups(plan)
    table = _table(right=(f"{noun(plan)}s", "USD/h"))
    table.add_column("planned alike", overflow="fold")
    table.add_column("for example", overflow="fold")
    for group in found[:MOST_GROUPS]:
        count = f"{len(group.workflows):,}"
        table.add_row(count, formats.usd(group.usd_per_h), Text(group.text), Text(group.names))
    rest = found[MOST_GROUPS:]
    if not rest:
        return [table]
    number = sum(len(group.workflows) for group in rest)
    cost = formats.usd(sum(group.usd_per_h for group in rest))
    others = f"and {formats.count(number, noun(plan))} in {formats.count(len(rest), 'smaller group')}, {cost} USD/h"
    return [table, Text(others, "dim"), _operators(plan)]


def _operators(plan: Plan) -> Table:
    """Table of the variants of each operator and of its places, with the number of workflows; for many groups."""
    variants: dict[str, dict[str, set[str]]] = {}
    places: dict[str, dict[str, set[str]]] = {}
    for placement in plan.placements:
        workflow = plan.workflow_of(placement.operator)
        operator = operator_in_workflow(placement.operator)
        variants.setdefault(operator, {}).setdefault(placement.variant, set()).add(workflow)
        places.setdefault(operator, {}).setdefault(written_tier(placement.tier), set()).add(workflow)
    table = _table("operator", f"{noun(plan)}s by variant", f"{noun(plan)}s by tier")
    for operator, chosen in variants.items():
        table.add_row(Text(operator), Text(_counts(chosen)), Text(_counts(places[operator])))
    return table


def _counts(users: Mapping[str, set[str]]) -> str:
    ordered = sorted(users.items(), key=lambda item: (-len(item[1]), item[0]))
    return ", ".join(f"{name} {len(names):,}" for name, names in ordered)


def _table(*left: str, right: Sequence[str] = ()) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in left:
        table.add_column(heading, overflow="fold")
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _choices(placements: Sequence[Placement]) -> Choices:
    """Places with what runs there, by the names that the documents give; lists keep the order of the placements."""
    by_place: dict[str, dict[tuple[str, str], None]] = {}
    for placement in placements:
        chosen = by_place.setdefault(written_tier(placement.tier), {})
        chosen[operator_in_workflow(placement.operator), placement.variant] = None
    return tuple((place, tuple(chosen)) for place, chosen in sorted(by_place.items()))


def operator_in_workflow(operator: str) -> str:
    """The operator's name within its workflow."""
    return operator.partition(WORKFLOW_SEPARATOR)[2]


def written_tier(tier: str) -> str:
    """The name that the documents give to a tier; that of one site of several is `store/paris`."""
    return tier.partition(WORKFLOW_SEPARATOR)[0]


def written_pool(pool: str) -> str:
    """The name that the documents give to a pool; that of one site of several is `paris/box`."""
    return pool.rpartition(WORKFLOW_SEPARATOR)[2]
