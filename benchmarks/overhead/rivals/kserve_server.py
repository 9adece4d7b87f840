"""KServe's Python server, Open Inference Protocol over gRPC: `python kserve_server.py MODEL PORT`, in its own venv."""

from __future__ import annotations

import sys

import onnxruntime as ort
from kserve import InferOutput, InferResponse, Model, ModelServer

MODEL, PORT = sys.argv[1], int(sys.argv[2])


class Onnx(Model):
    def load(self):
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = ort.InferenceSession(MODEL, options, providers=["CPUExecutionProvider"])
        self.ready = True
        return self.ready

    async def predict(self, payload, headers=None, response_headers=None):
        output = self.session.run(None, {"x": payload.inputs[0].as_numpy()})[0]
        answer = InferOutput(name="y", shape=list(output.shape), datatype="FP32")
        answer.set_data_from_numpy(output, binary_data=True)
        return InferResponse(response_id=payload.id or "", model_name=self.name, infer_outputs=[answer])


if __name__ == "__main__":
    model = Onnx("model")
    model.load()
    ModelServer(http_port=PORT + 1, grpc_port=PORT, workers=1, access_log_format="").start([model])
