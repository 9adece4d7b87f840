"""The simplest gRPC server: grpc's synchronous server, numpy, onnxruntime. `python plain_grpc.py MODEL PORT [FOLDER]`.

With a folder of certificates (tls.key, tls.crt, ca.crt), mutual TLS.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnxruntime as ort

from jellybean_protos.inference.v2 import inference_pb2 as pb


class Servicer:
    """ModelInfer only."""

    def __init__(self, model: str) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def infer(self, request: Any, _context: Any) -> Any:
        given = request.inputs[0]
        array = np.frombuffer(request.raw_input_contents[0], np.float32).reshape(tuple(given.shape))
        output = self._session.run(None, {given.name: array})[0]
        response = pb.ModelInferResponse(model_name=request.model_name, id=request.id)
        response.outputs.add(name="y", datatype="FP32", shape=output.shape)
        response.raw_output_contents.append(output.tobytes())
        return response


def main() -> None:
    """Serve until killed."""
    model, port, *tls = sys.argv[1:]
    handler = grpc.unary_unary_rpc_method_handler(
        Servicer(model).infer, pb.ModelInferRequest.FromString, pb.ModelInferResponse.SerializeToString
    )
    server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.max_receive_message_length", 64 * 2**20)])
    service = grpc.method_handlers_generic_handler("inference.GRPCInferenceService", {"ModelInfer": handler})
    server.add_generic_rpc_handlers((service,))
    if tls:
        key, chain, authority = ((Path(tls[0]) / name).read_bytes() for name in ("tls.key", "tls.crt", "ca.crt"))
        credentials = grpc.ssl_server_credentials([(key, chain)], authority, require_client_auth=True)
        server.add_secure_port(f"127.0.0.1:{port}", credentials)
    else:
        server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
