"""Which Python functions an agent runs, what they declare, and that one that misbehaves ends only its own request."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from jellybean_agent import (
    BUILTIN_STEPS_MODULE,
    Executor,
    ModelError,
    PermanentError,
    PythonStep,
    TensorPort,
    find_module_source,
    parse_allow_list,
    step_signature,
)
from jellybean_agent.execution.python_code import Signature
from tests.support.exported_models import sklearn_classifier

HERE = Path(__file__).parent
LOUD = "from pathlib import Path\nPath({!r}).touch()\n"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HERE)


def declared(function: str, **arguments: object) -> Signature:
    return step_signature(find_module_source("own_steps"), f"own_steps:{function}", arguments)


def test_only_what_is_allowed_may_run() -> None:
    assert PythonStep(f"{BUILTIN_STEPS_MODULE}:softmax").allowed == frozenset()
    assert str(PythonStep("own_steps:times", "{}", parse_allow_list(["own_steps:times"]))) == "own_steps:times"
    with pytest.raises(ModelError, match=r"not allowed here, and was not imported: .* --allow-python own_steps:told$"):
        PythonStep("own_steps:told", "{}", parse_allow_list(["own_steps:times"]))
    with pytest.raises(ModelError, match="not allowed"):
        PythonStep("jellybean_agent.execution.session:open_in_process")


@pytest.mark.parametrize(
    "name", ["os.path:join.x", "os", "os:", ":x", "m:_private", "m:a.b", "m:a:b", "../m:a", "m:a\n"]
)
def test_what_names_no_function_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match="names no function of a module"):
        parse_allow_list([name])
    with pytest.raises(ModelError, match="names no function of a module"):
        PythonStep(name, "{}", frozenset([name]))


def test_reading_what_a_function_declares_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "loud_package"
    package.mkdir()
    (package / "__init__.py").write_text(LOUD.format(str(tmp_path / "ran")), encoding="utf-8")
    source = (HERE / "own_steps.py").read_text(encoding="utf-8")
    (package / "inner.py").write_text(
        LOUD.format(str(tmp_path / "ran")) + source.replace("from __future__ import annotations", ""), encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = find_module_source("loud_package.inner")
    assert step_signature(found, "loud_package.inner:times", {"by": 2}).outputs == (
        TensorPort("y", "float32", (-1, 4)),
    )
    with pytest.raises(ModelError, match="not allowed"):
        Executor(PythonStep("loud_package.inner:times"), found.sha256, ("x",))
    assert not (tmp_path / "ran").exists() and "loud_package" not in sys.modules
    step = PythonStep("loud_package.inner:times", '{"by": 2}', parse_allow_list(["loud_package.inner:times"]))
    executor = Executor(step, found.sha256, ("x",))
    assert executor.run((np.ones((2, 4), np.float32),)).outputs["y"].tolist() == [[2.0] * 4] * 2
    assert (tmp_path / "ran").exists()


def test_sizes_and_dtypes_may_be_arguments() -> None:
    assert declared("open_sizes").outputs == (TensorPort("y", "uint8", (-1, 3, 4)),)
    found = declared("open_sizes", n=2, sizes=7, kind="int64")
    assert (found.inputs, found.outputs) == ((TensorPort("x", "float32", (2,)),), (TensorPort("y", "int64", (-1, 7)),))
    with pytest.raises(ModelError, match="argument 'sizes', three, is no size of y"):
        declared("open_sizes", sizes="three")
    with pytest.raises(ModelError, match=r"y has no known dtype \(text\)"):
        declared("open_sizes", kind="text")


@pytest.mark.parametrize(
    ("function", "arguments", "told"),
    [
        ("times", {}, "needs the argument 'by'"),
        ("times", {"by": 1, "bye": 2}, "takes no argument 'bye'; it takes: by"),
        ("plain", {}, "is no step: it needs @step"),
        ("computed", {}, "must be literals"),
        ("no_batch", {}, "needs a shape whose first size is that of the batch"),
        ("text", {}, "no known dtype"),
        ("listed", {}, r"no known dtype \(\['float32'\]\)"),
        ("half", {}, "must name inputs and outputs"),
        ("many", {}, "must take its inputs, then arguments by name"),
        ("scale", {}, "has no function scale; its steps: times, swapped"),
    ],
)
def test_what_is_no_step_says_what_is_missing(function: str, arguments: dict[str, object], told: str) -> None:
    with pytest.raises(ModelError, match=told):
        declared(function, **arguments)


def test_what_the_documentation_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    text = (pytestconfig.rootpath / "docs/documents.md").read_text(encoding="utf-8")
    shown = text[text.index("    # my_steps.py") :].split("\n\nIt takes")[0]
    (tmp_path / "my_steps.py").write_text(textwrap.dedent(shown), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    step = PythonStep("my_steps:crop", '{"size": 24}', parse_allow_list(["my_steps:crop"]))
    executor = Executor(step, find_module_source("my_steps").sha256, ("image",))
    assert executor.run((np.zeros((2, 28, 28), np.float32),)).outputs["image"].shape == (2, 24, 24)
    table = text[text.index("| `jellybean_agent.steps` | does |") :].split("\n\n")[0]
    tree = ast.parse(find_module_source(BUILTIN_STEPS_MODULE).text)
    shipped = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.decorator_list]
    assert len(shipped) == 14
    for one in shipped:
        (row,) = (row for row in table.splitlines() if f"`{one.name}`" in row.split("|")[1])
        assert all(f"`{argument.arg}`" in row for argument in one.args.kwonlyargs), one.name


def test_modules_that_are_not_here_or_not_the_planned_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_such_module", "sys", "own_steps.inner"):
        with pytest.raises(ModelError, match=r"no module .* here|no Python source"):
            find_module_source(name)
    (tmp_path / "broken_steps.py").write_text(
        "from jellybean_agent.steps import step\nraise RuntimeError('not today')\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "bare" / "inner").mkdir(parents=True)
    (tmp_path / "bare" / "inner" / "steps.py").touch()
    with pytest.raises(ModelError, match=r"module bare\.inner\.steps: the folder of bare\.inner needs an __init__"):
        find_module_source("bare.inner.steps")
    step = PythonStep("broken_steps:one", "{}", parse_allow_list(["broken_steps:one"]))
    with pytest.raises(ModelError, match=r"sha256 .* another version is installed here"):
        Executor(step, "0" * 64, ("x",))
    (tmp_path / "broken_steps.py").write_text(
        'from jellybean_agent.steps import step\nraise RuntimeError("not today")\n'
        '@step(inputs={"x": ("bool", (-1,))}, outputs={"y": ("bool", (-1,))})\ndef one(inputs): return inputs\n',
        encoding="utf-8",
    )
    with pytest.raises(ModelError, match="module broken_steps cannot be loaded: RuntimeError: not today"):
        Executor(step, find_module_source("broken_steps").sha256, ("x",))
    assert "broken_steps" not in sys.modules


@pytest.mark.slow
def test_a_step_in_a_host_fails_its_own_request_only(tmp_path: Path) -> None:
    sha256 = sklearn_classifier(tmp_path / "m.onnx", labels=["a", "b", "c"])
    command = [sys.executable, HERE / "python_host.py", "30", tmp_path / "m.onnx", sha256]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    python = "python own_steps:told: "
    assert found["0"] == [[0, 1, 2, 3]]
    assert found["2"] == python + "LookupError: no such picture"
    assert found["3"] == python + "it declares outputs y, and gave z"
    assert found["4"] == python + "output y: expected float32 [any, 4], got float64 [1, 4]"
    assert found["5"] == python + "output y: expected float32 [any, 4], got float32 [1, 2]"
    assert found["6"] == python + "it declares outputs y, and gave list"
    assert found["7"] == python + "SystemExit: it asked the process to end (3)"
    assert found["8"] == "the model crashed: its process ended with status 7; it is loaded again"
    assert found["9"] == "the model crashed: its process took longer than 0.5 s and was ended; it is loaded again"
    assert "read-only" in found["10"]
    assert found["11"] == python + "output y is a list, not an array"
    assert found["12"] == "InvalidInputError: python own_steps:told: this is no picture"
    assert found["1"] == [[1, 1, 2, 3]]  # after all of these
    assert found["by"] == [2, 3, 2]  # one function with two arguments is two operators
    (scores,) = found["classifier"].pop("probabilities")
    assert scores == pytest.approx([1 / 3] * 3)
    assert not found["classifier"]  # its label is text, which is not computed
    assert found["swapped"] == [[[2] * 4], [[1] * 4]]  # outputs that are the inputs do not write over each other
    assert not found["imported"]  # the agent's own process runs none of it


def test_a_step_here_fails_as_in_a_host() -> None:
    step = PythonStep("own_steps:told", "{}", parse_allow_list(["own_steps:told"]))
    executor = Executor(step, find_module_source("own_steps").sha256, ("x",), batch=4)
    with pytest.raises(PermanentError, match=r"LookupError: no such picture$"):
        executor.run((np.float32([[2, 0, 0, 0]]),))


def executed(function: str) -> Executor:
    step = PythonStep(f"own_steps:{function}", "{}", parse_allow_list([f"own_steps:{function}"]))
    return Executor(step, find_module_source("own_steps").sha256, ("x",))


def test_outputs_become_plain_arrays_before_the_next_model_reads_them() -> None:
    output = executed("big_endian").run((np.float32([1, 2]),)).outputs["y"]
    assert (output.dtype.isnative, output.tolist()) == (True, [1.0, 2.0])


def test_masked_outputs_fail_their_request() -> None:
    with pytest.raises(PermanentError, match="output y: 1 of 2 values are masked out"):
        executed("masked").run((np.float32([1, 2]),))
