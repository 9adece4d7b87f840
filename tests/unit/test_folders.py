"""No command writes through a link of a project, whichever file or folder of it the link is."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from jellybean.errors import InputError
from jellybean.folders import MAX_DEPTH, require_no_link, require_plain, state_folder, walk_tree, write_file
from tests.support.full_disk import small_disk


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    file = tmp_path / "victim"
    file.write_text("precious")
    return file


def test_a_state_folder_is_made_for_its_owner_alone(project: Path) -> None:
    assert stat.S_IMODE(state_folder(project).stat().st_mode) == 0o700
    (state_folder(project) / "logs").mkdir()
    assert state_folder(project) == project / ".jellybean"


def test_a_state_folder_that_is_open_to_others_is_used_on_a_disk_that_is_read_only(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small") as mount:
        (mount / ".jellybean").mkdir()
        (mount / ".jellybean").chmod(0o755)
        subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
        assert state_folder(mount) == mount / ".jellybean"


@pytest.mark.parametrize(
    "place", [".jellybean", ".jellybean/run.lock", ".jellybean/logs", ".jellybean/certs/ca/tls.key"]
)
def test_a_state_folder_with_a_link_is_refused(project: Path, victim: Path, place: str) -> None:
    (project / place).parent.mkdir(parents=True, exist_ok=True)
    (project / place).symlink_to(victim)
    with pytest.raises(InputError, match=f"{place} is a link to {victim}"):
        state_folder(project)


def test_links_that_lead_nowhere_or_stay_inside_are_links_too(project: Path) -> None:
    (project / ".jellybean").mkdir()
    for target in ("nowhere", "."):
        (project / ".jellybean/logs").symlink_to(target)
        with pytest.raises(InputError, match="is a link to"):
            require_plain(project / ".jellybean")
        (project / ".jellybean/logs").unlink()


def test_a_pipe_that_would_be_waited_for_is_refused(project: Path) -> None:
    (project / ".jellybean").mkdir()
    os.mkfifo(project / ".jellybean/run.json")
    with pytest.raises(InputError, match=r"run\.json is neither a file nor a folder"):
        require_plain(project / ".jellybean")


@pytest.mark.parametrize("excess", [0, 1])
def test_the_deepest_folder_that_is_read_has_its_links_refused(project: Path, excess: int) -> None:
    innermost = project / ".jellybean" / Path(*["a"] * (MAX_DEPTH - 1 + excess))
    innermost.mkdir(parents=True)
    (innermost / "link").symlink_to("/")
    with pytest.raises(InputError, match="more than 64 folders in each other" if excess else "link is a link to /"):
        require_plain(project / ".jellybean")


def test_a_tree_is_walked_in_order_and_through_no_link(project: Path) -> None:
    for name in ("b/c", "a", "b/d/e"):
        (project / name).mkdir(parents=True)
    (project / "b" / "link").symlink_to(project)
    names = [str(path.relative_to(project)) for path, _ in walk_tree(project)]
    assert names == ["a", "b", "b/c", "b/d", "b/d/e", "b/link"]
    assert list(walk_tree(project / "nothing")) == []


def test_a_project_whose_own_path_is_a_link_is_as_any(project: Path) -> None:
    link = project.with_name("link")
    link.symlink_to(project)
    assert state_folder(link).is_dir()
    write_file(link / "plan.json", "{}")
    assert (project / "plan.json").read_text() == "{}"


def test_a_file_is_replaced_and_keeps_its_mode(project: Path) -> None:
    file = project / "workflow.yaml"
    file.write_text("old")
    file.chmod(0o640)
    write_file(file, "new")
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("new", 0o640)
    write_file(project / "b", b"bytes")
    assert [path.name for path in sorted(project.iterdir())] == ["b", "workflow.yaml"]


def test_no_link_is_written_through(project: Path, victim: Path) -> None:
    (project / "plan.json").symlink_to(victim)
    with pytest.raises(InputError, match=r"plan\.json is a link"):
        write_file(project / "plan.json", "{}")
    assert victim.read_text(encoding="utf-8") == "precious"


def test_no_folder_out_of_the_project_is_written_into(project: Path, victim: Path) -> None:
    (project / "models").symlink_to(victim.parent)
    with pytest.raises(InputError, match="leads out of"):
        write_file(project / "models/stages.onnx", b"", project)
    with pytest.raises(InputError, match="leads out of"):
        require_no_link(project / "models/../../x", project)
    assert {path.name for path in victim.parent.iterdir()} == {"project", "victim"}


def test_names_of_temporary_files_cannot_be_foreseen(project: Path, victim: Path) -> None:
    for name in (".plan.json", "plan.json.tmp", "plan.json.part", f".plan.json.{os.getpid()}"):
        (project / name).symlink_to(victim)
    write_file(project / "plan.json", "{}")
    assert victim.read_text(encoding="utf-8") == "precious"


def test_nothing_is_left_of_a_file_that_cannot_be_written(project: Path) -> None:
    (project / "plan.json").mkdir()
    with pytest.raises(OSError, match=r"plan\.json"):
        write_file(project / "plan.json", "{}")
    assert [path.name for path in project.iterdir()] == ["plan.json"]
