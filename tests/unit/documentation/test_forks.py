"""No process with threads forks: what they have locked would stay locked in the child, which then hangs by chance."""

from __future__ import annotations

import re

from tests.support.paths import ROOT

FORKS = re.compile(
    r"os\.fork(?:pty)?\(|pty\.fork\(|preexec_fn"
    r"|(?:get_context|set_start_method)\((?![\"'](?:spawn|forkserver)[\"'])"
    r"|multiprocessing\.(?:Pool|Process|Manager)\(|from multiprocessing import .*\b(?:Pool|Process|Manager)\b"
    r"|ProcessPoolExecutor\((?![^\n]*mp_context)"
)
WORDS = ("fork", "multiprocessing", "ProcessPoolExecutor", "preexec_fn")  # of which a match has one
FOLDERS = ("jellybean", "solver", "protos", "edge_agent", "k8s", "examples", "benchmarks", "tests")
# Each has one thread when it forks, and checks it.
ALLOWED = {
    "edge_agent/jellybean_agent/execution/process_pool.py": 1,
    "edge_agent/jellybean_agent/execution/process_main.py": 1,  # the fork server, which starts no thread
    "tests/support/at_once.py": 1,
    "tests/unit/training/processes/test_launch.py": 1,
}


def test_only_processes_with_one_thread_fork() -> None:
    found = {}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            if name == "tests/unit/documentation/test_forks.py":
                continue
            text = path.read_text(encoding="utf-8")
            if any(word in text for word in WORDS) and (count := len(FORKS.findall(text))):
                found[name] = count
    assert found == ALLOWED, "spawn processes (mp_context=get_context('spawn')), or add a process with one thread here"
