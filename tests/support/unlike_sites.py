"""A project whose sites differ: shops that see more or fewer customers, with unlike boxes and uplinks."""

from __future__ import annotations

import random
from pathlib import Path

WORKFLOW = """\
kind: Workflow
name: shops
sources:
  camera: {tier: store, rate: 4/s, message: 60 KiB}
operators:
  detect: {inputs: [camera], variants: [small, large]}
  count: {inputs: [detect], variants: [fast, exact], tiers: [store, cloud]}
slo: {accuracy: 80}
"""

INFRASTRUCTURE = """\
kind: Infrastructure
tiers: [store, cloud]
sites: {store: stores.csv}
workers:
  box: {tier: store, count: 2, price: 0.05 USD/h}
  gpu: {tier: cloud, count: 6, price: 0.60 USD/h}
links:
  - {from: store, to: cloud, price: 0.05 USD/GiB, bandwidth: 20 Mbit/s, latency: 20 ms}
"""

PROFILES = """\
kind: Profiles
hop: 1 ms
operators:
  detect:
    small: {message: 4 KiB, latency: {box: {1: 60 ms, 4: 200 ms}, gpu: {1: 6 ms, 4: 16 ms}}}
    large: {message: 4 KiB, latency: {box: {1: 240 ms, 4: 800 ms}, gpu: {1: 20 ms, 4: 60 ms}}}
  count:
    fast: {latency: {box: 10 ms, gpu: 2 ms}}
    exact: {latency: {box: 50 ms, gpu: 5 ms}}
accuracy:
  independent:
    detect: {small: 90, large: 97}
    count: {fast: 94, exact: 99}
"""

STORES = """\
site,region,sources.camera.rate,workers.box.count,workers.box.price,links.cloud.bandwidth,slo.accuracy,note
berlin,north,2/s,1,,,,
paris,west,,4,0.04 USD/h,50 Mbit/s,95,"two floors, one till"
rome,south,120/min,0,,,,
"""


def write_shops(folder: Path, stores: str = STORES) -> Path:
    """Write the project into a folder, which is returned."""
    for name, text in (("workflow", WORKFLOW), ("infrastructure", INFRASTRUCTURE), ("profiles", PROFILES)):
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    (folder / "stores.csv").write_text(stores, encoding="utf-8")
    return folder


def random_stores(number: int, seed: int) -> str:
    """A file of so many sites that differ in all columns."""
    rng = random.Random(seed)
    lines = ["site,sources.camera.rate,workers.box.count,workers.box.price,links.cloud.bandwidth,slo.accuracy"]
    for index in range(number):
        cells = (
            f"{rng.uniform(0.5, 12):.2f}/s",
            rng.choice(["", "0", "1", "3"]),
            rng.choice(["", "0.03 USD/h"]),
            rng.choice(["", "40 Mbit/s"]),
            rng.choice(["", "75", "95"]),
        )
        lines.append(",".join((f"shop-{index}", *cells)))
    return "\n".join(lines) + "\n"
