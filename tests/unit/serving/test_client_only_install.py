"""The client works where only the packages of a client are installed."""

from __future__ import annotations

import subprocess
import sys

# what the extras of planning, agents, training and the cluster install, and a client does not need
NOT_INSTALLED = (
    *("psutil", "torch", "highspy", "onnx", "onnxruntime", "pydantic", "ruamel", "typer", "rich", "sqlalchemy"),
    *("jinja2", "matplotlib", "PIL", "kubernetes", "aiohttp", "prometheus_client"),
)
CODE = f"""
import sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {NOT_INSTALLED!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refused())
"""


def run(code: str) -> str:
    found = subprocess.run([sys.executable, "-c", CODE + code], check=False, capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


def test_the_client_is_imported_without_the_packages_of_servers() -> None:
    run("import jellybean.serving.client\nfrom jellybean.serving.client import Client")


def test_a_client_says_that_no_gateway_is_there() -> None:
    code = """
from jellybean.serving.client import Client
from jellybean.serving.errors import RequestError
try:
    Client("127.0.0.1:1", timeout_s=1.0).status()
except RequestError as error:
    print(error.status)
"""
    assert run(code) == "UNAVAILABLE"
