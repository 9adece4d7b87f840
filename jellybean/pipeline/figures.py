"""What a simulated schedule or a partition comes to, for tables and JSON."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from jellybean_solver.pipeline import (
    ITERATION_OBJECTIVES,
    LayerGraph,
    Partition,
    PartitionStage,
    Timeline,
    bubble_fraction,
    schedule_memory,
)


def to_json(timeline: Timeline) -> dict[str, Any]:
    """The record of one schedule; docs/cli.md lists its keys."""
    schedule = timeline.schedule
    devices = [
        {
            "device": device,
            "busy_s": timeline.busy_s(device),
            "peak_activations": own.peak_activations,
            "peak_deferred": own.peak_deferred,
            "weight_versions": own.weight_versions,
            "update_delay": own.update_delay,
            "stages": [
                {
                    "stage": stage.stage,
                    "copy": stage.pipe,
                    "weight_versions": stage.weight_versions,
                    "update_delay": stage.update_delay,
                }
                for stage in own.stages
            ],
        }
        for device, own in enumerate(schedule_memory(schedule))
    ]
    return {
        "schedule": schedule.name,
        "stages": schedule.stages,
        "chunks": schedule.chunks,
        "microbatches": schedule.microbatches,
        "flushes": schedule.flushes,
        "weights": schedule.weights.value,
        "makespan_s": timeline.makespan_s,
        "bubble_fraction": bubble_fraction(timeline),
        "microbatches_per_s": schedule.microbatches / timeline.makespan_s if timeline.makespan_s else None,
        "devices": devices,
    }


def device_table(timeline: Timeline) -> Table:
    """One row per device."""
    record = to_json(timeline)
    idle = "idle" if record["flushes"] else "idle in the steady state"
    title = f"{record['schedule']}: {record['makespan_s']:.6g} s, {record['bubble_fraction']:.1%} {idle}"
    table = Table("device", "stages", "busy", "activations", "weight versions", "update delay", title=title)
    table.title_justify = "left"
    for device in record["devices"]:
        share = device["busy_s"] / record["makespan_s"] if record["makespan_s"] else 0.0
        waiting = f" + {device['peak_deferred']} for weight gradients" if device["peak_deferred"] else ""
        stages = ", ".join(str(stage["stage"]) for stage in device["stages"])
        table.add_row(
            str(device["device"]),
            stages,
            f"{share:.0%}",
            f"{device['peak_activations']}{waiting}",
            str(device["weight_versions"]),
            str(device["update_delay"]),
        )
    return table


def comparison(timelines: list[Timeline]) -> Table:
    """Schedules side by side, the fastest first. Activations: of all that a device holds, at the worst device."""
    table = Table("schedule", "time", "idle", "activations", "weight versions", "update delay", title_justify="left")
    for timeline in sorted(timelines, key=lambda one: one.makespan_s):
        schedule = timeline.schedule
        own = schedule_memory(schedule)
        parts = schedule.stages / schedule.devices
        table.add_row(
            schedule.name,
            f"{timeline.makespan_s:.6g} s",
            f"{bubble_fraction(timeline):.1%}" + ("" if schedule.flushes else " (steady)"),
            f"{max(device.peak_activations for device in own) / parts:g}",
            str(max(device.weight_versions for device in own)),
            str(max(device.update_delay for device in own)),
        )
    return table


def partition_json(graph: LayerGraph, found: Partition) -> dict[str, Any]:
    """The record of one partition; docs/pipelines.md lists its keys."""
    return {
        "objective": found.objective,
        "objective_s": found.objective_s,
        "bound_s": found.bound_s,
        "gap": found.gap,
        "cuts": found.cuts,
        "stages": [_stage_json(graph, stage) for stage in found.stages],
    }


def _stage_json(graph: LayerGraph, stage: PartitionStage) -> dict[str, Any]:
    record: dict[str, Any] = {
        "layers": [graph.layers[index].name for index in stage.layers],
        "replicas": stage.replicas,
        "time_s": stage.time_s,
    }
    if stage.submesh is not None:
        record["submesh"] = list(stage.submesh)
    if stage.device is not None:
        record["device"] = stage.device
    if stage.inside:
        record["stages"] = [_stage_json(graph, inner) for inner in stage.inside]
    return record


def partition_table(graph: LayerGraph, found: Partition) -> Table:
    """One row per stage, those inside a group below it; on which device, where devices differ."""
    proof = "the fastest there is" if found.gap == 0 else f"at most {found.gap:.1%} above the fastest"
    devices = any(stage.device is not None for stage in found.stages)
    device = ("device",) if devices else ()
    table = Table("stage", *device, "layers", "first", "last", "replicas", "time", title_justify="left")
    per = "iteration" if found.objective in ITERATION_OBJECTIVES else "micro-batch"
    per = "request" if found.objective == "latency" else per
    table.title = f"{found.objective_s:.6g} s per {per}, {proof}"
    _stage_rows(table, graph, found.stages, "", devices)
    return table


def _stage_rows(table: Table, graph: LayerGraph, stages: tuple[PartitionStage, ...], above: str, devices: bool) -> None:
    for number, stage in enumerate(stages):
        names = [graph.layers[index].name for index in stage.layers]
        figures = (str(len(names)), names[0], names[-1], str(stage.replicas), f"{stage.time_s:.6g} s")
        place = (str(stage.device),) if devices else ()
        table.add_row(f"{above}{number}", *place, *figures)
        if len(stage.inside) > 1 or any(inner.replicas > 1 for inner in stage.inside):
            _stage_rows(table, graph, stage.inside, f"{above}{number}.", devices)


def partition_notes(graph: LayerGraph, found: Partition, *, line: bool) -> tuple[str, ...]:
    """What the table cannot show: what the figures count. `line`: of unlike devices."""
    notes = []
    if line:
        sent_s = max(0.0, found.objective_s - sum(stage.time_s for stage in found.stages))
        sending = f"{sent_s:.6g} s are sending; " if found.objective == "latency" else ""
        notes.append(
            f"{sending}devices count from 0 in the order of --speeds; the input is taken to be at the first stage's "
            "device, for free, and the output to stay at the last one's: `jellybean plan` counts the input's way"
        )
    counted = _training_only(found.objective, line=line)
    if counted and not any(layer.backward_s for layer in graph.layers):
        notes.append(
            f"the profile has no backward pass, and {found.objective} is about training: it counts {counted}; for "
            "serving: --objective balance (nothing sent counts), latency with --speeds, or `jellybean plan` with `cuts`"
        )
    return tuple(notes)


def _training_only(objective: str, *, line: bool) -> str:
    """What an objective counts that no request has; empty where nothing."""
    both_ways = "activations both ways"
    if line:
        return "" if objective == "latency" else both_ways
    sums = "gradient sums between replicas"
    also = f"{sums} and {both_ways}"
    counted = {"slowest-stage": also, "pipedream-paper": also, "dapple": also, "alpa": sums, "branches": both_ways}
    return counted.get(objective, "")
