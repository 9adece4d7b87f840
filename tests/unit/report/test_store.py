from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from jellybean.report import Store
from jellybean.report.store import SCHEMA_VERSION, StoreError
from tests import report_plans as plans
from tests.support.full_disk import small_disk

ROOT = Path(__file__).parents[3]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    ticks = iter(range(1, 1000))
    return Store(tmp_path / "digits" / ".jellybean" / "report.db", clock=lambda: float(next(ticks)))


def _filled(store: Store) -> str:
    return store.add_plan(plans.document(plans.digits()), {"solve_s": 0.1})


def test_latest_is_the_newest_of_each_kind(store: Store) -> None:
    plan_hash = _filled(store)
    for p50 in (0.1, 0.2):
        store.add_prediction(plan_hash, {"latency_p50_s": p50})
        store.add_measurement(plan_hash, {"latency_p50_s": p50 * 2})
    store.add_measurement(plan_hash, {"highest_rate_per_s": 20.0})
    found = store.latest()
    assert found is not None
    assert found.plan_hash == plan_hash
    assert found.document == plans.document(plans.digits())
    assert found.prediction is not None
    assert found.prediction.record == {"latency_p50_s": 0.2}
    assert found.bench is not None
    assert found.bench.record == {"latency_p50_s": 0.4}
    assert found.saturate is not None
    assert found.saturate.record == {"highest_rate_per_s": 20.0}
    assert [row.kind for row in store.history()] == ["plan", *("prediction", "bench") * 2, "saturate"]


@pytest.mark.parametrize(
    "made",
    [
        "CREATE TRIGGER foreign_1 AFTER INSERT ON plannings BEGIN DELETE FROM sqlite_sequence; END",
        "CREATE VIEW foreign_1 AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n",
        "CREATE INDEX foreign_1 ON plannings (hex(record))",
        "CREATE TABLE foreign_1 (x CHECK (length(hex(zeroblob(900000000))) > 0))",
    ],
)
def test_a_store_from_elsewhere_has_nothing_that_runs(store: Store, made: str) -> None:
    """A trigger may run without end at the first plan that is written."""
    plan_hash = _filled(store)
    with closing(sqlite3.connect(store.path)) as connection:
        connection.execute(made)
    for use in (store.latest, lambda: store.add_prediction(plan_hash, {})):
        with pytest.raises(StoreError, match=r"has what no report store has: 'foreign_1'\. Move it away"):
            use()


def test_newest_does_not_depend_on_the_clock(tmp_path: Path) -> None:
    ticks = iter((50.0, 50.0, 40.0, 30.0))
    store = Store(tmp_path / "report.db", clock=lambda: next(ticks))
    plan_hash = store.add_plan(plans.document(plans.digits()))
    store.add_measurement(plan_hash, {"accuracy": 1.0})
    store.add_measurement(plan_hash, {"accuracy": 2.0})
    found = store.latest()
    assert found is not None
    assert found.bench is not None
    assert found.bench.record == {"accuracy": 2.0}


def test_a_plan_made_again_is_the_latest_and_keeps_how_it_was_made(store: Store) -> None:
    first = _filled(store)
    second = store.add_plan(plans.document(plans.vqa()))
    assert (latest := store.latest()) is not None
    assert latest.plan_hash == second
    store.add_plan(plans.document(plans.digits()))
    assert (latest := store.latest()) is not None
    assert latest.plan_hash == first
    assert latest.planning.record == {"solve_s": 0.1}


def test_a_plan_is_found_by_the_start_of_its_hash(store: Store) -> None:
    plan_hash = _filled(store)
    assert (found := store.latest(plan_hash[:8])) is not None
    assert found.plan_hash == plan_hash
    assert store.latest("no such plan") is None
    store.add_plan(plans.document(plans.vqa()))
    with pytest.raises(StoreError, match="several plan hashes"):
        store.latest("")


def test_measurements_at_other_rates_are_kept_apart(store: Store) -> None:
    plan_hash = _filled(store)
    store.add_measurement(plan_hash, {"rate_per_s": 12.0, "accuracy": 93.0})
    store.add_measurement(plan_hash, {"rate_per_s": 15.6, "accuracy": 93.0})
    assert [row.kind for row in store.history(plan_hash)] == ["plan", "bench", "scaled"]
    with pytest.raises(StoreError, match="one of bench, scaled, saturate"):
        store.add_measurement(plan_hash, {}, kind="other")  # type: ignore[arg-type]


def test_a_measurement_at_the_rate_of_all_sites_is_at_the_declared_rate(store: Store) -> None:
    plan = replace(plans.digits(), sites={"edge": 3})
    plan_hash = store.add_plan(plans.document(plan))
    for rate_per_s in (3 * plan.sources[0].rate_per_s, plan.sources[0].rate_per_s):
        store.add_measurement(plan_hash, {"rate_per_s": rate_per_s})
    assert [row.kind for row in store.history(plan_hash)] == ["plan", "bench", "scaled"]


def test_figures_that_are_no_numbers_read_as_unknown(store: Store) -> None:
    plan_hash = _filled(store)
    store.add_prediction(plan_hash, {"latency_p50_s": float("nan"), "utilisation": {"cloud-1": float("inf")}})
    assert (found := store.latest()) is not None
    assert found.prediction is not None
    assert found.prediction.record == {"latency_p50_s": None, "utilisation": {"cloud-1": None}}


def test_measuring_an_unknown_plan_says_to_plan(store: Store) -> None:
    _filled(store)
    with pytest.raises(StoreError, match=r"run `jellybean plan .*digits` first"):
        store.add_measurement("0" * 64, {})
    assert len(store.history()) == 1


def test_rows_cannot_be_changed_or_removed(store: Store) -> None:
    plan_hash = _filled(store)
    store.add_measurement(plan_hash, {"accuracy": 93.0})
    connection = sqlite3.connect(store.path)
    try:
        for statement in ("UPDATE measurements SET record = '{}'", "DELETE FROM plannings", "DELETE FROM plans"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                connection.execute(statement)
    finally:
        connection.close()


def test_an_empty_store_is_no_error_and_makes_no_file(store: Store) -> None:
    assert store.latest() is None
    assert store.history() == ()
    assert not store.path.exists()


def test_a_file_that_is_no_store_says_what_to_do(store: Store) -> None:
    store.path.parent.mkdir(parents=True)
    store.path.write_bytes(b"this is not a database, not at all" * 100)
    for call in (store.latest, store.history, lambda: _filled(store)):
        with pytest.raises(StoreError, match=r"report\.db: .*move it away to start a new history"):
            call()


def test_a_damaged_store_says_what_to_do(store: Store) -> None:
    plan_hash = _filled(store)
    for _ in range(40):
        store.add_measurement(plan_hash, plans.measurement(plans.digits()))
    content = bytearray(store.path.read_bytes())
    for at in range(4096, len(content)):
        content[at] = 0xA5
    store.path.write_bytes(bytes(content))
    with pytest.raises(StoreError, match="move it away"):
        store.history()


def test_a_newer_schema_is_refused(store: Store) -> None:
    _filled(store)
    connection = sqlite3.connect(store.path)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    for call in (store.latest, lambda: _filled(store)):
        with pytest.raises(StoreError, match=r"schema version 2, this JellyBean knows 1: update JellyBean"):
            call()


def test_a_folder_in_the_way_says_what_to_do(store: Store) -> None:
    store.path.mkdir(parents=True)
    with pytest.raises(StoreError, match="owner and permissions"):
        _filled(store)


_WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
from jellybean.report.store import Store
from tests import report_plans as plans
store = Store(Path(sys.argv[1]))
plan_hash = store.add_plan(plans.document(plans.digits()))
number = int(sys.argv[2])
while True:
    store.add_measurement(plan_hash, {"number": number})
    print(number, flush=True)
    number += 1
"""


@pytest.mark.slow
def test_acknowledged_rows_survive_kill_9(tmp_path: Path) -> None:
    store = Store(tmp_path / "report.db")
    acknowledged: list[int] = []
    for kill in range(3):
        arguments = [sys.executable, "-c", _WRITER, str(store.path), str(1000 * kill)]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
            assert process.stdout is not None
            for _ in range(15 + 7 * kill):
                acknowledged.append(int(process.stdout.readline()))
            process.send_signal(signal.SIGKILL)
            acknowledged += [int(line) for line in process.stdout if line.endswith("\n")]
        assert process.returncode == -signal.SIGKILL
    kept = [row.record["number"] for row in store.history() if row.kind == "bench"]
    assert set(acknowledged) <= set(kept)
    assert len(kept) == len(set(kept))
    assert store.latest() is not None


_FULL = """
import resource, sys
from pathlib import Path
from jellybean.report.store import Store, StoreError
store = Store(Path(sys.argv[1]))
plan_hash = store.latest().plan_hash
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
written = 0
try:
    while True:
        store.add_measurement(plan_hash, {"number": written, "note": "x" * 10_000})
        written += 1
except StoreError as error:
    print(written)
    print(error)
"""


def test_no_room_left_loses_nothing_and_says_what_to_do(store: Store) -> None:
    _filled(store)
    arguments = [sys.executable, "-c", _FULL, str(store.path)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, cwd=ROOT, timeout=120)
    written, message = done.stdout.split("\n", 1)
    assert "Nothing was written" in message
    assert "repeat the command" in message
    kept = [row.record["number"] for row in store.history() if row.kind == "bench"]
    assert kept == list(range(int(written)))
    store.add_measurement(_filled(store), {"accuracy": 93.0})  # with room again it goes on


def test_a_full_disk_says_to_free_space(store: Store, tmp_path: Path) -> None:
    with small_disk(tmp_path / "small") as mount:
        small = Store(mount / "report.db")
        plan_hash = _filled(small)
        written = 0
        with pytest.raises(
            StoreError,
            match=rf"report.db: the file system {mount} is full \([\d,]+ bytes left\): make",
        ):
            while True:
                small.add_measurement(plan_hash, {"number": written, "note": "x" * 10_000})
                written += 1
        assert len([row for row in small.history() if row.kind == "bench"]) == written


@pytest.mark.slow
def test_two_processes_may_write_at_once(tmp_path: Path) -> None:
    store = Store(tmp_path / "report.db")
    script = _WRITER.replace("while True:", "while number % 1000 < 20:")
    writers = [
        subprocess.Popen([sys.executable, "-c", script, str(store.path), str(n)], stdout=subprocess.PIPE, cwd=ROOT)
        for n in (0, 1000)
    ]
    for writer in writers:
        with writer:
            writer.communicate(timeout=120)
            assert writer.returncode == 0
    numbers = [row.record["number"] for row in store.history() if row.kind == "bench"]
    assert sorted(numbers) == [*range(20), *range(1000, 1020)]


def test_rows_of_several_stores_are_in_the_order_of_their_times_each_once(tmp_path: Path, store: Store) -> None:
    plan_hash = _filled(store)  # at 2 s, as the plan itself is of 1 s
    store.add_measurement(plan_hash, {"latency_p50_s": 0.1})
    other = Store(tmp_path / "other.db", clock=lambda: 2.5)
    other.add_plan(plans.document(plans.digits()))  # noted as it is served, not planned there
    other.add_measurement(plan_hash, {"latency_p50_s": 0.2})
    alone = other.add_plan(plans.document(plans.one_worker()))
    both = Store(tmp_path / "both.db", directory=tmp_path / "elsewhere")
    both.add_stores((other, store, store, Store(tmp_path / "none.db")))
    found = [(row.kind, row.plan_hash, row.created_s) for row in both.history()]
    assert ("plan", alone, 2.5) in found
    planned, measured = store.history()
    benches = sorted(("bench", plan_hash, at_s) for at_s in (2.5, measured.created_s))
    assert [row for row in found if row[1] == plan_hash] == [("plan", plan_hash, planned.created_s), *benches]
    assert both.project == str(tmp_path / "elsewhere")
    newest = both.latest(plan_hash)
    assert newest is not None
    assert newest.planning.record == {"solve_s": 0.1}


@pytest.mark.parametrize("beside", ["-shm", "-wal"])
def test_where_nothing_can_be_written_beside_it_a_store_is_read(store: Store, beside: str) -> None:
    """As on a disk that is full or read-only, which root can make by a folder of the name that SQLite wants."""
    plan_hash = _filled(store)
    store.path.with_name(f"{store.path.name}{beside}").mkdir()
    assert [row.plan_hash for row in store.history()] == [plan_hash]
    with pytest.raises(StoreError):
        store.add_prediction(plan_hash, {})


def test_a_log_that_is_not_in_the_file_yet_is_not_left_out(store: Store, tmp_path: Path) -> None:
    _filled(store)
    with closing(sqlite3.connect(store.path)) as open_one:  # whose end would move the log into the file
        open_one.execute("SELECT 1 FROM plans").fetchall()
        store.add_measurement(store.latest().plan_hash, {"accuracy": 1.0})
        copy = Store(tmp_path / "copy.db")
        for ending in ("", "-wal"):
            shutil.copy(f"{store.path}{ending}", f"{copy.path}{ending}")
    assert Path(f"{copy.path}-wal").stat().st_size > 0
    Path(f"{copy.path}-shm").mkdir()
    try:
        assert [row.kind for row in copy.history()] == ["plan", "bench"]
    except StoreError as error:
        assert "unable to open" in str(error)
