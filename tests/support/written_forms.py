"""Random forms of operators: the figures of cut models and cascades, and the problem with some of them, by hand.

`written` makes that problem without the solver's code for forms.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from jellybean_solver import (
    AccuracyModel,
    AccuracyRow,
    Edge,
    EdgeKind,
    EndToEnd,
    Form,
    Independent,
    ModelRef,
    Operator,
    PerOperator,
    Problem,
    ServiceTime,
    Stage,
    Variant,
    cut_form,
)
from tests.strategies import LOADS_S, MESSAGE_BYTES, PERCENT


@dataclass(frozen=True)
class Cut:
    """A model in two stages."""

    operator: str
    head: Variant
    tail: Variant
    early: tuple[str, ...]


@dataclass(frozen=True)
class Cascade:
    """A cascade: its four variants, the share of the requests that is passed on, and the accuracies with it."""

    operator: str
    first: Variant
    unsure: Variant
    then: Variant
    answer: Variant
    share: float
    accuracy: AccuracyModel


Written = Cut | Cascade
Options = Mapping[str, tuple[Written, ...]]


def with_options(problem: Problem, options: Options) -> Problem:
    """The problem whose operators have these forms, as the solver takes them."""

    def form(one: Written) -> Form:
        own = problem.operator_by_name[one.operator]
        if isinstance(one, Cut):
            return cut_form(own, one.head, one.tail, one.early)
        return Form(tuple(_parts(own, one)), one.accuracy, has_one_output=True)

    forms = {name: tuple(map(form, own)) for name, own in options.items()}
    return replace(problem, operators=tuple(replace(one, forms=forms.get(one.name, ())) for one in problem.operators))


def choices(options: Options) -> Iterator[dict[str, Written]]:
    """Every choice, at most one form of each operator."""
    for chosen in itertools.product(*((None, *own) for own in options.values())):
        yield {one.operator: one for one in chosen if one is not None}


def written(problem: Problem, choice: Mapping[str, Written]) -> Problem | None:
    """The problem with these forms; None if the accuracy of that combination is not known."""
    accuracy = _accuracy(problem.accuracy, [one for one in choice.values() if isinstance(one, Cascade)])
    if accuracy is None:
        return None
    operators = [part for one in problem.operators for part in _parts(one, choice.get(one.name))]
    new_readers: dict[tuple[str, str], tuple[str, ...]] = {}
    for name, one in choice.items():
        for edge in problem.operator_by_name[name].inputs:
            parts = {Cut: (f"{name}.head",), Cascade: (f"{name}.first", f"{name}.unsure")}[type(one)]
            if isinstance(one, Cascade) or edge.upstream in one.early:
                new_readers[edge.upstream, name] = parts

    def sent(one: Operator, figures: Mapping[str, float]) -> dict[str, float]:
        return {new: size for down, size in figures.items() for new in new_readers.get((one.name, down), (down,))}

    def of_variant(one: Operator, own: Variant) -> Variant:
        return replace(own, message_bytes=sent(one, own.message_bytes), ratios=sent(one, own.ratios))

    moved = (replace(one, variants=tuple(of_variant(one, own) for own in one.variants)) for one in operators)
    return replace(problem, operators=tuple(moved), accuracy=accuracy)


def _parts(own: Operator, one: Written | None) -> Iterator[Operator]:
    """The operators in place of one."""
    name = own.name
    if one is None:
        yield own
    elif isinstance(one, Cut):
        head = f"{name}.head"
        early = tuple(replace(edge, downstream=head) for edge in own.inputs if edge.upstream in one.early)
        late = tuple(edge for edge in own.inputs if edge.upstream not in one.early)
        yield replace(own, name=head, inputs=early, variants=(one.head,))
        yield replace(own, inputs=(*late, Edge(head, name)), variants=(one.tail,))
    else:
        first, unsure, then = (f"{name}.{part}" for part in ("first", "unsure", "then"))
        (edge,) = own.inputs
        yield replace(own, name=first, inputs=(replace(edge, downstream=first),), variants=(one.first,))
        inputs = (Edge(first, unsure), replace(edge, downstream=unsure))
        yield replace(own, name=unsure, inputs=inputs, variants=(one.unsure,))
        passed_on = Edge(unsure, then, EdgeKind.FAN_OUT, one.share, tiers=edge.tiers)
        yield replace(own, name=then, inputs=(passed_on,), variants=(one.then,))
        answers = Edge(first, name), Edge(then, name, EdgeKind.GATHER, 1.0 / one.share)
        yield replace(own, inputs=answers, variants=(one.answer,))


def _accuracy(plain: AccuracyModel, cascades: list[Cascade]) -> AccuracyModel | None:
    if not cascades:
        return plain
    first, *others = cascades
    if not others:
        return first.accuracy
    if isinstance(plain, Independent):
        return Independent(plain.table | {name: table for one in cascades for name, table in _own(one).items()})
    if isinstance(plain, PerOperator):
        return PerOperator(plain.inputs, {**plain.tables, **{n: t for one in cascades for n, t in _own(one).items()}})
    return plain if isinstance(plain, EndToEnd) and not any(_table(one) for one in cascades) else None


def _table(one: Cascade) -> Mapping:
    return one.accuracy.table if isinstance(one.accuracy, EndToEnd) else {}


def _own(one: Cascade) -> dict:
    """The entry of the operator itself."""
    tables = one.accuracy.tables if isinstance(one.accuracy, PerOperator) else getattr(one.accuracy, "table", {})
    return {one.operator: tables[one.operator]} if one.operator in tables else {}


@st.composite
def options(draw: st.DrawFn, problem: Problem, *, most: int = 2) -> Options:
    """Cuts of one variant of an operator, one or two, and cascades; `most` operators have some."""
    found: dict[str, tuple[Written, ...]] = {}
    for operator in problem.operators:
        if len(found) == most or draw(st.integers(0, 2)) == 0:
            continue
        kinds = [kind for kind in ("cut", "cascade") if draw(st.booleans())]
        forms: list[Written] = []
        if "cut" in kinds:
            whole = draw(st.sampled_from(operator.variants))
            forms += [draw(cuts(problem, operator.name, whole, at)) for at in range(1, draw(st.integers(2, 3)))]
        if "cascade" in kinds and may_be_cascade(problem, operator):
            forms.append(draw(cascades(problem, operator)))
        if forms:
            found[operator.name] = tuple(forms)
    return found


@st.composite
def services(draw: st.DrawFn, problem: Problem) -> dict[str, dict[int, ServiceTime]]:
    loads = {pool.name: draw(st.sampled_from(LOADS_S)) for pool in problem.pools}
    return {pool: {1: ServiceTime(load, load)} for pool, load in loads.items()}


@st.composite
def cuts(draw: st.DrawFn, problem: Problem, operator: str, whole: Variant, at: int) -> Cut:
    upstreams = [edge.upstream for edge in problem.operator_by_name[operator].inputs]
    early = draw(st.lists(st.sampled_from(upstreams), min_size=1, unique=True))
    stage = Stage(operator, whole.name, 1, at, 5)
    sent = {operator: draw(st.sampled_from(MESSAGE_BYTES))}
    model = ModelRef(f"{at}.onnx", str(at) * 64)
    head = Variant(f"{whole.name}.1-{at}", draw(services(problem)), sent, model=model, stage=stage)
    tail = replace(whole, service=draw(services(problem)), memory_bytes={}, stage=replace(stage, first=at + 1, last=5))
    return Cut(operator, head, tail, tuple(early))


def may_be_cascade(problem: Problem, operator: Operator) -> bool:
    """True if it has one input, does not gather, and does not fan out."""
    fans_out = any(edge.upstream == operator.name and edge.kind is EdgeKind.FAN_OUT for edge in problem.edges)
    return len(operator.inputs) == 1 and operator.inputs[0].kind is not EdgeKind.GATHER and not fans_out


@st.composite
def cascades(draw: st.DrawFn, problem: Problem, operator: Operator) -> Cascade:
    name, size = operator.name, st.sampled_from(MESSAGE_BYTES)
    unsure, then = f"{name}.unsure", f"{name}.then"
    share = draw(st.sampled_from((0.1, 0.25, 0.5, 1.0)))
    readers = {edge.downstream: draw(size) for edge in problem.edges if edge.upstream == name}

    def variant(called: str, sent: dict[str, float]) -> Variant:
        return Variant(called, draw(services(problem)), sent)

    return Cascade(
        name,
        variant("cheap", {unsure: draw(size), name: draw(size)}),
        replace(variant("both", {then: draw(size)}), ratios={then: share}),
        variant("dear", {name: draw(size)}),
        variant("both", readers),
        share,
        draw(_with_both(problem.accuracy, name)),
    )


@st.composite
def _with_both(draw: st.DrawFn, plain: AccuracyModel, name: str) -> AccuracyModel:
    """The accuracies with the cascade `both` in place of an operator's variants."""
    percent = st.sampled_from(PERCENT)
    if isinstance(plain, Independent):
        return Independent({**plain.table, **({name: {"both": draw(percent)}} if name in plain.table else {})})
    if isinstance(plain, PerOperator):
        if name not in plain.tables:
            return plain
        rows = tuple(replace(row, output=draw(percent)) for row in next(iter(plain.tables[name].values())))
        return PerOperator(plain.inputs, {**plain.tables, name: {"both": _raised(rows)}})
    assert isinstance(plain, EndToEnd)
    if name not in plain.operators:
        return plain
    at = plain.operators.index(name)
    rows = {(*row[:at], "both", *row[at + 1 :]) for row in plain.table}
    return EndToEnd(plain.operators, {row: draw(percent) for row in sorted(rows)})


def _raised(rows: tuple[AccuracyRow, ...]) -> tuple[AccuracyRow, ...]:
    return tuple({row.inputs: row for row in rows}.values())
