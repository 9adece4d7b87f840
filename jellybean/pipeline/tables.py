"""Tables and JSON records of simulated schedules and partitions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from jellybean.display import formats
from jellybean.pipeline.sharding.layer_groups import sharding_json, sharding_lines
from jellybean_solver import Termination
from jellybean_solver.pipeline import (
    ITERATION_OBJECTIVES,
    LayerGraph,
    Partition,
    PartitionStage,
    StageDevices,
    Timeline,
    bubble_fraction,
    bubble_over_ideal,
    schedule_memory,
    stage_devices,
)


def schedule_json(timeline: Timeline) -> dict[str, Any]:
    """A simulated schedule as JSON values; docs/cli.md lists the keys."""
    schedule = timeline.schedule
    devices = [
        {
            "device": device,
            "busy_s": timeline.busy_s(device),
            "peak_activations": memory.peak_activations,
            "peak_deferred": memory.peak_deferred,
            "weight_versions": memory.weight_versions,
            "update_delay": memory.update_delay,
            "stages": [
                {
                    "stage": stage.stage,
                    "copy": stage.pipe,
                    "weight_versions": stage.weight_versions,
                    "update_delay": stage.update_delay,
                }
                for stage in memory.stages
            ],
        }
        for device, memory in enumerate(schedule_memory(schedule))
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
        "bubble_over_ideal": bubble_over_ideal(timeline),
        "microbatches_per_s": schedule.microbatches / timeline.makespan_s if timeline.makespan_s else None,
        "devices": devices,
    }


def device_table(timeline: Timeline) -> Table:
    """Table with one row per device: share of busy time, peak activations, weight versions, update delay."""
    record = schedule_json(timeline)
    idle = "idle" if record["flushes"] else "idle in the steady state"
    title = f"{record['schedule']}: {formats.duration(record['makespan_s'])}, {record['bubble_fraction']:.1%} {idle}"
    title += f" ({record['bubble_over_ideal']:.1%} of the ideal time)"
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


def comparison_table(timelines: list[Timeline]) -> Table:
    """Table with one row per schedule, fastest first.

    Peak activations are those of the worst device, in units of the activations of one micro-batch in one device's share
    of the model.
    """
    columns = ("time", "idle", "idle / ideal", "activations", "weight versions", "update delay")
    table = Table("schedule", *columns, title_justify="left")
    for timeline in sorted(timelines, key=lambda one: one.makespan_s):
        schedule = timeline.schedule
        memory = schedule_memory(schedule)
        parts = schedule.stages / schedule.devices
        table.add_row(
            schedule.name,
            formats.duration(timeline.makespan_s),
            f"{bubble_fraction(timeline):.1%}" + ("" if schedule.flushes else " (steady)"),
            f"{bubble_over_ideal(timeline):.1%}",
            f"{max(device.peak_activations for device in memory) / parts:g}",
            str(max(device.weight_versions for device in memory)),
            str(max(device.update_delay for device in memory)),
        )
    return table


def partition_json(graph: LayerGraph, result: Partition, microbatches: int | None = None) -> dict[str, Any]:
    """A partition as JSON values; docs/pipelines.md lists the keys. `microbatches`: of an iteration, the objective."""
    placed = iter(stage_devices(result.stages))
    return {
        "objective": result.objective,
        **({} if microbatches is None else {"microbatches": microbatches}),
        "objective_s": result.objective_s,
        "bound_s": result.bound_s,
        "gap": result.gap,
        "termination": result.termination.value,
        "cuts": result.cuts,
        "stages": [_stage_json(graph, stage, placed) for stage in result.stages],
        **({"alternatives": dict(result.alternatives)} if result.alternatives else {}),
    }


def _stage_json(graph: LayerGraph, stage: PartitionStage, placed: Iterator[StageDevices]) -> dict[str, Any]:
    """A stage as JSON values. `placed`: the devices of the stages that have no inner ones, in order."""
    record: dict[str, Any] = {
        "layers": [graph.layers[index].name for index in stage.layers],
        "replicas": stage.replicas,
        "time_s": stage.time_s,
    }
    if stage.submesh is not None:
        record["submesh"] = list(stage.submesh)
    record |= sharding_json(graph, stage)
    if stage.device is not None:
        record["device"] = stage.device
    if stage.inside:
        record["stages"] = [_stage_json(graph, inner, placed) for inner in stage.inside]
    else:
        record["devices"] = list(next(placed).devices)
    return record


def partition_table(graph: LayerGraph, result: Partition) -> Table:
    """Table with one row per stage; the stages inside a replica follow below it.

    It has a column of devices if these are unequal.
    """
    proof = "the fastest there is" if result.gap == 0 else f"at most {result.gap:.1%} above the fastest"
    proof += ", where the time limit ended the search" if result.termination is Termination.TIME_LIMIT else ""
    devices = any(stage.device is not None for stage in result.stages)
    device = ("device",) if devices else ()
    table = Table("stage", *device, "layers", "first", "last", "replicas", "time", title_justify="left")
    per = "iteration" if result.objective in ITERATION_OBJECTIVES else "micro-batch"
    per = "request" if result.objective == "latency" else per
    table.title = f"{formats.duration(result.objective_s)} per {per}, {proof}"
    _stage_rows(table, graph, result.stages, "", devices)
    return table


def _stage_rows(table: Table, graph: LayerGraph, stages: tuple[PartitionStage, ...], above: str, devices: bool) -> None:
    for number, stage in enumerate(stages):
        names = [graph.layers[index].name for index in stage.layers]
        figures = (str(len(names)), names[0], names[-1], str(stage.replicas), formats.duration(stage.time_s))
        place = (str(stage.device),) if devices else ()
        table.add_row(f"{above}{number}", *place, *figures)
        if len(stage.inside) > 1 or any(inner.replicas > 1 for inner in stage.inside):
            _stage_rows(table, graph, stage.inside, f"{above}{number}.", devices)


def partition_notes(graph: LayerGraph, result: Partition, *, line: bool) -> tuple[str, ...]:
    """Notes below the table on what the objective includes. `line`: the partition is for a line of unequal devices."""
    notes = list(sharding_lines(graph, result))
    if line:
        sent_s = max(0.0, result.objective_s - sum(stage.time_s for stage in result.stages))
        sending = f"{formats.axis_duration(sent_s)} are sending; " if result.objective == "latency" else ""
        notes.append(
            f"{sending}devices count from 0 in the order of --speeds; the input is taken to be at the first stage's "
            "device, for free, and the output to stay at the last one's: `jellybean plan` counts the input's way"
        )
    counted = _training_only(result.objective, line=line)
    if counted and not any(layer.backward_s for layer in graph.layers):
        notes.append(
            f"the profile has no backward pass, and {result.objective} is about training: it counts {counted}; for "
            "serving: --objective balance (nothing sent counts), latency with --speeds, or `jellybean plan` with `cuts`"
        )
    return tuple(notes)


def _training_only(objective: str, *, line: bool) -> str:
    """Text that names the costs that the objective includes but that serving does not have; empty if there are none."""
    both_ways = "activations both ways"
    if line:
        return "" if objective == "latency" else both_ways
    sums = "gradient sums between replicas"
    also = f"{sums} and {both_ways}"
    counted = dict.fromkeys(("slowest-stage", "pipedream-paper", "dapple"), also)
    counted |= {"alpa": "sums of gradients and of parts of layers", "alpa-inter": sums, "branches": both_ways}
    return counted.get(objective, "")
