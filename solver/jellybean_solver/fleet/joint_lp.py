"""Selection and assignment of a whole fleet as one linear program over worker classes.

Columns:
    z[c]         1 if choice c = (operator, variant) is made, one per operator. Where an operator's rates depend on
                 upstream variants, it has separate choices for each combination of their ratios (ratio_options.py)
    m[p]         workers paid in pool p; integer for classes of few workers
    f[b, a]      fraction of requests whose operators of bag b (of the tree decomposition) run in tiers a (bag_rows.py)
    g[e, c, t]   fraction of requests whose edge e carries the messages of choice c over t, a pair of different tiers
    y[c, k]      fraction of requests whose operator runs choice c on workers of class k; of `RelaxedLp`, as exact
                 programs have columns per group of workers in its place
Rows:
    sum_c z[c] = 1 per operator; sum_k y[c, k] = z[c];
    sum of z[c] that assume a ratio = sum of z[c] of the upstream choices with that ratio;
    sum_{c, k in t} y[c, k] = sum_{a: a[o] = t} f[b, a];
    sum_t g[e, c, (s, t)] <= sum_{k in s} y[c, k]; sum_c g[e, c, t] = sum_{a on t} f[b, a];
    sum_{c} needed[c, k] y[c, k] <= sum_{p in k} m[p]; the same for stored[c, k], memory in place of time;
    traffic within bandwidth; accuracy (accuracy_rows.py); integer worker counts of classes with few workers
    (integer_counts.py).
The rows limit g by y in each tier, not only by z, so that the relaxation cannot send the messages of one variant while
it runs another. Rows on which models fit together on one worker are left out, so its optimum is a lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

import numpy as np

from jellybean_solver.demand.demand import EdgeKey, Network, Tiers
from jellybean_solver.demand.ratio_options import ratio_options, ratio_representatives, ratios_key
from jellybean_solver.fleet.delay_linearisation import Pace
from jellybean_solver.fleet.integer_counts import IntegerCounts
from jellybean_solver.fleet.worker_classes import Choice, Mask, worker_classes
from jellybean_solver.joint.accuracy_rows import add_accuracy
from jellybean_solver.joint.flow_rows import add_flows, entry_shares
from jellybean_solver.milp.highs_program import Floats, Indices, Program
from jellybean_solver.outcome import Selection


class JointLp:
    """The joint LP of a network and an accuracy target in percent, without its columns y.

    `fixed`: operator -> variant, where given. `possible`: False if no selection is feasible. `common`: pools that are
    in no class with other pools.
    """

    def __init__(
        self,
        network: Network,
        target: float | None,
        fixed: Mapping[str, str],
        pace: Pace | None = None,
        common: Collection[str] = (),
    ) -> None:
        variants = {name: [v for v in own if fixed.get(name, v) == v] for name, own in network.runnable.items()}
        representatives = ratio_representatives(network.problem, variants)
        network = network.settled({name: own[0] for name, own in representatives.items() if len(own) == 1})
        self.network, self.program = network, Program()
        self.tiers = network.problem.tiers
        self._representatives = {name: own for name, own in representatives.items() if len(own) > 1}
        options = ratio_options(network, self._representatives)
        made = [
            (name, variant, option) for name in network.names for variant in variants[name] for option in options[name]
        ]
        choices, self._assumed = [(name, variant) for name, variant, _ in made], [option for *_, option in made]
        self.demands = [network.demand({**option, name: variant}) for name, variant, option in made]
        self.kinds = worker_classes(network, choices, self.demands, common)
        self.seconds: Floats | None = None  # per choice and class; None without a deadline
        self.pace = pace
        self.link_rows = np.zeros(0, np.int64)
        self.limited_links: list[Tiers] = []  # the link of each of `link_rows`
        self.timed: tuple[Indices, ...] = ()  # per operator the delay rows that its run time enters
        self.possible = all(variants.values())
        if self.possible:
            self._build(target)
            if pace is not None:
                self._deadline(pace)

    def _build(self, target: float | None) -> None:
        self._choices()
        self._paid()
        self.flows = add_flows(self.program, self.network, self.network.demand({}))
        self._meet()
        self._messages()
        self._links()
        self.possible = add_accuracy(self.program, self.network.problem.accuracy, self._variant_columns(), target)

    @cached_property
    def open(self) -> Mask:
        """Per choice and class, true if the choice can run there in time and its input can reach the class's tier."""
        reached: Mask = self.meet[self.kinds.owner[:, None], self.kinds.tier] >= 0
        in_time = True if self.seconds is None else np.isfinite(self.seconds)
        return self.kinds.runs & reached & in_time

    @cached_property
    def pools_kind(self) -> Indices:
        """The class of each column m."""
        sizes = [len(kind.pools) for kind in self.kinds.kinds]
        return np.repeat(np.arange(len(sizes)), sizes)

    def tier_entries(self, choice: int, tier: int) -> tuple[list[int], list[float]]:
        """Rows and coefficients of y[choice, k] that are equal for all classes k of the tier."""
        rows = [int(self.total[choice]), int(self.meet[self.kinds.owner[choice], tier]), *self.leaving[choice][tier]]
        return rows, [1.0, 1.0] + [-1.0] * (len(rows) - 2)

    def entries(self, choice: int, kind: int) -> tuple[list[int], list[float]]:
        """Rows and coefficients of y[choice, kind], without the workers that it keeps busy."""
        rows, values = self.tier_entries(choice, int(self.kinds.tier[kind]))
        if self.full[kind] >= 0:
            rows.append(int(self.full[kind]))
            values.append(float(self.kinds.stored[choice, kind]))
        if self.seconds is not None:
            timed = self.timed[int(self.kinds.owner[choice])].tolist()
            rows, values = rows + timed, values + [float(self.seconds[choice, kind])] * len(timed)
        return rows, values

    def _choices(self) -> None:
        count = len(self.kinds.choices)
        self.chosen = self.program.add_columns(np.zeros(count), 1.0, integer=True)
        one = self.program.add_rows(1.0, 1.0, len(self.network.names))
        self.program.fill(one[self.kinds.owner], self.chosen, 1.0)
        self.total = self.program.add_rows(0.0, 0.0, count)
        self.program.fill(self.total, self.chosen, -1.0)
        for upstream, representatives in self._representatives.items():
            self._same_ratios(upstream, representatives)

    def _same_ratios(self, upstream: str, representatives: Sequence[str]) -> None:
        """Add rows: a choice that assumes a ratio is made only with an upstream variant that has this ratio."""
        key = {variant: ratios_key(self.network.problem, upstream, variant) for variant in representatives}
        having: dict[object, list[int]] = {}
        assuming: dict[tuple[str, str], list[int]] = {}
        for (name, variant), option, column in zip(
            self.kinds.choices, self._assumed, self.chosen.tolist(), strict=True
        ):
            if name == upstream:
                having.setdefault(ratios_key(self.network.problem, name, variant), []).append(column)
            elif upstream in option:
                assuming.setdefault((name, option[upstream]), []).append(column)
        for (_, variant), columns in assuming.items():
            row = self.program.row(0.0, 0.0, columns)
            self.program.fill([row] * len(having[key[variant]]), having[key[variant]], -1.0)

    def _variant_columns(self) -> dict[Choice, int]:
        """A column per (operator, variant): z, or a new column equal to the sum of z over all assumed ratios."""
        columns: dict[Choice, list[int]] = {}
        for choice, column in zip(self.kinds.choices, self.chosen.tolist(), strict=True):
            columns.setdefault(choice, []).append(column)
        found = {choice: own[0] for choice, own in columns.items()}
        for choice, own in columns.items():
            if len(own) > 1:
                found[choice] = self.program.column(0.0, 1.0)
                self.program.row(0.0, 0.0, [*own, found[choice]], [1.0] * len(own) + [-1.0])
        return found

    def _paid(self) -> None:
        pools = [pool for kind in self.kinds.kinds for pool in kind.pools]
        prices, counts = [self.network.usd_per_h[pool.name] for pool in pools], [float(pool.count) for pool in pools]
        self.paid = self.program.add_columns(prices, counts)
        self.held = self.program.add_rows(-math.inf, 0.0, len(self.kinds.kinds))
        self.program.fill(self.held[self.pools_kind], self.paid, -1.0)
        tight = self.kinds.runs & (self.kinds.stored > np.where(self.kinds.runs, self.kinds.workers, math.inf))
        self.full = np.full(len(self.kinds.kinds), -1, np.int64)  # memory rows; -1 where time always limits first
        self.full[tight.any(axis=0)] = self.program.add_rows(-math.inf, 0.0, int(tight.any(axis=0).sum()))
        limited = self.full[self.pools_kind] >= 0
        self.program.fill(self.full[self.pools_kind][limited], self.paid[limited], -1.0)

    def _meet(self) -> None:
        """Rows per operator and tier that equate y with the flows f; -1 if no route reaches the tier."""
        self.meet = np.full((len(self.network.names), len(self.tiers)), -1, np.int64)
        for number, name in enumerate(self.network.names):
            for index, tier in enumerate(self.tiers):
                brought = self.flows.marginal.get((name, tier), ())
                if brought:
                    self.meet[number, index] = self.program.row(0.0, 0.0, brought, -1.0)

    def _messages(self) -> None:
        """Add columns g; `leaving`: per choice and tier the rows that limit the messages sent from there by y."""
        self.leaving: list[list[list[int]]] = [[[] for _ in self.tiers] for _ in self.kinds.choices]
        self.messages: dict[tuple[EdgeKey, int], dict[Tiers, int]] = {}  # (edge, upstream choice) -> tiers -> column
        place = {tier: index for index, tier in enumerate(self.tiers)}
        of_operator: dict[str, list[int]] = {}
        for index, (name, _) in enumerate(self.kinds.choices):
            of_operator.setdefault(name, []).append(index)
        for key, between in self.flows.between.items():
            pairs = [pair for pair in between if pair[0] != pair[1]]
            sums = self.program.add_rows(0.0, 0.0, len(pairs)).tolist()
            for row, pair in zip(sums, pairs, strict=True):
                self.program.fill([row] * len(between[pair]), between[pair], -1.0)
            starts = list(dict.fromkeys(start for start, _ in pairs))
            for index in of_operator[key[0]]:
                prices = self.demands[index].traffic[key]
                columns = self.program.add_columns([prices[pair] for pair in pairs], 1.0).tolist()
                self.messages[key, index] = dict(zip(pairs, columns, strict=True))
                leave = dict(zip(starts, self.program.add_rows(-math.inf, 0.0, len(starts)).tolist(), strict=True))
                for start, row in leave.items():
                    self.leaving[index][place[start]].append(row)
                rows = [leave[start] for start, _ in pairs]
                self.program.fill(sums + rows, columns + columns, 1.0)

    def _links(self) -> None:
        carried = entry_shares(self.network, self.flows)
        for (key, choice), flows in self.messages.items():
            for link in flows.keys() & carried.keys():
                share = self.demands[choice].sent[key] / self.network.bandwidth[link]
                carried[link].append((flows[link], share))
        self.limited_links = [link for link, terms in carried.items() if terms]
        rows = [self.program.row(-math.inf, 1.0, *zip(*carried[link], strict=True)) for link in self.limited_links]
        self.link_rows = np.array(rows, np.int64)

    def _deadline(self, pace: Pace) -> None:
        """Add the rows of delay_linearisation.py; each workflow has its share of the deadline (deadline_shares.py)."""
        problem = self.network.problem
        self.seconds = pace.seconds(self.network, self.kinds)
        shares = [problem.deadline_share(name) for name in self.network.names]
        self.share = np.array([share if share is not None else 0.0 for share in shares])
        self.at_hand = self.program.add_columns(np.zeros(len(self.network.names)), self.share * pace.left_s)
        column = dict(zip(self.network.names, self.at_hand.tolist(), strict=True))
        choices: dict[str, list[tuple[int, str]]] = {}
        for index, (name, variant) in enumerate(self.kinds.choices):
            choices.setdefault(name, []).append((index, variant))
        timed = []
        for name in self.network.names:
            inputs = {edge.upstream: edge for edge in problem.operator_by_name[name].inputs}
            if problem.deadline_share(name) is None:
                inputs = {}
            rows = self.program.add_rows(-math.inf, 0.0, len(inputs))
            self.program.fill(rows, [column[name]] * len(rows), -1.0)
            for row, (upstream, edge) in zip(rows.tolist(), inputs.items(), strict=True):
                terms = [] if upstream not in column else [(column[upstream], 1.0)]
                for index, variant in choices.get(upstream, []):
                    message_bytes = problem.operator_by_name[upstream].variant(variant).message_bytes[name]
                    flows = self.messages[(upstream, name), index]
                    terms += [(g, pace.sending_s(problem, edge, tiers, message_bytes)) for tiers, g in flows.items()]
                source = problem.source_by_name.get(upstream)
                if source is not None:
                    for tier in self.tiers:
                        brought = self.flows.marginal.get((name, tier), ())
                        if brought and tier != source.tier:
                            time = pace.sending_s(problem, edge, (source.tier, tier), source.message_bytes)
                            terms += [(f, time) for f in brought]
                self.program.fill([row] * len(terms), [c for c, _ in terms], [time for _, time in terms])
            timed.append(rows)
        self.timed = tuple(timed)

    def selection(self, made: Mask) -> Selection:
        """Operator -> variant; `made`: true for the choices that are made."""
        return dict(choice for choice, one in zip(self.kinds.choices, made.tolist(), strict=True) if one)

    def cheaper_first(self) -> Indices:
        """Per choice its position in a list of all choices, operator by operator, cheapest workers first."""
        workers = np.where(self.open, self.kinds.needed, 0.0)
        cost = np.where(self.open, workers * self.kinds.price, math.inf).min(axis=1, initial=math.inf)
        rank = np.empty(len(cost), np.int64)
        rank[np.lexsort((cost, self.kinds.owner))] = np.arange(len(cost))
        return rank

    def traffic_usd_per_h(self, values: Floats) -> float:
        """USD per hour of a point's network traffic."""
        cost = np.concatenate(self.program.cost)
        cost[self.paid] = 0.0
        return float(cost @ values[: len(cost)])


class RelaxedLp(JointLp):
    """The joint LP with its columns y (`served`: by choice and class; -1 if it cannot run there) and integer counts."""

    def __init__(
        self, network: Network, target: float | None, fixed: Mapping[str, str], pace: Pace | None = None
    ) -> None:
        super().__init__(network, target, fixed, pace)
        if not self.possible:
            return
        self.integer_counts = IntegerCounts(
            self.program, self.kinds, self.open, self.chosen, self.paid, self.pools_kind
        )
        self.served = np.full(self.open.shape, -1, np.int64)
        self.served[self.open] = self.program.add_columns(np.zeros(int(self.open.sum())))
        for choice, kind in np.argwhere(self.open).tolist():
            rows, values = self.entries(choice, kind)
            counted, weights = self.integer_counts.entries(choice, kind)
            rows += [*counted, int(self.held[kind])]
            values += [*weights, float(self.kinds.needed[choice, kind])]
            self.program.fill(rows, [int(self.served[choice, kind])] * len(rows), values)
