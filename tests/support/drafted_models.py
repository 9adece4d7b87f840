"""A model through the product, from `init --from` to its answers, beside onnxruntime by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from jellybean.documents import build_problem, load_project, read_file
from jellybean.serving.http.inference_json import write_response
from jellybean.tensor_files import write_archive
from jellybean_agent import (
    DTYPE_BY_DATATYPE,
    WIRE_DTYPES,
    decode_tensor,
    encode_tensor,
    initial_state,
    plan_view,
)
from jellybean_agent.brain.messages import WorkItem
from jellybean_agent.inference.tensors import outputs_of
from jellybean_agent.process.model_loading import ModelSettings, load_executors
from jellybean_agent.worker.run_outputs import run_items
from jellybean_protos.inference.v2 import inference_pb2 as pb
from jellybean_solver import solve, to_document
from tests.support.command_line import jellybean
from tests.support.made_model import Array, MadeModel

_NUMBERS = {"float": "float32", "double": "float64"}  # types as onnxruntime calls them -> as numpy does


@dataclass(frozen=True)
class Refused:
    """What `init` or `validate` says about a model that is not served."""

    text: str


@dataclass(frozen=True)
class DraftedModel:
    """A project of one model. `sources`: model input -> its source; `answer`: the output that is sent."""

    made: MadeModel
    folder: Path
    operator: str
    sources: Mapping[str, str]
    answer: str


def drafted_model(made: MadeModel, folder: Path) -> DraftedModel | Refused:
    """The project that `init` drafts and `validate` finds valid, with profiles by hand; or why there is none."""
    data = made.path.with_suffix(".npz")
    if made.has_data:
        write_archive(data, made.requests[0])
    given = ["--data", str(data)] if made.has_data else []
    done = jellybean("init", str(folder), "--from", str(made.path), *given, status=(0, 2))
    if done.returncode:
        return Refused(done.stderr)
    done = jellybean("validate", str(folder), status=(0, 2))
    if done.returncode:
        return Refused(done.stderr)
    document = read_file(folder / "workflow.yaml").data
    ((operator, spec),) = document["operators"].items()
    ((name, variant),) = spec["variants"].items()
    times = {"edge-box": "1 ms", "server": "1 ms"}
    profiles = {
        "kind": "Profiles",
        "hop": "1 ms",
        "operators": {operator: {name: {"message": "16 B", "latency": times}}},
    }
    (folder / "profiles.yaml").write_text(json.dumps(profiles), encoding="utf-8")
    session = _session(made.path)
    fed_here = {*variant.get("constants", {}), *spec.get("state", {}).get("tensors", {})}
    ports = [port.name for port in session.get_inputs() if port.name not in fed_here]
    sources = dict(zip(ports, spec["inputs"], strict=True))
    return DraftedModel(made, folder, operator, sources, variant.get("output", session.get_outputs()[0].name))


def _session(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def answers_by_hand(drafted: DraftedModel) -> Iterator[Array]:
    """The answer to each request, by onnxruntime alone: states begin with zeros, and go on with what was made."""
    made, session = drafted.made, _session(drafted.made.path)
    types = {port.name: port.type.removeprefix("tensor(").removesuffix(")") for port in session.get_inputs()}
    constants = {
        name: np.array(value, _NUMBERS.get(types[name], types[name])) for name, value in made.constants.items()
    }
    sizes = {port.name: [size if isinstance(size, int) else 1 for size in port.shape] for port in session.get_inputs()}
    states = {name: np.zeros(sizes[name], np.float32) for name in made.states}
    names = [drafted.answer, *made.states.values()]
    for request in made.requests:
        fed = constants | states | dict(request)
        answer, *after = session.run(names, {name: fed[name] for name in types})
        states = dict(zip(made.states, after, strict=True))
        yield answer


def answers_of_an_agent(drafted: DraftedModel) -> Iterator[Array]:
    """The answer to each request, as an agent computes it from tensors as the wire has them."""
    plan = solve(build_problem(load_project(drafted.folder))).plan
    assert plan is not None
    view = plan_view(to_document(plan))
    (worker,) = view.serving
    executor = load_executors(view, worker, ModelSettings(drafted.folder))[drafted.operator]
    operator, count = view.operators[drafted.operator], len(drafted.sources)
    state = initial_state(executor.inputs[count:])
    for request in drafted.made.requests:
        by_source = {source: request[name] for name, source in drafted.sources.items()}
        sent = (decode_tensor(encode_tensor(by_source[upstream])) for upstream, _ in operator.wiring.inputs)
        done = run_items(operator, executor, [WorkItem(0, "request", 0, (), (*sent, *state))])
        ((answer,),) = (found.by_downstream.values() for found in done.outputs)
        state = tuple(done.states[0][operator.state[port.name]] for port in executor.inputs[count:])
        yield decode_tensor(encode_tensor(answer))


def json_answer(answer: Array) -> Array | None:
    """An answer as a client reads it from JSON; None for values that JSON does not have."""
    if answer.dtype.kind == "f" and not np.isfinite(answer).all():
        return None
    response = outputs_of(pb.ModelInferRequest(model_name="m"), "1", ["y"], {"y": encode_tensor(answer)})
    body, _ = write_response(response, binary=False)
    return tensor_of_json(json.loads(body)["outputs"][0])


def tensor_of_json(output: Mapping[str, Any]) -> Array:
    """The tensor of an output in JSON."""
    dtype = WIRE_DTYPES[DTYPE_BY_DATATYPE[output["datatype"]]]
    return np.array(output["data"], dtype).reshape(output["shape"])


def difference(made: MadeModel, wanted: Array, answer: Array) -> str:
    """How an answer differs from onnxruntime's, bit by bit; empty if it does not."""
    kinds = [(array.dtype, array.shape) for array in (wanted, answer)]
    if kinds[0] != kinds[1] or (wanted.tobytes() != answer.tobytes() and not made.is_random):
        return f"{made.what}: answered {answer!r:.200}, onnxruntime gives {wanted!r:.200}"
    return ""


def faults_of(made: MadeModel, folder: Path) -> Sequence[str]:
    """How a model is served or refused otherwise than it should be; empty if it is not."""
    drafted = drafted_model(made, folder)
    if isinstance(drafted, Refused):
        text = " ".join(drafted.text.split())
        if not made.refusal:
            return [f"{made.what}: refused, but it can be served: {text:.400}"]
        return [] if made.refusal in text else [f"{made.what}: refused for another reason than {made.refusal}: {text}"]
    if made.refusal:
        return [f"{made.what}: valid, but {made.refusal}"]
    found: list[str] = []
    for wanted, answer in zip(answers_by_hand(drafted), answers_of_an_agent(drafted), strict=True):
        read = json_answer(answer)
        found += [difference(made, wanted, answer), "" if read is None else difference(made, answer, read)]
    return [fault for fault in found if fault]
