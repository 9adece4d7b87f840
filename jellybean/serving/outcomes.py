"""What became of a request that was not answered."""

from __future__ import annotations

from dataclasses import dataclass

import grpc


@dataclass(frozen=True, slots=True)
class Outcome:
    """Why there is no answer. `kept`: the id under which there will be one, if the request is kept until then.

    `stuck`: a worker had the request and gave no answer in time.
    """

    status: grpc.StatusCode
    reason: str
    kept: str = ""
    stuck: bool = False
