"""Throughput of a three-stage pipeline on three workers, over that of its slowest stage alone; also with TLS.

Waiting stages are emulated devices of 2 ms per run. Computing stages are matrix products; the slowest takes twice as
long as the others together. A closed loop of clients keeps all of them busy; messages are small.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from benchmarks.harness.registry import benchmark
from benchmarks.harness.result import Result, Table, Topic
from benchmarks.overhead.load import ClientTls, Connect, Grpc, measure
from benchmarks.overhead.processes import certificates, client_tls, free_port, process, started
from jellybean.bench.chain import SOURCE, chain
from jellybean.serving.local import launcher
from jellybean.serving.local.settings import LaunchSettings
from jellybean_agent import Identity, Role
from jellybean_protos.inference.v2 import inference_pb2 as pb
from jellybean_solver import Plan, to_document

ROWS, SIZE = 16, 256  # shape of a message
WAITS_S = 0.002
SLOWEST, OTHERS = 480, 120  # matrix products per computing stage
CLIENTS, ROUNDS, SLICE_S, WARMUP_S = 24, 10, 2.0, 0.5


@benchmark
def stages(smoke: bool) -> Result:
    """Three stages and the slowest of them alone, both running, measured in turn."""
    rows = []
    rounds = 1 if smoke else ROUNDS
    for (label, counts, wait_s), (transport, served) in itertools.product(
        (
            (f"wait 2 ms each (emulated devices; at most {1 / WAITS_S:.0f}/s)", (1, 1, 1), WAITS_S),
            ("compute; the slowest takes twice the others' sum", (OTHERS, SLOWEST, OTHERS), None),
        ),
        (("Unix sockets", _up), ("mutual TLS", _up_with_tls)),
    ):
        whole: list[float] = []
        alone: list[float] = []
        with served((max(counts),), wait_s) as one_stage, served(counts, wait_s) as three_stages:
            for _ in range(rounds):
                for connect, rates in ((one_stage, alone), (three_stages, whole)):
                    rates.append(measure(connect, CLIENTS, 0.5 if smoke else SLICE_S, WARMUP_S).rate_per_s)
        ratio = statistics.median(one / other for one, other in zip(whole, alone, strict=True))
        figures = (statistics.median(alone), statistics.median(whole))
        rows.append([label, transport, *(f"{figure:.0f}/s" for figure in figures), f"{100 * ratio:.1f} %"])
    return Result(
        title="A pipeline of three agents",
        topic=Topic.SERVING,
        method=f"Both are up and are measured in turn by {CLIENTS} closed-loop clients, gateway included: medians of "
        f"{rounds} alternating slices of {SLICE_S:g} s. The share is the median of each pair's ratio. Gateway, "
        "agents, their "
        "model processes and the clients share the cores.",
        reference="the pipeline's slowest stage, served alone.",
        tables=(
            Table.of(["stages", "messages by", "slowest stage alone", "three stages", "share of the slowest"], rows),
        ),
    )


@contextlib.contextmanager
def _up(counts: tuple[int, ...], wait_s: float | None) -> Iterator[Connect]:
    """A running pipeline of stages with so many products each, or with emulated devices."""
    with chain_project(counts, wait_s) as (folder, plan):
        running = launcher.up(folder, to_document(plan), LaunchSettings(port=0, insecure=True))
        try:
            yield chain_client(int(running.state.clients_address.rpartition(":")[2]))
        finally:
            running.down()


@contextlib.contextmanager
def _up_with_tls(counts: tuple[int, ...], wait_s: float | None) -> Iterator[Connect]:
    """The same, with gateway and agents at TCP addresses and mutual TLS between all, clients included."""
    with chain_project(counts, wait_s) as (folder, plan), contextlib.ExitStack() as stack:
        (folder / "plan.json").write_text(json.dumps(to_document(plan)), encoding="utf-8")
        gateway = Identity(plan.name, Role.GATEWAY)
        agents = [Identity(plan.name, Role.AGENT, worker.name) for worker in plan.workers]
        addresses = {server.name: f"127.0.0.1:{free_port()}" for server in (gateway, *agents)}
        (folder / "peers.json").write_text(json.dumps(addresses), encoding="utf-8")
        folders, client = stack.enter_context(certificates([gateway, *agents]))
        common = [f"--plan={folder}/plan.json", f"--peers={folder}/peers.json", f"--links={folder}/links"]
        for agent in agents:
            own = [f"--worker={agent.name}", f"--listen={addresses[agent.name]}", f"--root={folder}"]
            command = [sys.executable, "-m", "jellybean_agent", *common, *own, f"--tls={folders[agent]}"]
            stack.enter_context(process(command))
        connect = chain_client(int(addresses[""].rpartition(":")[2]), client_tls(client, gateway))
        command = [sys.executable, "-m", "jellybean.serving.gateway_main", *common, f"--tls={folders[gateway]}"]
        stack.enter_context(started(command, connect))
        yield connect


@contextlib.contextmanager
def chain_project(counts: tuple[int, ...], wait_s: float | None, rows: int = ROWS) -> Iterator[tuple[Path, Plan]]:
    """A folder with the models of a chain, for messages of so many rows, and its plan."""
    with tempfile.TemporaryDirectory(prefix="jellybean-stages-") as name:
        models = [_products(Path(name) / f"{count}-{at}.onnx", count, rows) for at, count in enumerate(counts)]
        yield Path(name), chain("row", models, rate_per_s=1.0 / (wait_s or 0.02), device_s=wait_s)


def chain_client(port: int, tls: ClientTls | None = None, rows: int = ROWS, request_id: str = "") -> Connect:
    request = pb.ModelInferRequest(model_name="row", id=request_id)
    request.inputs.add(name=SOURCE, datatype="FP32", shape=[1, rows, SIZE])
    request.raw_input_contents.append(np.ones((1, rows, SIZE), np.float32).tobytes())
    message = request.SerializeToString()
    return lambda: Grpc(("127.0.0.1", port), "/inference.GRPCInferenceService/ModelInfer", message, b"", tls)


def _products(path: Path, count: int, rows: int) -> Path:
    """A model that is a chain of matrix products; its output has the shape of its input."""
    weight = numpy_helper.from_array(np.eye(SIZE, dtype=np.float32), "w")
    names = ["x", *(f"h{index}" for index in range(count - 1)), "y"]
    nodes = [helper.make_node("MatMul", [given, "w"], [found]) for given, found in itertools.pairwise(names)]
    ports = [helper.make_tensor_value_info(port, TensorProto.FLOAT, ["n", rows, SIZE]) for port in ("x", "y")]
    graph = helper.make_graph(nodes, "products", ports[:1], ports[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path
