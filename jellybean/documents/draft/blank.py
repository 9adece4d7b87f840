"""Skeletons of documents: a fleet to start from, and documents whose every key is explained."""

from __future__ import annotations

_FLEET = """\
kind: Infrastructure
tiers: [edge, cloud] # data flows in this direction only
workers:
  # TODO: your machines: how many, their price and memory, and their speed relative to this machine (1: as fast as it)
  edge-box: {tier: edge, count: 2, price: 0.05 USD/h, memory: 2 GiB, speed: 0.5}
  server: {tier: cloud, count: 2, price: 0.50 USD/h, memory: 8 GiB, speed: 1}
links:
  # TODO: the network between the tiers: price of its traffic, bandwidth and latency
  - {from: edge, to: cloud, price: 0.10 USD/GiB, bandwidth: 50 Mbit/s, latency: 20 ms}
"""
DRAFT_INFRASTRUCTURE = f"""\
# Written by `jellybean init`. The fleet is an example: its prices and speeds decide what is cheapest.
# A speed below 1 is emulated here; without a speed a worker type is measured on such a machine (profile --type NAME).
{_FLEET}"""
BLANK_INFRASTRUCTURE = (
    DRAFT_INFRASTRUCTURE
    + """\
limits:
  utilisation: 0.8 # largest share of time that a worker is planned to be busy
# sites: {edge: 100} # so many identical sites of a tier; {edge: sites.csv}: sites that differ, a row for each
# migration: {start: 0.01 USD} # price of starting a model on a worker, for plan --from
"""
)
BLANK_INPUTS_TODO = "held-out inputs, one request a row, saved with numpy.savez, for example data/heldout.npz#input"
BLANK_MODELS_TODO = "ONNX files below this folder; `jellybean validate --fix` writes their sha256"
_WORKFLOW = """\
# A workflow: sources of data, operators with alternative models, and targets. docs/documents.md describes every key.
kind: Workflow
name: {name}
sources:
  # where data originates (a tier of infrastructure.yaml), requests per second, and the size of one request's data
  input:
    tier: edge
    rate: 1/s
    message: 10 KiB
    # TODO: {inputs_todo}
    inputs: TODO
operators:
  detect:
    inputs: [input] # sources and operators; two or more are joined by request
    variants: # alternative models: a plan chooses one
      # TODO: {models_todo}
      small: {{model: TODO}}
      # large: {{model: models/detect-large.onnx}}
      # by_rule: {{python: "my_steps:detect", with: {{threshold: 0.5}}}} # a function of my_steps.py beside this file
  # classify:
  #   inputs: [{{from: detect, ratio: measured}}] # each row of detect's output becomes a request; or a number
  #   variants: {{net: {{model: models/classify.onnx}}}}
  # collect:
  #   inputs: [{{from: classify, gather: true}}] # waits for all rows of a request
  #   variants: {{rules: {{python: "my_steps:collect"}}}}
# labels: data/heldout.npz#labels # accuracy is measured where there are labels
# labels_of: collect # needed if several operators answer
# metric: exact_match # or top1
# slo: {{accuracy: 90, latency_p99: 500 ms, budget: 1 USD/h}}
"""


def blank_workflow(name: str) -> str:
    """A skeleton of workflow.yaml."""
    return _WORKFLOW.format(name=name, inputs_todo=BLANK_INPUTS_TODO, models_todo=BLANK_MODELS_TODO)
