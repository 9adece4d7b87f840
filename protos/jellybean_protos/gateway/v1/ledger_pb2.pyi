from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Span(_message.Message):
    __slots__ = ("since_s", "until_s", "plan")
    SINCE_S_FIELD_NUMBER: _ClassVar[int]
    UNTIL_S_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    since_s: float
    until_s: float
    plan: str
    def __init__(self, since_s: _Optional[float] = ..., until_s: _Optional[float] = ..., plan: _Optional[str] = ...) -> None: ...

class CostRequest(_message.Message):
    __slots__ = ("by", "span")
    BY_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    by: str
    span: Span
    def __init__(self, by: _Optional[str] = ..., span: _Optional[_Union[Span, _Mapping]] = ...) -> None: ...

class CostResponse(_message.Message):
    __slots__ = ("lines",)
    LINES_FIELD_NUMBER: _ClassVar[int]
    lines: _containers.RepeatedCompositeFieldContainer[CostLine]
    def __init__(self, lines: _Optional[_Iterable[_Union[CostLine, _Mapping]]] = ...) -> None: ...

class CostLine(_message.Message):
    __slots__ = ("name", "workers_usd", "traffic_usd", "done", "failed")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WORKERS_USD_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_USD_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    name: str
    workers_usd: float
    traffic_usd: float
    done: int
    failed: int
    def __init__(self, name: _Optional[str] = ..., workers_usd: _Optional[float] = ..., traffic_usd: _Optional[float] = ..., done: _Optional[int] = ..., failed: _Optional[int] = ...) -> None: ...

class TimelineRequest(_message.Message):
    __slots__ = ("piece_s", "span")
    PIECE_S_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    piece_s: int
    span: Span
    def __init__(self, piece_s: _Optional[int] = ..., span: _Optional[_Union[Span, _Mapping]] = ...) -> None: ...

class TimelineResponse(_message.Message):
    __slots__ = ("points",)
    POINTS_FIELD_NUMBER: _ClassVar[int]
    points: _containers.RepeatedCompositeFieldContainer[TimelinePoint]
    def __init__(self, points: _Optional[_Iterable[_Union[TimelinePoint, _Mapping]]] = ...) -> None: ...

class TimelinePoint(_message.Message):
    __slots__ = ("begin_s", "paid_s", "usd", "answered", "failed", "latency_p99_s")
    BEGIN_S_FIELD_NUMBER: _ClassVar[int]
    PAID_S_FIELD_NUMBER: _ClassVar[int]
    USD_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    LATENCY_P99_S_FIELD_NUMBER: _ClassVar[int]
    begin_s: float
    paid_s: float
    usd: float
    answered: int
    failed: int
    latency_p99_s: float
    def __init__(self, begin_s: _Optional[float] = ..., paid_s: _Optional[float] = ..., usd: _Optional[float] = ..., answered: _Optional[int] = ..., failed: _Optional[int] = ..., latency_p99_s: _Optional[float] = ...) -> None: ...

class ServedTimeRequest(_message.Message):
    __slots__ = ("span",)
    SPAN_FIELD_NUMBER: _ClassVar[int]
    span: Span
    def __init__(self, span: _Optional[_Union[Span, _Mapping]] = ...) -> None: ...

class ServedTimeResponse(_message.Message):
    __slots__ = ("begin_s", "end_s", "plans")
    BEGIN_S_FIELD_NUMBER: _ClassVar[int]
    END_S_FIELD_NUMBER: _ClassVar[int]
    PLANS_FIELD_NUMBER: _ClassVar[int]
    begin_s: float
    end_s: float
    plans: _containers.RepeatedCompositeFieldContainer[PlanTime]
    def __init__(self, begin_s: _Optional[float] = ..., end_s: _Optional[float] = ..., plans: _Optional[_Iterable[_Union[PlanTime, _Mapping]]] = ...) -> None: ...

class PlanTime(_message.Message):
    __slots__ = ("plan", "seconds")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    plan: str
    seconds: float
    def __init__(self, plan: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class EventsRequest(_message.Message):
    __slots__ = ("span",)
    SPAN_FIELD_NUMBER: _ClassVar[int]
    span: Span
    def __init__(self, span: _Optional[_Union[Span, _Mapping]] = ...) -> None: ...

class EventsResponse(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[LedgerEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[LedgerEvent, _Mapping]]] = ...) -> None: ...

class LedgerEvent(_message.Message):
    __slots__ = ("at_s", "run", "kind", "plan", "note")
    AT_S_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    at_s: float
    run: str
    kind: str
    plan: str
    note: str
    def __init__(self, at_s: _Optional[float] = ..., run: _Optional[str] = ..., kind: _Optional[str] = ..., plan: _Optional[str] = ..., note: _Optional[str] = ...) -> None: ...

class AccuracyRequest(_message.Message):
    __slots__ = ("by", "span", "workflow")
    BY_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    WORKFLOW_FIELD_NUMBER: _ClassVar[int]
    by: str
    span: Span
    workflow: str
    def __init__(self, by: _Optional[str] = ..., span: _Optional[_Union[Span, _Mapping]] = ..., workflow: _Optional[str] = ...) -> None: ...

class AccuracyResponse(_message.Message):
    __slots__ = ("lines", "waiting")
    LINES_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    lines: _containers.RepeatedCompositeFieldContainer[AccuracyLine]
    waiting: int
    def __init__(self, lines: _Optional[_Iterable[_Union[AccuracyLine, _Mapping]]] = ..., waiting: _Optional[int] = ...) -> None: ...

class AccuracyLine(_message.Message):
    __slots__ = ("name", "labels", "accuracy", "low", "high")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    name: str
    labels: int
    accuracy: float
    low: float
    high: float
    def __init__(self, name: _Optional[str] = ..., labels: _Optional[int] = ..., accuracy: _Optional[float] = ..., low: _Optional[float] = ..., high: _Optional[float] = ...) -> None: ...

class AccuracyTimelineRequest(_message.Message):
    __slots__ = ("workflow", "piece_s", "span")
    WORKFLOW_FIELD_NUMBER: _ClassVar[int]
    PIECE_S_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    workflow: str
    piece_s: int
    span: Span
    def __init__(self, workflow: _Optional[str] = ..., piece_s: _Optional[int] = ..., span: _Optional[_Union[Span, _Mapping]] = ...) -> None: ...

class AccuracyTimelineResponse(_message.Message):
    __slots__ = ("pieces",)
    PIECES_FIELD_NUMBER: _ClassVar[int]
    pieces: _containers.RepeatedCompositeFieldContainer[AccuracyPiece]
    def __init__(self, pieces: _Optional[_Iterable[_Union[AccuracyPiece, _Mapping]]] = ...) -> None: ...

class AccuracyPiece(_message.Message):
    __slots__ = ("begin_s", "accuracy")
    BEGIN_S_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    begin_s: float
    accuracy: AccuracyLine
    def __init__(self, begin_s: _Optional[float] = ..., accuracy: _Optional[_Union[AccuracyLine, _Mapping]] = ...) -> None: ...

class AuditsRequest(_message.Message):
    __slots__ = ("workflow", "plan", "span")
    WORKFLOW_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    workflow: str
    plan: str
    span: Span
    def __init__(self, workflow: _Optional[str] = ..., plan: _Optional[str] = ..., span: _Optional[_Union[Span, _Mapping]] = ...) -> None: ...

class AuditsResponse(_message.Message):
    __slots__ = ("lines",)
    LINES_FIELD_NUMBER: _ClassVar[int]
    lines: _containers.RepeatedCompositeFieldContainer[AuditLine]
    def __init__(self, lines: _Optional[_Iterable[_Union[AuditLine, _Mapping]]] = ...) -> None: ...

class AuditLine(_message.Message):
    __slots__ = ("begin_s", "seconds", "site", "audits", "agreed", "shed", "lost", "selection")
    BEGIN_S_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    AUDITS_FIELD_NUMBER: _ClassVar[int]
    AGREED_FIELD_NUMBER: _ClassVar[int]
    SHED_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    SELECTION_FIELD_NUMBER: _ClassVar[int]
    begin_s: float
    seconds: float
    site: str
    audits: int
    agreed: float
    shed: int
    lost: int
    selection: str
    def __init__(self, begin_s: _Optional[float] = ..., seconds: _Optional[float] = ..., site: _Optional[str] = ..., audits: _Optional[int] = ..., agreed: _Optional[float] = ..., shed: _Optional[int] = ..., lost: _Optional[int] = ..., selection: _Optional[str] = ...) -> None: ...

class LabelRequest(_message.Message):
    __slots__ = ("labels", "workflow")
    LABELS_FIELD_NUMBER: _ClassVar[int]
    WORKFLOW_FIELD_NUMBER: _ClassVar[int]
    labels: _containers.RepeatedCompositeFieldContainer[RequestLabel]
    workflow: str
    def __init__(self, labels: _Optional[_Iterable[_Union[RequestLabel, _Mapping]]] = ..., workflow: _Optional[str] = ...) -> None: ...

class RequestLabel(_message.Message):
    __slots__ = ("id", "label", "client")
    ID_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    id: str
    label: str
    client: str
    def __init__(self, id: _Optional[str] = ..., label: _Optional[str] = ..., client: _Optional[str] = ...) -> None: ...

class LabelResponse(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[LabelOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[LabelOutcome, _Mapping]]] = ...) -> None: ...

class LabelOutcome(_message.Message):
    __slots__ = ("verdict", "problem")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    verdict: float
    problem: str
    def __init__(self, verdict: _Optional[float] = ..., problem: _Optional[str] = ...) -> None: ...

class CountsRequest(_message.Message):
    __slots__ = ("plan", "span")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    plan: str
    span: Span
    def __init__(self, plan: _Optional[str] = ..., span: _Optional[_Union[Span, _Mapping]] = ...) -> None: ...

class CountsResponse(_message.Message):
    __slots__ = ("plan", "received", "work", "values")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    plan: str
    received: _containers.RepeatedCompositeFieldContainer[ReceivedCount]
    work: _containers.RepeatedCompositeFieldContainer[WorkCount]
    values: _containers.RepeatedCompositeFieldContainer[ValueCount]
    def __init__(self, plan: _Optional[str] = ..., received: _Optional[_Iterable[_Union[ReceivedCount, _Mapping]]] = ..., work: _Optional[_Iterable[_Union[WorkCount, _Mapping]]] = ..., values: _Optional[_Iterable[_Union[ValueCount, _Mapping]]] = ...) -> None: ...

class ReceivedCount(_message.Message):
    __slots__ = ("begin_s", "seconds", "requests", "workflow")
    BEGIN_S_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    WORKFLOW_FIELD_NUMBER: _ClassVar[int]
    begin_s: float
    seconds: float
    requests: int
    workflow: str
    def __init__(self, begin_s: _Optional[float] = ..., seconds: _Optional[float] = ..., requests: _Optional[int] = ..., workflow: _Optional[str] = ...) -> None: ...

class WorkCount(_message.Message):
    __slots__ = ("begin_s", "seconds", "operator", "worker", "completed", "busy_s", "workflow")
    BEGIN_S_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    BUSY_S_FIELD_NUMBER: _ClassVar[int]
    WORKFLOW_FIELD_NUMBER: _ClassVar[int]
    begin_s: float
    seconds: float
    operator: str
    worker: str
    completed: float
    busy_s: float
    workflow: str
    def __init__(self, begin_s: _Optional[float] = ..., seconds: _Optional[float] = ..., operator: _Optional[str] = ..., worker: _Optional[str] = ..., completed: _Optional[float] = ..., busy_s: _Optional[float] = ..., workflow: _Optional[str] = ...) -> None: ...

class ValueCount(_message.Message):
    __slots__ = ("begin_s", "seconds", "workflow", "port", "name", "figure", "requests", "mean", "deviation")
    BEGIN_S_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    WORKFLOW_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    FIGURE_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    DEVIATION_FIELD_NUMBER: _ClassVar[int]
    begin_s: float
    seconds: float
    workflow: str
    port: str
    name: str
    figure: str
    requests: int
    mean: float
    deviation: float
    def __init__(self, begin_s: _Optional[float] = ..., seconds: _Optional[float] = ..., workflow: _Optional[str] = ..., port: _Optional[str] = ..., name: _Optional[str] = ..., figure: _Optional[str] = ..., requests: _Optional[int] = ..., mean: _Optional[float] = ..., deviation: _Optional[float] = ...) -> None: ...
