"""This machine as a message, for profiles that are measured on it."""

from __future__ import annotations

from jellybean_agent.system.device import Device
from jellybean_agent.system.driver import driver_of
from jellybean_agent.system.machine import installed_version, this_machine
from jellybean_protos.agent.v1 import agent_pb2


def machine_message(device: Device) -> agent_pb2.Machine:
    """This machine, with the driver of a device; what is not known is empty."""
    machine = this_machine()
    return agent_pb2.Machine(
        cpu=machine.cpu or "",
        cores=machine.cores or 0,
        system=machine.system or "",
        onnxruntime=machine.onnxruntime or "",
        threads=machine.threads or 0,
        jellybean=installed_version() or "",
        driver=driver_of(device) or "",
    )
