"""Measurements as a profiles.yaml document."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import onnxruntime

from jellybean.documents.schema.profiles import (
    AccuracyProfile,
    BatchProfile,
    CutProfile,
    MeasuredSelection,
    ProfilesDocument,
    StageProfile,
    VariantProfile,
)
from jellybean.profiler.accuracy import Measured
from jellybean.profiler.cuts import CutModel, CutModels
from jellybean.profiler.latency import Latency, Point
from jellybean.profiler.survey import Survey
from jellybean.profiler.workload import Model, Workload

NOISY = 0.10  # relative spread of repeated latency measurements above which a note is printed
MIN_NOISE_S = 1e-3  # the spread of shorter latencies is ignored: it comes from clocks and sleeps, not from the model


@dataclass(frozen=True)
class Findings:
    """All measurements of a project.

    `accuracy`: by selection (`Measured`), or operator -> variant -> percent; None without labels.
    """

    workload: Workload
    survey: Survey
    latency: Mapping[Point, Latency]
    memory_bytes: Mapping[Model, float]
    hop_s: float
    accuracy: Measured | dict[str, dict[str, float]] | None
    cut_models: CutModels


def to_profiles(findings: Findings) -> ProfilesDocument:
    """The profiles document: latency by worker type and batch size, message sizes, memory, accuracy, host facts."""
    operators: dict[str, dict[str, VariantProfile]] = {}
    for step in findings.workload.steps:
        operators[step.name] = {model.variant: _variant(findings, model) for model in step.models}
    return ProfilesDocument(
        machine=_machine(findings.latency), hop=findings.hop_s, operators=operators, accuracy=_accuracy(findings)
    )


def _variant(findings: Findings, model: Model) -> VariantProfile:
    sizes = findings.survey.message_bytes[model.operator, model.variant]
    same = set(sizes.values())
    return VariantProfile(
        message={"*": same.pop()} if len(same) == 1 else dict(sizes),
        latency=_by_type(findings, model),
        children=findings.survey.child_shares.get((model.operator, model.variant), ()),
        cuts=_cuts(findings, model),
    )


def _cuts(findings: Findings, model: Model) -> tuple[CutProfile, ...] | None:
    """Profiles of a model's cuts; None if the workflow does not allow this model to be cut."""
    if model not in findings.cut_models.models:
        return None
    return tuple(
        CutProfile(
            layers=cut.layers,
            of=cut.of,
            crossing=cut.crossing_bytes,
            inputs=cut.inputs,
            whole=model.sha256,
            head=_stage(findings, cut, cut.head),
            tail=_stage(findings, cut, cut.tail),
        )
        for cut in findings.cut_models.cuts
        if cut.whole == model
    )


def _stage(findings: Findings, cut: CutModel, model: Model) -> StageProfile:
    file = model.path.relative_to(cut.folder).as_posix()
    return StageProfile(model=file, sha256=model.sha256, latency=_by_type(findings, model))


def _by_type(findings: Findings, model: Model) -> dict[str, dict[int, BatchProfile]]:
    found: dict[str, dict[int, BatchProfile]] = {}
    for worker_type, speed in findings.workload.speeds.items():
        points = [point for point in findings.latency if point.model == model and point.speed == speed]
        memory_bytes = findings.memory_bytes[model]
        found[worker_type] = {point.batch: _figures(findings.latency[point], memory_bytes) for point in points}
    return found


def _figures(latency: Latency, memory_bytes: float) -> BatchProfile:
    return BatchProfile(
        mean=latency.mean_s,
        p50=latency.p50_s,
        p90=latency.p90_s,
        p99=latency.p99_s,
        memory=memory_bytes,
        noise=latency.noise,
    )


def _accuracy(findings: Findings) -> AccuracyProfile | None:
    match findings.accuracy:
        case None:
            return None
        case Measured() as measured:
            choices = {step.name for step in findings.workload.steps if len(step.models) > 1}
            rows = []
            for selection, percent in zip(measured.selections, measured.percent, strict=True):
                chosen = {name: variant for name, variant in selection.items() if name in choices}
                rows.append(MeasuredSelection(selection=chosen, accuracy=percent))
            return AccuracyProfile(end_to_end=tuple(rows))
        case by_operator:
            return AccuracyProfile(independent=by_operator)


def _machine(latency: Mapping[Point, Latency]) -> dict[str, Any]:
    noises = [found.noise for found in latency.values() if found.p50_s >= MIN_NOISE_S] or [0.0]
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count() or 1,
        "system": f"{platform.system()} {platform.machine()}",
        "onnxruntime": onnxruntime.__version__,
        "threads": 1,
        "measured": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "noise": f"block medians differ by {100 * median(noises):.0f} %, at worst by {100 * max(noises):.0f} %",
    }


def _cpu() -> str:
    """The processor's name, as far as the system reports it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def noise_notes(findings: Findings) -> list[str]:
    """A note if repeated measurements of a latency differ by more than `NOISY`; otherwise an empty list."""
    relevant = {point: found for point, found in findings.latency.items() if found.p50_s >= MIN_NOISE_S}
    noisy = {point: found.noise for point, found in relevant.items() if found.noise > NOISY}
    if not noisy:
        return []
    worst = max(noisy, key=lambda point: noisy[point])
    types = [name for name, speed in findings.workload.speeds.items() if speed == worst.speed]
    return [
        f"the machine was busy or unsteady: {len(noisy)} of {len(relevant)} latencies of a millisecond or more vary "
        f"by more than {100 * NOISY:.0f} % between repeated blocks, the worst by {100 * noisy[worst]:.0f} % "
        f"({worst.model.operator} {worst.model.variant} on {' / '.join(types)}, batch {worst.batch}); "
        "for better figures close other programs "
        "and run `jellybean profile --fresh --seconds 2`"
    ]
