"""Sources and edges of a draft: which model's output another model's input takes, by names and shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import chain, count

from jellybean.documents.checks.tensors import Port, Tensor, misfits
from jellybean.documents.draft.models import DraftOperator, valid_name
from jellybean_agent import is_zipmap
from jellybean_solver import EdgeKind

_SOURCE = "input"
_EXPORTERS_NAMES = ("input", "x", "data", "float_input", "int64_input", "string_input", "args_0", "onnx")


class Evidence(IntEnum):
    """Why an output is taken to feed an input, the weakest first."""

    SOME_SIZES = 1  # type and some sizes agree, the others are open
    ALL_SIZES = 2
    NAME_CONTAINS = 3  # the input's name contains the operator's
    NAME = 4  # the input has the name of the operator, or of its output


@dataclass(frozen=True)
class DraftEdge:
    """An input of an operator. `output`: None for the first. `guess`: why it must be checked; empty if it is sure."""

    upstream: str
    output: str | None = None
    kind: EdgeKind = EdgeKind.EACH
    ratio: int | None = None  # of a fan-out; None: it is measured
    guess: str = ""
    zipmap_of: str = ""  # the operator that probably feeds the input once its scores are a tensor


@dataclass(frozen=True)
class DraftSource:
    """A source: the tensor that it sends, and the names of the model inputs that take it."""

    name: str
    tensor: Tensor
    ports: tuple[str, ...]


@dataclass(frozen=True)
class Draft:
    """Operators in the order of the data, with the edges of each (one per model input), and the sources."""

    operators: tuple[DraftOperator, ...]
    edges: Mapping[str, tuple[DraftEdge, ...]]
    sources: tuple[DraftSource, ...]

    @property
    def sinks(self) -> tuple[str, ...]:
        """Operators whose outputs are answers."""
        read = {edge.upstream for edges in self.edges.values() for edge in edges}
        return tuple(operator.name for operator in self.operators if operator.name not in read)


@dataclass(frozen=True)
class _Feed:
    """An output that fits an input."""

    upstream: str
    output: str | None
    evidence: Evidence


@dataclass
class _Wiring:
    """Edges found so far, by operator and position of the input."""

    operators: Mapping[str, DraftOperator]
    feeds: dict[tuple[str, int], _Feed] = field(default_factory=dict)
    doubts: dict[tuple[str, int], tuple[str, ...]] = field(default_factory=dict)  # upstreams that fit equally well

    def connect(self) -> None:
        """Connect inputs, the best evidence first, where exactly one output fits or as many as there are inputs."""
        for least in sorted(Evidence, reverse=True):
            for name, operator in self.operators.items():
                for ports in _alike(operator.inputs):
                    self._connect(name, [index for index in ports if (name, index) not in self.feeds], least)

    def _connect(self, name: str, ports: Sequence[int], least: Evidence) -> None:
        """Connect inputs of one tensor type: one by one if each has one candidate, or all of them in order."""
        open_ports = list(ports)
        for index in ports:
            best = self._best(name, index, least)
            if len(best) == 1 and not self._is_mutual(name, best[0]):
                self.feeds[name, index] = best[0]
                open_ports.remove(index)
        if len(open_ports) > 1:
            best = self._best(name, open_ports[0], least)
            if len(best) == len(open_ports) and not any(self._is_mutual(name, feed) for feed in best):
                self.feeds.update({(name, index): feed for index, feed in zip(open_ports, best, strict=True)})
                return
        for index in open_ports:
            if best := self._best(name, index, least):
                self.doubts[name, index] = tuple(feed.upstream for feed in best)

    def _best(self, name: str, index: int, least: Evidence) -> list[_Feed]:
        """The candidates of an input with the strongest evidence that is at least `least`."""
        port = self.operators[name].inputs[index]
        taken = {feed.upstream for (reader, _), feed in self.feeds.items() if reader == name}
        if self.misfit_namesake(name, index) is not None or _maps_named(self.operators[name], index, self.operators):
            least = max(least, Evidence.NAME_CONTAINS)  # its name says which operator it reads once that one fits
        candidates = [
            feed
            for upstream in self.operators.values()
            if upstream.name not in taken and not self._reaches(name, upstream.name)
            if (feed := _feed(upstream, port)) is not None and feed.evidence >= least
        ]
        strongest = max((feed.evidence for feed in candidates), default=least)
        return [feed for feed in candidates if feed.evidence is strongest]

    def misfit_namesake(self, name: str, index: int) -> tuple[str, str] | None:
        """The other operator that an input has the name of, and why its answer does not fit; None if it fits."""
        port = self.operators[name].inputs[index]
        upstream = self.operators.get(port.name)
        if upstream is None or port.name == name or _feed(upstream, port) is not None:
            return None
        if any(own.name == port.name for own in upstream.inputs):
            return None  # both read a source of that name
        return port.name, misfits(upstream.outputs[0].tensor, port, EdgeKind.FAN_OUT)

    def _is_mutual(self, name: str, feed: _Feed) -> bool:
        """True if the output of `name` fits an open input of the upstream as well as the other way round."""
        output = self.operators[name]
        back = (
            _feed(output, port)
            for index, port in enumerate(self.operators[feed.upstream].inputs)
            if (feed.upstream, index) not in self.feeds
        )
        return any(one is not None and one.evidence >= feed.evidence for one in back)

    def _reaches(self, start: str, end: str) -> bool:
        """True if data flows from `start` to `end`, so that an edge back would close a cycle."""
        readers = [reader for (reader, _), feed in self.feeds.items() if feed.upstream == start]
        return start == end or any(self._reaches(reader, end) for reader in readers)

    def order(self) -> list[str]:
        """Operators so that each comes after those that feed it."""
        ordered: list[str] = []
        while len(ordered) < len(self.operators):
            for name in self.operators:
                upstreams = {feed.upstream for (reader, _), feed in self.feeds.items() if reader == name}
                if name not in ordered and upstreams <= set(ordered):
                    ordered.append(name)
        return ordered


def wire(operators: Sequence[DraftOperator]) -> Draft:
    """Connect operators where the evidence is clear; all other inputs are sources."""
    by_name = {operator.name: operator for operator in operators}
    wiring = _Wiring(by_name)
    wiring.connect()
    sources = _sources(by_name, wiring)
    edges: dict[str, tuple[DraftEdge, ...]] = {}
    levels: dict[str, int] = {source.name: 0 for source in sources.values()}
    for name in wiring.order():
        operator = by_name[name]
        plain = [_plain_edge(operator, index, wiring, sources) for index in range(len(operator.inputs))]
        edges[name], levels[name] = _with_kinds(operator, plain, by_name, levels)
    unique = tuple({source.name: source for source in sources.values()}.values())
    return Draft(tuple(by_name[name] for name in edges), edges, unique)


def _alike(ports: Sequence[Port]) -> list[list[int]]:
    """Positions of inputs, those of equal type and shape together."""
    groups: dict[Tensor, list[int]] = {}
    for index, port in enumerate(ports):
        groups.setdefault(port.tensor, []).append(index)
    return list(groups.values())


def _feed(upstream: DraftOperator, port: Port) -> _Feed | None:
    """The first output of an operator that fits an input; None if none fits."""
    for index, output in enumerate(upstream.outputs):
        evidence = _evidence(upstream.name, output, port)
        if evidence is not None:
            return _Feed(upstream.name, output.name if index else None, evidence)
    return None


def _evidence(operator: str, output: Port, port: Port) -> Evidence | None:
    given, wanted = output.tensor.shape, port.tensor.shape
    if misfits(output.tensor, port, EdgeKind.FAN_OUT):  # a fan-out, so that numbers of rows are not compared
        return None
    if (evidence := _name_evidence(operator, output, port)) is not None:
        return evidence
    if given is None or wanted is None:
        return None
    pairs = list(zip(given[1:], wanted[1:], strict=True))
    if not pairs or all(left is None or right is None for left, right in pairs):
        return None
    return Evidence.SOME_SIZES if any(None in pair for pair in pairs) else Evidence.ALL_SIZES


def _name_evidence(operator: str, output: Port, port: Port) -> Evidence | None:
    """What the name of an input says about an operator's output feeding it; None if it says nothing."""
    if port.name == operator or (port.name == output.name and not _is_exporters(port.name)):
        return Evidence.NAME
    if re.search(rf"(?:^|[^a-z0-9]){re.escape(operator.lower())}(?:[^a-z0-9]|$)", port.name.lower()):
        return Evidence.NAME_CONTAINS
    return None


def _plain_edge(
    operator: DraftOperator, index: int, wiring: _Wiring, sources: Mapping[tuple[str, int], DraftSource]
) -> DraftEdge:
    feed = wiring.feeds.get((operator.name, index))
    if feed is None:
        doubts = wiring.doubts.get((operator.name, index), ())
        guess = f"could also be the output of {' or '.join(doubts)}" if doubts else ""
        source = sources[operator.name, index].name
        if (maps := _maps_named(operator, index, wiring.operators)) and not doubts:
            guess = (
                f"it is probably operator {maps}, whose scores are a list of maps (ZipMap) so far: once it is exported "
                f"with a tensor, write {maps} in place of {source}, and remove source {source}"
            )
            return DraftEdge(source, guess=guess, zipmap_of=maps)
        if (misfit := wiring.misfit_namesake(operator.name, index)) and not doubts:
            upstream, reason = misfit
            guess = (
                f"it is named like operator {upstream}, whose output does not fit ({reason}): export {upstream} with "
                f"an output that fits, write {upstream} in place of {source}, and remove source {source}"
            )
        return DraftEdge(source, guess=guess)
    guess = "" if feed.evidence is Evidence.NAME else "follows from types and shapes only"
    return DraftEdge(feed.upstream, feed.output, guess=guess)


def _maps_named(operator: DraftOperator, index: int, operators: Mapping[str, DraftOperator]) -> str:
    """The operator that an input is named after whose scores no input can take, as they are a ZipMap; empty if none."""
    port = operator.inputs[index]
    for name, upstream in operators.items():
        maps = [output for output in upstream.outputs if is_zipmap(output.tensor.dtype)]
        if name != operator.name and maps and any(_name_evidence(name, output, port) for output in maps):
            return name
    return ""


def _with_kinds(
    operator: DraftOperator,
    edges: Sequence[DraftEdge],
    operators: Mapping[str, DraftOperator],
    levels: Mapping[str, int],
) -> tuple[tuple[DraftEdge, ...], int]:
    """The edges with fan-outs and gathers, and the operator's level: the number of open fan-outs."""
    kinds: list[DraftEdge] = []
    inside: list[int] = []
    for edge in edges:
        upstream = operators.get(edge.upstream)
        level = levels[edge.upstream]
        if upstream is not None and upstream.first.fans_out and not operator.first.gathers:
            ratio = upstream.first.children
            guess = "" if ratio else "each row of its output is taken for a request of its own"
            kinds.append(replace(edge, kind=EdgeKind.FAN_OUT, ratio=ratio, guess=_and(edge.guess, guess)))
            inside.append(level + 1)
        elif operator.first.gathers and level:
            kinds.append(replace(edge, kind=EdgeKind.GATHER))
            inside.append(level - 1)
        else:
            kinds.append(edge)
            inside.append(level)
    for index, level in enumerate(inside):
        if level == min(inside) + 1 and kinds[index].kind is EdgeKind.EACH:  # a join with data from before the fan-out
            guess = _and(kinds[index].guess, "waits for all children, because its other inputs are of the parent")
            kinds[index] = replace(kinds[index], kind=EdgeKind.GATHER, guess=guess)
    return tuple(kinds), min(inside)


def _and(*guesses: str) -> str:
    return "; ".join(filter(None, guesses))


def _sources(operators: Mapping[str, DraftOperator], wiring: _Wiring) -> dict[tuple[str, int], DraftSource]:
    """(operator, input) -> source. Inputs of different operators share one if their tensors are alike."""
    open_ports = [
        (name, index)
        for name, operator in operators.items()
        for index in range(len(operator.inputs))
        if (name, index) not in wiring.feeds
    ]
    groups: list[list[tuple[str, int]]] = []
    for name, index in open_ports:
        port = operators[name].inputs[index]
        for group in groups:
            firsts = [operators[other].inputs[place] for other, place in group]
            if all(other != name for other, _ in group) and _same_source(firsts[0], port):
                group.append((name, index))
                break
        else:
            groups.append([(name, index)])
    found: dict[tuple[str, int], DraftSource] = {}
    names = set(operators)
    for group in groups:
        ports = [operators[name].inputs[index] for name, index in group]
        name = _source_name(ports, group[0][0], alone=len(groups) == 1, taken=names)
        names.add(name)
        source = DraftSource(name, ports[0].tensor, tuple(dict.fromkeys(port.name for port in ports)))
        found.update(dict.fromkeys(group, source))
    return found


def _same_source(left: Port, right: Port) -> bool:
    """True if two inputs have one type and shape, with known sizes, or one name that is not an exporter's."""
    shapes = [left.tensor.shape, right.tensor.shape]
    if left.tensor.dtype != right.tensor.dtype or None in shapes:
        return False
    sizes = [shape[1:] for shape in shapes if shape is not None]
    if sizes[0] != sizes[1]:
        return False
    known = bool(sizes[0]) and None not in sizes[0]
    return known or (left.name == right.name and not _is_exporters(left.name))


def _source_name(ports: Sequence[Port], operator: str, *, alone: bool, taken: set[str]) -> str:
    given = next((valid_name(port.name) for port in ports if not _is_exporters(port.name)), "")
    name = given or (_SOURCE if alone else f"{operator}_{_SOURCE}")
    names = chain([name, f"{name}_{_SOURCE}"], (f"{name}_{_SOURCE}_{number}" for number in count(2)))
    return next(name for name in names if name not in taken)


def _is_exporters(name: str) -> bool:
    """True for names that exporters give to any input, such as `input.1`."""
    word = name.lower().rstrip("0123456789").rstrip("._:")
    return word in _EXPORTERS_NAMES or name.lower().startswith("onnx::") or not valid_name(name)[:1].isalnum()
