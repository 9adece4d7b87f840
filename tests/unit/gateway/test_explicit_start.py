"""`jellybean gateway` serves the plan that it is given, not one that an earlier run was switched to."""

from __future__ import annotations

import dataclasses
import json
import socket
from pathlib import Path

import pytest

from jellybean.folders import state_folder
from jellybean.serving import JoinedSettings, RunState, open_authority, serve_joined
from jellybean.serving.errors import AlreadyRunningError, LaunchError
from jellybean.serving.gateway.plans.replaced_plan import ReplacedPlan
from jellybean.serving.local.settings import gateway_certificate
from jellybean.serving.run_state import state_path, write_state
from jellybean_agent import Identity, Role
from jellybean_protos.gateway.v1 import gateway_pb2
from tests.support.run_processes import idle_process
from tests.support.tiny_models import make_plan, scale


@pytest.mark.slow
def test_an_explicit_start_forgets_the_plan_that_replaced_another(tmp_path: Path) -> None:
    operators = {"times": (["x"], scale(tmp_path / "models/times.onnx", 2.0))}
    given, other = (
        make_plan(tmp_path, operators, [(1.0, {"times": worker})], sources={"x": "edge"})
        for worker in ("edge-1", "edge-2")
    )
    with socket.create_server(("127.0.0.1", 0)) as occupied:  # the gateway cannot start: it ends at once
        peers, plan = tmp_path / "peers.json", tmp_path / "plan.json"
        peers.write_text(
            json.dumps({"": f"127.0.0.1:{occupied.getsockname()[1]}", "edge-1": "127.0.0.1:1"}), encoding="utf-8"
        )
        plan.write_text(json.dumps(given), encoding="utf-8")
        settings = JoinedSettings(peers, state_folder(tmp_path))
        identity = Identity("tiny", Role.GATEWAY)
        open_authority(settings.authority).equip(gateway_certificate(settings.state), identity, hosts=("127.0.0.1",))
        request = gateway_pb2.ReplaceRequest(plan=json.dumps(other).encode(), peers={"edge-2": "127.0.0.1:2"})
        ReplacedPlan.read(settings.replaced, plan, peers).keep(request)
        with idle_process(tmp_path) as gateway:
            write_state(tmp_path, RunState("hash", "tiny", "folder", "folder/1", "unix:none", processes=(gateway,)))
            with pytest.raises(AlreadyRunningError):
                serve_joined(tmp_path, given, settings)
        assert ReplacedPlan.read(settings.replaced, plan, peers).plan != plan  # the keeper's restarts still need it
        state_path(tmp_path).unlink()
        with pytest.raises(LaunchError, match="gateway"):
            serve_joined(tmp_path, given, dataclasses.replace(settings, start_timeout_s=60.0))
        assert ReplacedPlan.read(settings.replaced, plan, peers).plan == plan
