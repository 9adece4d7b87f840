"""Python steps that are written wrong, one way each, read without being run."""

from __future__ import annotations

from pathlib import Path

import pytest

from jellybean_agent import ModelError, TensorPort, find_module_source, step_folders, step_signature
from jellybean_agent.execution import python_code
from jellybean_agent.execution.python_code import arguments_of

HEAD = "from jellybean_agent.steps import step\n"
RIGHT = '@step(inputs={"x": ("float32", (-1, 4))}, outputs={"y": ("float32", (-1,))})\n'


def declared(inputs: str, parameters: str = "i") -> str:
    """A step with these inputs and parameters."""
    return f'@step(inputs={inputs}, outputs={{"y": ("int8", (-1,))}})\ndef run({parameters}):\n    return i\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def write(folder: Path, text: str, name: str = "one_step_of_a_test") -> str:
    (folder / f"{name}.py").write_text(HEAD + text, encoding="utf-8")
    return name


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"{RIGHT}def run(inputs, more):\n    return inputs\n", "must take its inputs, then arguments by name"),
        (f"{RIGHT}def run(*inputs):\n    return inputs\n", "must take its inputs, then arguments by name"),
        (f"{RIGHT}def run():\n    return 1\n", "must take its inputs, then arguments by name"),
        (
            declared('{"x": "float32"}'),
            "must say name: (dtype, shape)",
        ),
        (
            declared('{5: ("float32", (-1,))}'),
            "must say name",
        ),
        (
            declared('{"": ("float32", (-1,))}'),
            "must say name",
        ),
        (declared('{"x": ("string", (-1,))}'), "x "),
        (
            declared('{"x": ("float8", (-1,))}'),
            "x has no known dtype",
        ),
        (
            declared('{"x": ("float32", ())}'),
            "x needs a shape whose first",
        ),
        (
            declared('{"x": ("float32", 5)}'),
            "x needs a shape whose first",
        ),
        (
            declared('{"x": ("float32", (-1, 0))}'),
            "0 is no size of x",
        ),
        (
            declared('{"x": ("float32", (-2,))}'),
            "-2 is no size of x",
        ),
        (
            declared('{"x": ("float32", (True,))}'),
            "True is no size of x",
        ),
        (
            declared('{"x": ("float32", (-1, "n"))}', 'i, *, n="x"'),
            "argument 'n', x, is no size of x",
        ),
        (
            declared(f'{{"x": ("float32", {(1,) * 40})}}'),
            "x has 40 dimensions",
        ),
        ("def run(:\n", ""),
    ],
)
def test_steps_that_are_declared_wrong(folder: Path, text: str, reason: str) -> None:
    source = find_module_source(write(folder, text))
    with pytest.raises(ModelError) as refused:
        step_signature(source, "one_step_of_a_test:run", {})
    assert reason in str(refused.value)


def test_sizes_and_dtypes_come_from_arguments_and_their_defaults(folder: Path) -> None:
    text = (
        '@step(inputs={"x": ("kind", (-1, "sizes", 3))}, outputs={"y": ("float32", (-1, "n"))})\n'
        "def run(inputs, *, kind='int64', n=7, sizes=(4, 5), other=open):\n    return inputs\n"
    )
    source = find_module_source(write(folder, text))
    found = step_signature(source, "one_step_of_a_test:run", {})
    assert found.inputs == (TensorPort("x", "int64", (-1, 4, 5, 3)),)
    assert found.outputs == (TensorPort("y", "float32", (-1, 7)),)
    given = step_signature(source, "one_step_of_a_test:run", {"kind": "uint8", "n": 2, "sizes": 9})
    assert given.inputs == (TensorPort("x", "uint8", (-1, 9, 3)),)
    assert given.outputs == (TensorPort("y", "float32", (-1, 2)),)


@pytest.mark.parametrize(("text", "reason"), [("{", "no JSON:"), ("[]", "no JSON object"), ("[" * 99_999, "no JSON:")])
def test_arguments_that_are_none(text: str, reason: str) -> None:
    with pytest.raises(ModelError, match=f"arguments that are {reason}"):
        arguments_of(text)
    assert arguments_of('{"a": 1}') == {"a": 1}


def test_folders_that_are_put_on_the_path_have_an_allowed_module(tmp_path: Path) -> None:
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
    write(tmp_path / "with", "", "allowed_step_of_a_test")
    write(tmp_path / "without", "", "other_step_of_a_test")
    folders = [str(tmp_path / name) for name in ("with", "without", "absent")]
    assert step_folders({"allowed_step_of_a_test:run"}, folders) == [folders[0]]
    assert step_folders({"absent_step_of_a_test:run"}, folders) == []
    assert step_folders({"json:loads"}, folders) == [], "it is installed"


def test_sources_that_cannot_be_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="there is no module absent_step_of_a_test here"):
        find_module_source("absent_step_of_a_test")
    with pytest.raises(ModelError, match=r"^module sys has no Python source here$"):
        find_module_source("sys")
    name = write(folder, "x = 1\n", "long_step_of_a_test")
    monkeypatch.setattr(python_code, "_MAX_SOURCE_BYTES", 10)
    with pytest.raises(ModelError, match="has more than 10 bytes"):
        find_module_source(name)
