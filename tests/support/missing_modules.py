"""Runs command lines in a process in which some modules are not installed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_CODE = """
import contextlib, importlib, io, json, sys, traceback
from importlib.machinery import PathFinder

class Installed(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in missing else super().find_spec(name, path, target)

missing, lines = json.loads(sys.argv[1]), json.loads(sys.argv[2])
sys.meta_path[sys.meta_path.index(PathFinder)] = Installed
from jellybean.cli import run
from jellybean_agent.__main__ import main as run_agent

done = []
for program, *arguments in lines:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            if program == "import":
                status = getattr(importlib.import_module(arguments[0]), arguments[1]) and 0
            else:
                status = run(arguments) if program == "jellybean" else run_agent(arguments)
        except SystemExit as ended:
            status = ended.code
        except BaseException:
            status = 1
            traceback.print_exc()
    done.append((status, out.getvalue(), err.getvalue()))
print(json.dumps(done))
"""


class Ended(NamedTuple):
    """How a command line ended."""

    status: int
    out: str
    err: str


def run_without(modules: Iterable[str], *lines: Sequence[str]) -> list[Ended]:
    """Run `jellybean ...` and `jellybean-agent ...` command lines where these top-level modules are not installed.

    `import MODULE NAME` imports a name.
    """
    command = [sys.executable, "-c", _CODE, json.dumps([*modules]), json.dumps(lines)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return [Ended(*each) for each in json.loads(done.stdout)]
