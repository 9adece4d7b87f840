"""Ray Serve over HTTP, float32 bytes in and out, one replica: `python ray_server.py MODEL PORT`, in its own venv."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort
import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

MODEL, PORT = sys.argv[1], int(sys.argv[2])
SHAPE = (1, 3, 224, 224) if Path(MODEL).name == "large.onnx" else (1, 2560)


@serve.deployment(num_replicas=1, max_ongoing_requests=64)
class Onnx:
    def __init__(self):
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = ort.InferenceSession(MODEL, options, providers=["CPUExecutionProvider"])

    async def __call__(self, request: Request) -> Response:
        array = np.frombuffer(await request.body(), np.float32).reshape(SHAPE)
        return Response(self.session.run(None, {"x": array})[0].tobytes())


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=128 * 2**20)
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    serve.run(Onnx.bind())
    while True:
        time.sleep(1.0)
