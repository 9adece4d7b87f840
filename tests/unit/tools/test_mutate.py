"""`tests/tools/mutate`: which faults it puts into a source file, and which it draws."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.tools.mutate.draw import EQUIVALENT, Drawn, Equivalents, draw
from tests.tools.mutate.faults import Fault, candidates_of, is_fault
from tests.tools.mutate.rooms import room_files
from tests.tools.mutate.tree import copied

NO_EQUIVALENTS = Equivalents({})


def lines_of(source: str) -> set[tuple[str, str]]:
    """(the mutation, the changed lines) of each fault of a source file."""
    return {
        (fault.mutation, changed_lines(source, fault)) for fault in candidates_of(source) if is_fault(source, fault)
    }


def changed_lines(source: str, fault: Fault) -> str:
    before = source.splitlines()
    return " / ".join(line.strip() for line in fault.applied(source).splitlines() if line not in before)


@pytest.mark.parametrize(
    ("statement", "mutation", "expected"),
    [
        ("if kept >= 0: lose(kept)", "`>` for `>=` in `kept >= 0`", "if ((kept) > (0)): lose(kept)"),
        ("if kept >= 0: lose(kept)", "negate `kept >= 0`", "if not (kept >= 0): lose(kept)"),
        ("if a and b: lose(a)", "leave out `b`", "if (a): lose(a)"),
        ("lose(a, b)", "swap `a` and `b`", "lose(b, a)"),
        ("lose(a)", "drop the call `lose(...)`", "pass"),
        ("lose(a, of=b)", "leave out `of=`", "lose(a)"),
        ("self.a = b", "drop the assignment to `self.a`", "pass"),
        ("count += 2", "update `count` the other way", "count -= 2"),
        ("await task", "drop the `await` of `task(...)`", ""),
        ("await task()", "drop the `await` of `task(...)`", "task()"),
        ("return a", "return None", "return None"),
        ("for a in b: lose(a)", "loop over nothing", "for a in (): lose(a)"),
        ("x = a[:count]", "a slice by one more than `count`", "x = a[:(count) + 1]"),
        ("raise ValueError('no number')", "drop the `raise`", "pass"),
    ],
)
def test_a_statement_has_the_fault(statement: str, mutation: str, expected: str) -> None:
    faults = lines_of(f"async def f(self, a, b, count, kept, task, lose):\n    {statement}\n")
    assert ((mutation, expected) in faults) == bool(expected)


def test_clean_up_and_handlers_have_faults() -> None:
    source = (
        "def f():\n    try:\n        a()\n    except (OSError, ValueError):\n        b()\n    finally:\n        c()\n"
    )
    assert lines_of(source) >= {
        ("drop the clean-up of `finally`", "pass"),
        ("do nothing in the handler", "pass"),
        ("raise again in the handler", "raise"),
        ("do not handle `OSError`", "except (ValueError,):"),
    }


@pytest.mark.parametrize(
    "source",
    [
        '"""Of a module."""\n',
        'def f():\n    """Of a function."""\n    LOG.info("too %s", "late")\n',
        "def f(a: Literal['b'] = None, *c: int) -> tuple[int, 5]: ...\n",
        "__all__ = ['a', 'b']\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    x = 5\n",
        "x: Literal['a']\n",
        "def f():\n    print\n",
        "T = TypeVar('T')\n",
        "if __name__ == '__main__':\n    main(5)\n",
    ],
)
def test_what_no_test_could_see_has_no_fault(source: str) -> None:
    assert not lines_of(source)


def test_text_that_people_read_has_no_fault() -> None:
    faults = lines_of("def f(a):\n    raise ValueError('late', f'by {a + 1} s')\n")
    swapped = "swap `'late'` and `f'by {a + 1} s'`"
    assert {mutation for mutation, _ in faults} == {"`f` returns at once", "drop the `raise`", swapped}


def test_a_tuned_constant_is_not_off_by_one() -> None:
    assert lines_of("LIMIT = 64\n") == {("640 for 64", "LIMIT = 640")}


def test_characters_of_several_bytes_do_not_move_a_fault() -> None:
    assert ("`>` for `>=` in `a >= b`", "x = 'é→ü', ((a) > (b))") in lines_of("x = 'é→ü', a >= b\n")


SOURCE = (
    "def f(a, b):\n    if a < b:\n        g(a)\n    return a + b\n\n\ndef h(c):\n    c.stop()\n    return c.count - 1\n"
)


def project(root: Path, source: str = SOURCE) -> Path:
    (root / "jellybean").mkdir(exist_ok=True)
    (root / "jellybean" / "sums.py").write_text(source, encoding="utf-8")
    return root


def drawn(root: Path, seed: int, equivalents: Equivalents = NO_EQUIVALENTS) -> list[Drawn]:
    return list(draw(root, room_files(root, ["all"]), seed, equivalents))


def test_the_same_seed_draws_the_same_faults(tmp_path: Path) -> None:
    root = project(tmp_path)
    first = [fault.diff() for fault in drawn(root, 1)]
    assert first == [fault.diff() for fault in drawn(root, 1)]
    assert first != [fault.diff() for fault in drawn(root, 2)]
    assert [fault.fault.line for fault in sorted(drawn(root, 1), key=lambda each: each.fault)] == [1, 2, 3, 4, 7, 8, 9]


def test_another_line_leaves_the_others_their_faults(tmp_path: Path) -> None:
    before = {(fault.text, fault.fault.mutation) for fault in drawn(project(tmp_path), 1)}
    after = {(fault.text, fault.fault.mutation) for fault in drawn(project(tmp_path, f"LIMIT = 4\n{SOURCE}"), 1)}
    assert after - before == {("LIMIT = 4", "40 for 4")}
    assert before < after


def test_an_equivalent_fault_has_its_reason(tmp_path: Path) -> None:
    first, *others = drawn(project(tmp_path), 1)
    listed = Equivalents({(first.file, first.text, first.fault.mutation): "nobody can tell"})
    again, *unlisted = drawn(tmp_path, 1, listed)
    assert (again.diff(), again.reason) == (first.diff(), "nobody can tell")
    assert unlisted == others


def test_each_listed_equivalent_is_a_fault_of_a_line_and_has_a_reason() -> None:
    for (file, text, mutation), reason in Equivalents.read(EQUIVALENT).reasons.items():
        source = (ROOT / file).read_text(encoding="utf-8")
        lines = source.splitlines()
        assert reason.strip(), (file, text)
        assert any(
            fault.mutation == mutation and lines[fault.line - 1].strip() == text for fault in candidates_of(source)
        ), f"{file}: no line {text!r} has the fault {mutation!r} any more: remove the entry from {EQUIVALENT.name}"


def test_a_room_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="--room nowhere: name one of agent, all, gateway"):
        room_files(project(tmp_path), ["nowhere"])


def test_a_room_is_a_name_a_folder_or_a_path() -> None:
    assert "jellybean/serving/client.py" in room_files(ROOT, ["gateway"])
    assert "jellybean/ledger/columns.py" in room_files(ROOT, ["ledger"])
    assert room_files(ROOT, ["jellybean/serving/client.py"]) == ["jellybean/serving/client.py"]
    assert not any("_pb2" in file for file in room_files(ROOT, ["all"]))


def test_faults_are_in_a_copy_and_only_meanwhile(tmp_path: Path) -> None:
    root = project(tmp_path)
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    with copied(root) as tree:
        with tree.with_text("jellybean/sums.py", "fault"):
            assert (tree.root / "jellybean/sums.py").read_text(encoding="utf-8") == "fault"
            assert (root / "jellybean/sums.py").read_text(encoding="utf-8") == SOURCE
        assert (tree.root / "jellybean/sums.py").read_text(encoding="utf-8") == SOURCE
    assert not tree.root.exists()
