"""Draws the SVG pictures of docs/images anew: `python -m tests.tools.pictures`.

Most are made by commands that the documentation states; those of benchmarks are drawn from their recorded figures.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import learning
from benchmarks.fleets import PICTURE as FLEETS
from benchmarks.fleets_plot import Point, save_plot
from benchmarks.harness.files import RESULTS, load
from benchmarks.training_runs import parameter_server
from jellybean_solver.pipeline import SCHEDULES

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
VGG16 = ROOT / "examples" / "published" / "pipedream" / "vgg16.txt"
COMMANDS = {  # picture -> options of `jellybean pipeline`
    "shards": f"plan {VGG16} --workers 4,4 --bandwidth 4e10,2e8 --objective alpa --microbatches 8",
    "linear-layer": "tensor --in 1024 --out 4096 --devices 8 --batch 512",
    "hybrid-vgg16": "hybrid vgg16 --workers 4 --batch 64",
    "collectives": "collectives --workers 4 --bytes 4e8 --bandwidth 1.25e9",
} | {f"schedules/{name}": f"draw --schedule {name} --devices 4 --microbatches 8" for name in SCHEDULES}


def main() -> None:
    """Draw every picture."""
    for name, options in COMMANDS.items():
        command = [sys.executable, "-m", "jellybean", "pipeline", *shlex.split(options)]
        subprocess.run([*command, "--plot", str(IMAGES / f"{name}.svg")], check=True, stdout=subprocess.DEVNULL)
        print(f"docs/images/{name}.svg", flush=True)
    save_plot([Point(**{**point, "seconds": tuple(point["seconds"])}) for point in recorded("fleets")], FLEETS)
    curves = recorded("learning")
    learning.draw({name: [tuple(epoch) for epoch in epochs] for name, epochs in curves.items()}, learning.PICTURE)
    runs = {name: parameter_server.TrainedEpochs(**run) for name, run in recorded("parameter_server").items()}
    parameter_server.draw(runs, parameter_server.PICTURE)


def recorded(name: str) -> Any:
    """The figures that a benchmark's picture shows."""
    picture = load(RESULTS / f"{name}.json").result.picture
    if picture is None or picture.data is None:
        raise ValueError(f"benchmarks/results/{name}.json: no figures of its picture; run: python -m benchmarks {name}")
    return picture.data


if __name__ == "__main__":
    main()
