"""The wheel in an environment of its own: what is missing is named, and what is then typed installs it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A virtual environment with the wheel and its base dependencies."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(folder), str(ROOT)], check=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    (wheel,) = folder.glob("*.whl")
    install(folder / "venv", f"pip install {shlex.quote(str(wheel))}")
    yield folder / "venv"


def install(environment: Path, command: str) -> None:
    """Run a `pip install` command as it is printed, in the environment."""
    program, *arguments = shlex.split(command)
    assert program == "pip"
    subprocess.run([environment / "bin" / "python", "-m", "pip", "-q", *arguments], check=True)


def ended(environment: Path, *command: str) -> tuple[int, str, str]:
    """`done`, of a program that must print no traceback."""
    status, out, err = done(environment, *command)
    assert "Traceback" not in err
    return status, out, err


def done(environment: Path, *command: str) -> tuple[int, str, str]:
    """Status, stdout and stderr of a program of the environment, started outside of the checkout."""
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    ran = subprocess.run(
        [environment / "bin" / command[0], *command[1:]],
        capture_output=True,
        text=True,
        check=False,
        cwd=environment.parent,
        env=variables,
    )
    return ran.returncode, ran.stdout, ran.stderr


def refusal(environment: Path, *command: str) -> str:
    """The command that the program says to type, in the only sentence of its error."""
    status, out, err = ended(environment, *command)
    assert (status, out, err.count("\n")) == (1, "", 1), err
    found = re.search(r"is not installed; the extra `[a-z0-9-]+` brings it: (pip install .*)\n", err)
    assert found is not None, err
    return found[1]


def test_each_step_from_the_wheel_alone_says_the_next_one(environment: Path) -> None:
    assert ended(environment, "python", "-c", "import jellybean") == (0, "", "")
    status, _, err = done(environment, "python", "-c", "from jellybean import Client")
    assert status == 1 and re.search(r"\nImportError: jellybean.Client: .* the extra `agent` brings it: pip .*\n$", err)
    status, version, err = ended(environment, "jellybean", "--version")
    assert (status, err) == (0, "") and version.startswith("jellybean ")
    assert "─ Deploy ─" in ended(environment, "jellybean", "--help")[1]
    assert "[plan]" in refusal(environment, "jellybean", "plan")
    assert "[plan,train]" in refusal(environment, "jellybean", "train", "my-digits")
    assert refusal(environment, "jellybean-agent", "--help") == refusal(environment, "jellybean-agent")

    install(environment, refusal(environment, "jellybean-agent", "--help"))
    assert "--join GATEWAY" in ended(environment, "jellybean-agent", "--help")[1]
    status, _, err = ended(environment, "jellybean-agent")
    assert status == 2 and "--plan, --worker, --listen, --peers" in err

    assert ended(environment, "python", "-c", "from jellybean import Client")[0] == 0

    install(environment, refusal(environment, "jellybean", "plan"))
    for command in ("init digits", "validate", "plan --dry-run", "simulate"):
        status, out, err = ended(environment, "jellybean", *command.split(), "my-digits")
        assert status == 0 and (out or err), (command, err)
    assert "[k8s]" in refusal(environment, "jellybean", "deploy", "my-digits")
    assert "[operator]" in refusal(environment, "jellybean", "operator", "run")
    status, _, err = ended(environment, "jellybean", "train", "my-digits")
    assert status == 1 and "[train]" in err
