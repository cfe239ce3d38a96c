"""What the journal promises when the process is killed, the disk fills up, or the file is broken."""

import asyncio
import resource
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from homeagent_sdk.errors import Conflict, Unavailable
from homeagent_sdk.migrations import Migration
from kernel.database import Database
from kernel.journal import Journal, NewTurn
from kernel.journal.schema import MIGRATIONS

ACCEPT_UNTIL_KILLED = """
import asyncio, sys
from pathlib import Path
from kernel.journal import Journal, NewTurn

async def one(journal, lane):
    number = 0
    while True:
        turn_id = f"{lane}-{number}"
        receipt = await journal.accept(NewTurn(turn_id, "c", lane, "owner", "hi", b"f", delivery_id=turn_id))
        sys.stdout.write(receipt.turn_id + "\\n")
        sys.stdout.flush()
        number += 1

async def main():
    journal = Journal(Path(sys.argv[1]))
    await journal.open()
    await asyncio.gather(*(one(journal, f"lane{n}") for n in range(8)))

asyncio.run(main())
"""


def turn(number: int, size: int = 10) -> NewTurn:
    return NewTurn(f"t{number}", "webui", "c1", "owner", "hello", b"f" * size, delivery_id=f"d{number}")


def kill_after(database: Path, acknowledged: int) -> set[str]:
    """Run accepts in another process, kill it after so many receipts, and return all receipts that it gave."""
    process = subprocess.Popen(
        [sys.executable, "-c", ACCEPT_UNTIL_KILLED, str(database)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    receipts = [process.stdout.readline() for _ in range(acknowledged)]
    process.kill()
    receipts += process.stdout.read().splitlines(keepends=True)
    process.wait()
    process.stdout.close()
    return {receipt.strip() for receipt in receipts if receipt.endswith("\n")}


@pytest.mark.parametrize("acknowledged", [1, 37, 400])
async def test_every_acknowledged_input_is_there_after_kill_9(tmp_path, acknowledged):
    receipts = await asyncio.to_thread(kill_after, tmp_path / "journal.db", acknowledged)
    assert len(receipts) >= acknowledged
    journal = Journal(tmp_path / "journal.db")
    await journal.open()
    order = [each.turn_id for each in await journal.unfinished()]
    assert receipts <= set(order)
    for lane in {each.partition("-")[0] for each in order}:
        of_lane = [each for each in order if each.startswith(f"{lane}-")]
        assert of_lane == [f"{lane}-{number}" for number in range(len(of_lane))]
    await journal.close()


class SmallTmpfs:
    """A file system of two megabytes that can be filled and freed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], check=True, capture_output=True)

    def fill(self) -> None:
        with (self.folder / "filler").open("wb", buffering=0) as filler:
            try:
                while filler.write(b"x" * 4096):
                    pass
            except OSError:
                return

    def free(self) -> None:
        (self.folder / "filler").unlink(missing_ok=True)

    def remove(self) -> None:
        subprocess.run(["umount", "-l", str(self.folder)], check=True)


class SmallFiles:
    """The same where mounting is not allowed: no file of this process may grow beyond its present size."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, self._before[1]))

    def free(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._before)

    def remove(self) -> None:
        self.free()


@pytest.fixture(params=["tmpfs", "rlimit"])
def small_disk(request, tmp_path):
    try:
        disk = (SmallTmpfs if request.param == "tmpfs" else SmallFiles)(tmp_path / request.param)
    except subprocess.CalledProcessError:
        disk = SmallFiles(tmp_path / "no-mount")
    yield disk
    disk.remove()


async def accept_many(journal: Journal, numbers: range) -> tuple[list[str], list[Unavailable]]:
    accepted, refusals = [], []
    for number in numbers:
        try:
            accepted.append((await journal.accept(turn(number, size=2000))).turn_id)
        except Unavailable as error:
            refusals.append(error)
    return accepted, refusals


async def test_a_full_disk_refuses_inputs_and_loses_none(small_disk):
    journal = Journal(small_disk.folder / "journal.db")
    await journal.open()
    small_disk.fill()
    accepted, refusals = await accept_many(journal, range(200))
    assert refusals
    for refusal in refusals:
        assert str(journal.path) in refusal.message
        assert "full" in refusal.hint
    assert [each.turn_id for each in await journal.unfinished()] == accepted

    small_disk.free()
    later, refusals = await accept_many(journal, range(1000, 1010))
    assert refusals == []
    await journal.close()
    await journal.open()
    assert [each.turn_id for each in await journal.unfinished()] == accepted + later
    await journal.close()


async def test_every_waiting_input_of_a_group_hears_of_the_full_disk(small_disk):
    journal = Journal(small_disk.folder / "journal.db")
    await journal.open()
    small_disk.fill()
    results = await asyncio.gather(*(journal.accept(turn(n, size=200_000)) for n in range(5)), return_exceptions=True)
    assert {type(each) for each in results} == {Unavailable}
    assert len({id(each) for each in results}) == 5
    small_disk.free()
    await journal.close()


async def test_a_journal_cannot_be_made_on_a_full_disk_and_says_why(small_disk):
    if isinstance(small_disk, SmallFiles):
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    else:
        small_disk.fill()
    journal = Journal(small_disk.folder / "journal.db")
    with pytest.raises(Unavailable) as refusal:
        await journal.open()
    small_disk.free()
    assert str(journal.path) in refusal.value.message
    assert refusal.value.hint
    await journal.open()
    await journal.accept(turn(1))
    await journal.close()


async def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "kernel").write_text("a file where the folder should be")
    journal = Journal(tmp_path / "kernel" / "journal.db")
    with pytest.raises(Unavailable, match=r"kernel/journal\.db cannot be opened") as refusal:
        await journal.open()
    assert "writable" in refusal.value.hint


async def test_a_file_that_is_no_database_is_not_touched(tmp_path):
    path = tmp_path / "journal.db"
    path.write_bytes(b"something else entirely " * 500)
    with pytest.raises(Unavailable, match=r"journal\.db") as refusal:
        await Journal(path).open()
    assert "backup" in refusal.value.hint
    assert path.read_bytes().startswith(b"something else")


async def test_a_broken_page_is_reported_and_the_rest_goes_on(tmp_path):
    path = tmp_path / "journal.db"
    journal = Journal(path)
    await journal.open()
    for number in range(200):
        await journal.accept(turn(number, size=3000))
    await journal.close()
    content = bytearray(path.read_bytes())
    content[40_000:120_000] = b"\x55" * 80_000
    path.write_bytes(content)
    await journal.open()
    with pytest.raises(Unavailable) as refusal:
        await journal.unfinished()
    assert str(path) in refusal.value.message
    assert "backup" in refusal.value.hint
    await journal.close()


async def test_a_newer_file_is_refused(tmp_path):
    later = Migration(len(MIGRATIONS) + 1, "a later step", "CREATE TABLE later (x)")
    newer = Database(tmp_path / "journal.db", [*MIGRATIONS, later])
    await newer.open()
    await newer.close()
    with pytest.raises(Conflict, match="schema version"):
        await Journal(tmp_path / "journal.db").open()


async def test_an_upgrade_keeps_a_backup_beside_the_file(tmp_path):
    steps = [Migration(1, "one", "CREATE TABLE a (x)"), Migration(2, "two", "CREATE TABLE b (x)")]
    for known in (steps[:1], steps):
        database = Database(tmp_path / "some.db", known)
        await database.open()
        await database.close()
    backup = apsw.Connection(str(tmp_path / "some.db.before-upgrade"))
    tables = [name for (name,) in backup.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    backup.close()
    assert "a" in tables and "b" not in tables


async def test_two_kernels_on_one_file_wait_for_one_another(tmp_path):
    first, second = Journal(tmp_path / "journal.db"), Journal(tmp_path / "journal.db")
    await first.open()
    await second.open()
    await asyncio.gather(*(journal.accept(turn(n)) for n, journal in enumerate((first, second) * 20)))
    assert (await first.counts()).unfinished == 40
    await first.close()
    await second.close()
