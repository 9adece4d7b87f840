"""Unit and property tests of the wheel on every Python version that is installed: `make matrix`.

    python tests/tools/matrix.py [ROW ...] [-- PYTEST_ARGUMENTS]

A row is a Python version of the classifiers in pyproject.toml, with the newest packages. The row
"oldest" is the lowest Python with the lower bound of every package. Each row gets a new virtual
environment, `.venv-matrix/ROW`. A version that is not installed is a skipped row, and a failed one if
the row was named. The exit status is 1 if a row fails.

torch is not installed: the newest Python versions get no wheel of it, and the others several
gigabytes of CUDA. Tests that need torch skip.

Needs Python 3.11 with pip, and nothing else: uv, which installs a row in seconds, goes into
`.venv-matrix/tools`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = ROOT / ".venv-matrix"
OLDEST = "oldest"
EXTRAS = ("all", "ledger-postgres", "examples")
FOLDERS = ("tests/unit", "tests/property")
SELECTION = "not slow and not nightly and not alone"


@dataclass(frozen=True, slots=True)
class Result:
    """What a row gave. `status`: ok, FAILED or skipped; the counts are None if no test ran."""

    row: str
    status: str
    note: str
    packages: str = ""
    passed: int | None = None
    failed: int | None = None
    seconds: float | None = None
    skips: Counter[str] = field(default_factory=Counter)


def main(arguments: Sequence[str]) -> int:
    at = arguments.index("--") if "--" in arguments else len(arguments)
    project = project_file()
    known = [*python_versions(project), OLDEST]
    named, for_pytest = arguments[:at], arguments[at + 1 :]
    unknown = sorted(set(named) - set(known))
    if unknown:
        print(
            f"{', '.join(unknown)}: not a row: choose from {', '.join(known)}\n\n{__doc__}",
            file=sys.stderr,
        )
        return 2
    shutil.rmtree(ENVIRONMENTS, ignore_errors=True)
    _pip("install", "--target", str(ENVIRONMENTS / "tools"), "uv")
    wheel = build_wheel(ENVIRONMENTS / "wheel")
    results = []
    for row in named or known:
        print(f"== {row}", flush=True)
        results.append(run_row(row, project, wheel, for_pytest, must_run=bool(named)))
    print(table(results))
    return 1 if any(result.status == "FAILED" for result in results) else 0


def project_file() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def python_versions(project: dict) -> list[str]:
    """Minor versions that the classifiers name, in their order."""
    prefix = "Programming Language :: Python :: "
    names = [entry.removeprefix(prefix) for entry in project["project"]["classifiers"] if entry.startswith(prefix)]
    return [name for name in names if re.fullmatch(r"3\.\d+", name)]


def lower_bounds(project: dict) -> dict[str, str]:
    """The oldest version that each requirement of an installed extra allows, by package."""
    table = project["project"]
    bounds: dict[str, str] = {}
    pending, visited = list(EXTRAS), set()
    requirements = list(table["dependencies"])
    while pending:
        extra = pending.pop()
        if extra in visited:
            continue
        visited.add(extra)
        for requirement in table["optional-dependencies"][extra]:
            inner = re.fullmatch(r"jellybean-serving\[(.+)\]", requirement)
            if inner:
                pending += inner[1].split(",")
            else:
                requirements.append(requirement)
    for requirement in requirements:
        match = re.match(r"([\w.-]+)(?:\[[^\]]*\])?>=([\w.]+)", requirement)
        if match:
            bounds[match[1]] = match[2]
    return bounds


def find_python(version: str) -> Path | None:
    """An interpreter of `version`, such as "3.12", on PATH or below ~/.pyenv; None if there is none."""
    on_path = shutil.which(f"python{version}")
    of_pyenv = sorted((Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python"))
    for candidate in [*([Path(on_path)] if on_path else []), *of_pyenv]:
        code = "import sys; print('.'.join(map(str, sys.version_info[:2])))"
        done = subprocess.run([candidate, "-c", code], capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.strip() == version:
            return candidate
    return None


def build_wheel(folder: Path) -> Path:
    _pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    (wheel,) = folder.glob("*.whl")
    return wheel


def run_row(row: str, project: dict, wheel: Path, for_pytest: Sequence[str], *, must_run: bool) -> Result:
    version = python_versions(project)[0] if row == OLDEST else row
    interpreter = find_python(version)
    if interpreter is None:
        return Result(row, "FAILED" if must_run else "skipped", f"Python {version} is not installed here")
    environment = ENVIRONMENTS / row
    subprocess.run([interpreter, "-m", "venv", "--without-pip", environment], check=True)
    constraints = ENVIRONMENTS / f"{row}.txt"
    pins = lower_bounds(project) if row == OLDEST else {}
    constraints.write_text("".join(f"{name}=={bound}\n" for name, bound in pins.items()), encoding="utf-8")
    unresolved = install(environment / "bin/python", wheel, constraints, project)
    _add_checkout(environment)
    result = run_tests(row, environment, for_pytest)
    note = f"extras that do not install: {', '.join(unresolved)}" if unresolved else result.note
    return replace(result, note=note, packages=_packages(environment))


def install(python: Path, wheel: Path, constraints: Path, project: dict) -> list[str]:
    """Install the wheel with its extras and the tests' packages; return the extras that do not install."""
    needed = [requirement.replace(" ", "") for requirement in project["dependency-groups"]["test-core"]]
    at_least = ("-c", str(constraints), *needed)
    try:
        _uv(python, *at_least, _with_extras(wheel, EXTRAS))
    except subprocess.CalledProcessError:  # one by one, so that what can be installed is tested
        _uv(python, *at_least, str(wheel))
    else:
        return []
    unresolved = []
    for extra in EXTRAS:
        try:
            _uv(python, *at_least, _with_extras(wheel, [extra]))
        except subprocess.CalledProcessError:
            unresolved.append(extra)
    return unresolved


def _with_extras(wheel: Path, extras: Sequence[str]) -> str:
    return f"jellybean-serving[{','.join(extras)}] @ {wheel.as_uri()}"


def _uv(python: Path, *arguments: str) -> None:
    """Install into the environment of `python`. Nothing is compiled: all comes as wheels."""
    uv = ENVIRONMENTS / "tools/bin/uv"
    options = ("--quiet", "--system-certs", "--only-binary", ":all:", "--python", str(python))
    subprocess.run([uv, "pip", "install", *options, *arguments], check=True)


def _pip(command: str, *arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", command, "-q", *arguments],
        check=True,
    )


def _add_checkout(environment: Path) -> None:
    """Put the checkout last on the path: tests come from it, the packages from the wheel."""
    (packages,) = environment.glob("lib/python3.*/site-packages")
    (packages / "checkout.pth").write_text(f"{ROOT}\n", encoding="utf-8")


def _packages(environment: Path) -> str:
    code = (
        "from google.protobuf import __version__ as p; import grpc; print(f'protobuf {p}, grpcio {grpc.__version__}')"
    )
    return subprocess.run(
        [environment / "bin/python", "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def run_tests(row: str, environment: Path, for_pytest: Sequence[str]) -> Result:
    report = ENVIRONMENTS / f"{row}.xml"
    # The command `pytest`, as `python -m pytest` puts the checkout before the wheel.
    command = [environment / "bin/pytest", "-m", SELECTION, f"--junitxml={report}", "-o", "junit_family=xunit1"]
    # Not inherited: JELLYBEAN_TEST_COMPLETE=1 allows no skip for want of torch.
    not_inherited = {"PYTHONPATH", "PYTHONSAFEPATH", "JELLYBEAN_TEST_COMPLETE"}
    variables = {name: value for name, value in os.environ.items() if name not in not_inherited}
    begin = time.monotonic()
    status = subprocess.run([*command, *(for_pytest or FOLDERS)], cwd=ROOT, env=variables, check=False).returncode
    seconds = time.monotonic() - begin
    if not report.exists():
        return Result(row, "FAILED", f"pytest ended with {status} and without a report", seconds=seconds)
    cases = list(ElementTree.parse(report).iter("testcase"))
    skips = Counter(str(element.get("message")) for case in cases for element in case.findall("skipped"))
    failed = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    passed = len(cases) - failed - skips.total()
    return Result(row, "ok" if status == 0 else "FAILED", "", "", passed, failed, seconds, skips)


def table(results: Sequence[Result]) -> str:
    """The rows as text, and below it each reason for which tests were skipped."""
    lines = [f"{'row':8}{'result':9}{'passed':>7}{'failed':>7}{'skipped':>8}{'s':>6}  note"]
    for result in results:
        counts = ("-",) * 4
        if result.passed is not None:
            counts = (
                result.passed,
                result.failed,
                result.skips.total(),
                round(result.seconds or 0),
            )
        note = "; ".join(part for part in (result.packages, result.note) if part)
        figures = f"{counts[0]:>7}{counts[1]:>7}{counts[2]:>8}{counts[3]:>6}"
        lines.append(f"{result.row:8}{result.status:9}{figures}  {note}")
    for result in results:
        lines += [f"{result.row}: {count} skipped: {reason}" for reason, count in result.skips.most_common()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
