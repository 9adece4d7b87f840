"""What a simulated schedule comes to, for tables and JSON."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from jellybean_solver.pipeline.memory import memory
from jellybean_solver.pipeline.simulate import Timeline, bubble_fraction


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
        for device, own in enumerate(memory(schedule))
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
        own = memory(schedule)
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
