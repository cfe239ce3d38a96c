"""The migration runner, with both SQLite libraries."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from homeagent_sdk.errors import Conflict, Internal, Invalid, Unavailable
from homeagent_sdk.migrations import Migration, migrate, online_backup

FIRST = Migration(
    1,
    "notes",
    """
    CREATE TABLE note (id INTEGER PRIMARY KEY, text TEXT); -- one; two
    CREATE TABLE log (text TEXT);
    CREATE TRIGGER note_added AFTER INSERT ON note BEGIN
        INSERT INTO log VALUES ('added; ' || new.text);
    END;
    INSERT INTO note (text) VALUES ('a;b')
    """,
)
SECOND = Migration(2, "colour", "ALTER TABLE note ADD COLUMN colour TEXT;\nUPDATE note SET colour = 'red';\n")

Open = Callable[[Path], Any]


def open_sqlite3(path: Path) -> Any:
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False)


def open_apsw(path: Path) -> Any:
    return apsw.Connection(str(path))


@pytest.fixture(params=[open_sqlite3, open_apsw], ids=["sqlite3", "apsw"])
def opened(request: pytest.FixtureRequest) -> Iterator[Open]:
    connections: list[Any] = []

    def make(path: Path) -> Any:
        connections.append(request.param(path))
        return connections[-1]

    yield make
    for connection in connections:
        connection.close()


def rows(connection: Any, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in connection.execute(sql)]


def test_a_script_of_several_statements_is_applied_whole(opened: Open, tmp_path: Path) -> None:
    db = opened(tmp_path / "a.db")
    assert migrate(db, [FIRST, SECOND]) == 2
    assert rows(db, "SELECT text, colour FROM note") == [("a;b", "red")]
    assert rows(db, "SELECT text FROM log") == [("added; a;b",)]
    assert rows(db, "SELECT version, name FROM schema_version") == [(1, "notes"), (2, "colour")]


def test_migrating_again_changes_nothing(opened: Open, tmp_path: Path) -> None:
    db = opened(tmp_path / "a.db")
    migrate(db, [FIRST])
    assert migrate(db, [FIRST]) == 1
    assert rows(db, "SELECT count(*) FROM note") == [(1,)]


def test_before_runs_once_and_only_if_a_database_with_content_changes(opened: Open, tmp_path: Path) -> None:
    calls: list[str] = []
    db = opened(tmp_path / "a.db")
    migrate(db, [FIRST], before=lambda: calls.append("empty"))
    migrate(db, [FIRST], before=lambda: calls.append("nothing to do"))
    third = Migration(3, "size", "ALTER TABLE note ADD COLUMN size INTEGER")
    migrate(db, [FIRST, SECOND, third], before=lambda: calls.append("two steps"))
    assert calls == ["two steps"]


def test_a_failing_before_leaves_the_database_as_it_was(opened: Open, tmp_path: Path) -> None:
    def refuse() -> None:
        raise Unavailable("no room for the backup")

    db = opened(tmp_path / "a.db")
    migrate(db, [FIRST])
    with pytest.raises(Unavailable):
        migrate(db, [FIRST, SECOND], before=refuse)
    assert rows(db, "SELECT max(version) FROM schema_version") == [(1,)]


def test_a_failing_migration_is_rolled_back_whole_and_named(opened: Open, tmp_path: Path) -> None:
    db = opened(tmp_path / "a.db")
    broken = Migration(2, "broken", "CREATE TABLE half (x); INSERT INTO nowhere VALUES (1);")
    with pytest.raises(Internal, match=r"migration 2 \(broken\) of .*a\.db failed") as caught:
        migrate(db, [FIRST, broken])
    assert caught.value.hint
    assert rows(db, "SELECT name FROM sqlite_master WHERE name = 'half'") == []
    assert rows(db, "SELECT max(version) FROM schema_version") == [(1,)]
    assert migrate(db, [FIRST, SECOND]) == 2


@pytest.mark.parametrize("versions", [(2,), (1, 3), (1, 1), (2, 1), (0, 1)])
def test_gaps_and_duplicates_are_refused(opened: Open, tmp_path: Path, versions: tuple[int, ...]) -> None:
    with pytest.raises(Invalid, match="must follow"):
        migrate(opened(tmp_path / "a.db"), [Migration(v, f"m{v}", "SELECT 1") for v in versions])


def test_a_database_newer_than_the_program_is_refused_untouched(opened: Open, tmp_path: Path) -> None:
    db = opened(tmp_path / "a.db")
    migrate(db, [FIRST, SECOND])
    with pytest.raises(Conflict, match="version 2; this program knows versions up to 1") as caught:
        migrate(db, [FIRST])
    assert "newer program" in (caught.value.hint or "")


def test_a_database_of_another_line_is_refused(opened: Open, tmp_path: Path) -> None:
    db = opened(tmp_path / "a.db")
    migrate(db, [FIRST])
    with pytest.raises(Conflict, match="another line"):
        migrate(db, [Migration(1, "something else", "SELECT 1"), SECOND])


def test_an_open_transaction_is_refused(opened: Open, tmp_path: Path) -> None:
    db = opened(tmp_path / "a.db")
    db.execute("BEGIN")
    with pytest.raises(Invalid, match="transaction"):
        migrate(db, [FIRST])


def test_a_sqlite3_connection_with_its_own_transactions_is_refused(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "a.db")
    try:
        with pytest.raises(Invalid) as caught:
            migrate(connection, [FIRST])
        assert "isolation_level=None" in (caught.value.hint or "")
    finally:
        connection.close()


def test_two_programs_that_start_at_once_apply_each_migration_once(opened: Open, tmp_path: Path) -> None:
    first, second = opened(tmp_path / "a.db"), opened(tmp_path / "a.db")
    for connection in (first, second):
        connection.execute("PRAGMA busy_timeout = 10000")
    barrier = threading.Barrier(2)
    failures: list[BaseException] = []

    def run(connection: Any) -> None:
        barrier.wait()
        try:
            migrate(connection, [FIRST, SECOND])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(connection,)) for connection in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert rows(first, "SELECT count(*) FROM note") == [(1,)]


def test_a_backup_of_a_database_in_use_is_whole_and_private(opened: Open, tmp_path: Path) -> None:
    db = opened(tmp_path / "a.db")
    db.execute("PRAGMA journal_mode = WAL")
    migrate(db, [FIRST])
    copy = online_backup(db, tmp_path / "copy.db")
    assert copy.stat().st_mode & 0o777 == 0o600
    assert rows(opened(copy), "SELECT text FROM note") == [("a;b",)]
    assert [p.name for p in tmp_path.iterdir() if "partial" in p.name] == []


def test_a_backup_replaces_an_older_one_only_when_complete(opened: Open, tmp_path: Path) -> None:
    db = opened(tmp_path / "a.db")
    migrate(db, [FIRST])
    (tmp_path / "copy.db").write_text("old")
    online_backup(db, tmp_path / "copy.db")
    assert (tmp_path / "copy.db").read_bytes().startswith(b"SQLite format 3")


def test_a_backup_that_cannot_be_written_says_so(opened: Open, tmp_path: Path) -> None:
    db = opened(tmp_path / "a.db")
    migrate(db, [FIRST])
    with pytest.raises(Unavailable, match=r"missing/copy\.db") as caught:
        online_backup(db, tmp_path / "missing" / "copy.db")
    assert "room" in (caught.value.hint or "")
