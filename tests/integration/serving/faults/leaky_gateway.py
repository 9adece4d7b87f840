"""A gateway that keeps a little of every request: what the check of memory must find."""

from __future__ import annotations

import sys
from typing import Any

from jellybean.serving import gateway_main
from jellybean.serving.gateway.service import GatewayService

LEAK_BYTES = 512
_kept: list[bytearray] = []


class Leaky(GatewayService):
    """Serves as any other."""

    async def Infer(self, request: Any, context: Any) -> Any:
        _kept.append(bytearray(LEAK_BYTES))
        return await super().Infer(request, context)


if __name__ == "__main__":
    gateway_main.GatewayService = Leaky  # type: ignore[misc]
    sys.exit(gateway_main.main())
