"""The workflows of two_scales.py with a cascade each: small results are multiplied by the better factor instead."""

from __future__ import annotations

from pathlib import Path

from tests.support.two_scales import make_two_scales

CASCADE = '      both: {cascade: {first: two, then: five, when: "y < 8"}}\n'
PROFILES = """\
cascades:
  first:
    both:
      operators:
        first.first: {two: {message: 16 B, latency: {box: 16 ms}}}
        first.unsure: {both: {message: 16 B, latency: {box: 1 ms}, children: [75 %, 25 %]}}
        first.then: {five: {message: 16 B, latency: {box: 60 ms}}}
        first: {both: {message: 16 B, latency: {box: 1 ms}}}
      accuracy: {independent: {first: {both: 93}, last: {last: 100}}}
"""


def make_two_cascades(folder: Path) -> Path:
    """Write the project's files."""
    make_two_scales(folder)
    for name in ("shop", "yard"):
        workflow, profiles = (folder / "workflows" / name / f"{file}.yaml" for file in ("workflow", "profiles"))
        text = workflow.read_text(encoding="utf-8").replace("  last:\n", f"{CASCADE}  last:\n", 1)
        workflow.write_text(text, encoding="utf-8")
        text = profiles.read_text(encoding="utf-8").replace("box: 24 ms", "box: 60 ms")
        profiles.write_text(text + PROFILES, encoding="utf-8")
    return folder
