"""mosec, float32 bytes in and out, one worker: `python mosec_server.py MODEL PORT`, in its own venv."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort
from mosec import Server, Worker

if "MODEL" not in os.environ:  # worker processes import this module again, with mosec's arguments
    os.environ["MODEL"], port = sys.argv[1:]
    sys.argv[1:] = ["--address", "127.0.0.1", "--port", port, "--log-level", "warning", "--timeout", "10000"]
MODEL = os.environ["MODEL"]
SHAPE = (1, 3, 224, 224) if Path(MODEL).name == "large.onnx" else (1, 2560)


class Model(Worker):
    def __init__(self):
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = ort.InferenceSession(MODEL, options, providers=["CPUExecutionProvider"])

    def deserialize(self, data):
        return np.frombuffer(data, np.float32).reshape(SHAPE)

    def forward(self, data):
        return self.session.run(None, {"x": data})[0]

    def serialize(self, data):
        return data.tobytes()


if __name__ == "__main__":
    server = Server()
    server.append_worker(Model, num=1)
    server.run()
