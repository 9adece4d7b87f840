"""What workers say that their models take and give: compared with the plan, and with each other.

Workers that run the same variant load the same file, so they state the same. Of those that differ
the plan cannot know who is right: a majority of the workers is believed, and the others are left
out. Without a majority nobody is: a larger part of the requests makes no worker more honest.
Requests are only checked against what most workers say. What is disputed is checked where a model
runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from jellybean_agent import GATEWAY, MAX_TENSOR_RANK, WIRE_DTYPES, PlanView, WorkerView
from jellybean_protos.agent.v1 import agent_pb2

Ports = Mapping[str, agent_pb2.TensorSpec]
_MOST = 2**40  # of a size in a shape


@dataclass(frozen=True, slots=True)
class _Party:
    """Workers whose statements on an operator do not contradict each other.

    `keys`: their different statements; `signature`: the widest of them.
    """

    workers: tuple[str, ...]
    keys: frozenset[bytes]
    signature: agent_pb2.Signature
    share: float  # of the requests


def own_signatures(view: PlanView, stated: Mapping[str, agent_pb2.Signature]) -> dict[str, agent_pb2.Signature]:
    """Signatures of the models of a view's workflow, by the names that it has for its operators."""
    if not view.workflow:
        return dict(stated)
    own = view.own_name
    return {
        own(operator): agent_pb2.Signature(
            inputs={own(upstream): spec for upstream, spec in one.inputs.items()},
            outputs={own(downstream): spec for downstream, spec in one.outputs.items()},
        )
        for operator, one in stated.items()
        if view.owns(operator)
    }


def problem_of(view: PlanView, worker: WorkerView, stated: Mapping[str, agent_pb2.Signature]) -> str:
    """What is wrong with the signatures that a worker states, by the plan; empty if nothing."""
    for name in [name for name in worker.operators if name in stated]:  # what it does not state harms nobody
        wiring, signature = view.operators[name].wiring, stated[name]
        upstreams = {upstream for upstream, _ in wiring.inputs}
        downstreams = {downstream for downstream, _ in wiring.outputs} or {GATEWAY}
        if signature.inputs.keys() != upstreams or signature.outputs.keys() != downstreams:
            return f"states other inputs or outputs of {name} than the plan has"
        if not all(map(_is_sound, (*signature.inputs.values(), *signature.outputs.values()))):
            return f"states types or shapes of {name} that no tensor has"
    return ""


class Signatures:
    """The signatures of a plan's operators. `changes`: how often they may have changed.

    Of a large fleet nearly all workers state the same: statements are compared by their bytes first.
    """

    def __init__(self, view: PlanView) -> None:
        self._view = view
        self._order = {name: number for number, name in enumerate(view.workers)}
        self._by_key: dict[bytes, agent_pb2.Signature] = {}
        self._stated: dict[str, dict[str, bytes]] = {name: {} for name in view.operators}  # operator -> worker -> key
        self._parties: dict[str, list[_Party]] = {}  # operator -> of workers that are not left out, the strongest first
        self._odd: dict[str, dict[str, str]] = {}  # operator -> worker -> why it is left out
        self._shares: dict[str, dict[str, float]] = {}
        self.changes = 0

    def state(self, worker: WorkerView, stated: Mapping[str, agent_pb2.Signature]) -> None:
        """A worker states the signatures of its operators, with which the plan finds no problem."""
        for name in [name for name in worker.operators if name in stated]:
            key = stated[name].SerializeToString(deterministic=True)
            before = self._stated[name].get(worker.name)
            if before == key:
                continue
            self._stated[name][worker.name] = key
            self._by_key[key] = stated[name]
            if before is None and self._is_undisputed(name) and key in self._parties[name][0].keys:
                continue
            self._compare(name)
            self.changes += 1

    def of(self, operator: str) -> agent_pb2.Signature | None:
        """What most say of an operator, or the strongest party; None before anybody has."""
        parties = self._parties.get(operator)
        return parties[0].signature if parties else None

    def agreed(self, operator: str) -> agent_pb2.Signature | None:
        """The signature that no worker, or a minority, disputes; None if there is none."""
        parties = self._parties.get(operator)
        if not parties:
            return None
        count = len(self._stated[operator])
        is_agreed = self._is_undisputed(operator) or 2 * len(parties[0].workers) > max(count, 2)
        return parties[0].signature if is_agreed else None

    def disputed(self) -> list[str]:
        """Operators on which workers disagree, so that their inputs are not checked."""
        return [name for name, parties in self._parties.items() if parties and self.agreed(name) is None]

    def odd(self) -> dict[str, str]:
        """The workers to be left out, and why."""
        return {worker: why for of_operator in self._odd.values() for worker, why in of_operator.items()}

    def _is_undisputed(self, operator: str) -> bool:
        return len(self._parties.get(operator, ())) == 1 and not self._odd[operator]

    def _compare(self, operator: str) -> None:
        """Divide the workers of an operator into parties; find the odd ones among those of a variant."""
        odd: dict[str, str] = {}
        by_variant: dict[str, list[str]] = {}
        for name in self._stated[operator]:
            by_variant.setdefault(self._view.workers[name].variants.get(operator, ""), []).append(name)
        for names in by_variant.values():
            first, *others = self._divided(operator, names)
            if others and 2 * len(first.workers) > len(names):
                why = f"states other inputs or outputs of {operator} than {', '.join(first.workers[:3])}"
                odd |= {name: why for party in others for name in party.workers}
        self._odd[operator] = odd
        self._parties[operator] = self._divided(operator, [name for name in self._stated[operator] if name not in odd])

    def _divided(self, operator: str, names: Collection[str]) -> list[_Party]:
        """Parties of these workers, the strongest first; of equals in the order of the plan."""
        by_key: dict[bytes, list[str]] = {}
        for name in sorted(names, key=self._order.__getitem__):
            by_key.setdefault(self._stated[operator][name], []).append(name)
        groups: list[list[bytes]] = []
        for key in by_key:
            fits = (group for group in groups if all(_fits(self._by_key[key], self._by_key[one]) for one in group))
            group = next(fits, None)
            if group is None:
                groups.append([key])
            else:
                group.append(key)
        parties = []
        for group in groups:
            workers = tuple(name for key in group for name in by_key[key])
            share = sum(self._share(operator)[name] for name in workers) if len(groups) > 1 else 1.0
            parties.append(_Party(workers, frozenset(group), _widest([self._by_key[key] for key in group]), share))
        return sorted(parties, key=lambda party: (len(party.workers), party.share), reverse=True)

    def _share(self, operator: str) -> dict[str, float]:
        """Worker -> its share of the requests that go to an operator, by the plan's weights."""
        if operator not in self._shares:
            shares = self._shares[operator] = dict.fromkeys(self._view.workers, 0.0)
            for number, route in enumerate(self._view.routes):
                if operator in route:
                    shares[route[operator]] += self._view.weights[number % len(self._view.weights)]
        return self._shares[operator]


def _is_sound(spec: agent_pb2.TensorSpec) -> bool:
    is_shape = len(spec.shape) <= MAX_TENSOR_RANK and all(-1 <= size <= _MOST for size in spec.shape)
    return is_shape and spec.dtype in WIRE_DTYPES


def _fits(one: agent_pb2.Signature, other: agent_pb2.Signature) -> bool:
    """True if two signatures do not contradict each other; -1 is any size."""
    return _ports_fit(one.inputs, other.inputs) and _ports_fit(one.outputs, other.outputs)


def _ports_fit(ones: Ports, others: Ports) -> bool:
    return all(
        spec.dtype == others[name].dtype
        and len(spec.shape) == len(others[name].shape)
        and all(-1 in pair or pair[0] == pair[1] for pair in zip(spec.shape, others[name].shape, strict=True))
        for name, spec in ones.items()
    )


def _widest(signatures: Sequence[agent_pb2.Signature]) -> agent_pb2.Signature:
    """A signature that takes what any of these takes; they do not contradict each other."""
    first = signatures[0]
    return agent_pb2.Signature(
        inputs={name: _widest_spec([one.inputs[name] for one in signatures]) for name in first.inputs},
        outputs={name: _widest_spec([one.outputs[name] for one in signatures]) for name in first.outputs},
    )


def _widest_spec(specs: Iterable[agent_pb2.TensorSpec]) -> agent_pb2.TensorSpec:
    first, *others = specs
    shape = list(first.shape)
    for spec in others:
        shape = [size if size == other else -1 for size, other in zip(shape, spec.shape, strict=True)]
    return agent_pb2.TensorSpec(dtype=first.dtype, shape=shape)
