"""The encoder's process: questions first, deaths survived, idle stops, bounds."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from homeagent_sdk.confine import landlock_abi
from homeagent_sdk.errors import Overloaded, Unavailable
from memory_service.encoders import client
from memory_service.encoders.abc import MAX_CHARACTERS
from memory_service.encoders.client import EncoderWorker
from memory_service.encoders.hashing import HashingEncoder

ROOT = Path(__file__).parents[3]


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[EncoderWorker]:
    worker = EncoderWorker(tmp_path, "tfidf")
    yield worker
    await worker.close()


async def test_it_starts_with_the_first_use_and_answers_in_order(worker: EncoderWorker) -> None:
    assert worker.health()["state"] == "stopped"
    texts = [f"word{n} 第{n}个" for n in range(50)]
    space, vectors = await worker.encode(texts)
    assert space == HashingEncoder().space
    assert np.allclose(vectors, HashingEncoder().encode(texts))
    assert worker.health()["state"] == "running"


async def test_warm_says_no_and_begins_to_load(worker: EncoderWorker) -> None:
    assert not worker.warm()
    async with asyncio.timeout(20):
        while not worker.warm():  # noqa: ASYNC110 - loading has no event
            await asyncio.sleep(0.01)


async def test_a_question_overtakes_what_waits(worker: EncoderWorker) -> None:
    await worker.encode(["start"])
    done: list[str] = []

    async def note(name: str, texts: list[str], urgent: bool) -> None:
        await worker.encode(texts, urgent=urgent)
        done.append(name)

    bulk = asyncio.create_task(note("bulk", ["many words " * 50] * 400, False))
    await asyncio.sleep(0)
    await note("question", ["who?"], True)
    await bulk
    assert done == ["question", "bulk"]


async def test_a_killed_process_fails_what_was_under_way_and_comes_back(
    worker: EncoderWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_PAUSES_S", (0.05,))
    await worker.encode(["start"])
    pid = worker.health()["pid"]
    assert isinstance(pid, int)
    os.kill(pid, signal.SIGSTOP)
    waiting = asyncio.create_task(worker.encode(["under way"]))
    await asyncio.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(Unavailable, match="ended"):
        await waiting
    await asyncio.sleep(0.1)
    _, vectors = await worker.encode(["again"])
    assert vectors.any()
    assert worker.health()["pid"] != pid
    assert worker.health()["deaths"] == 1


async def test_while_it_pauses_after_a_death_it_fails_at_once(worker: EncoderWorker) -> None:
    await worker.encode(["start"])
    os.kill(int(worker.health()["pid"]), signal.SIGKILL)  # type: ignore[call-overload]
    with pytest.raises(Unavailable):
        await worker.encode(["dead"])
    began = time.monotonic()
    with pytest.raises(Unavailable):
        await worker.encode(["pausing"])
    assert time.monotonic() - began < 0.5
    assert worker.health()["state"] == "restarting"


async def test_it_stops_when_nobody_needs_it_and_starts_again(tmp_path: Path) -> None:
    worker = EncoderWorker(tmp_path, "tfidf", idle_s=0.2)
    await worker.encode(["start"])
    pid = worker.health()["pid"]
    async with asyncio.timeout(10):
        while worker.health()["state"] != "stopped":  # noqa: ASYNC110 - stopping has no event
            await asyncio.sleep(0.02)
    await worker.encode(["again"])
    assert worker.health()["pid"] != pid
    await worker.close()


async def test_more_than_can_wait_is_refused(worker: EncoderWorker) -> None:
    with pytest.raises(Overloaded, match="wait for the encoder"):
        await worker.encode(["x"] * 8 * 1_100)


async def test_closing_ends_the_process_and_what_waits(tmp_path: Path) -> None:
    worker = EncoderWorker(tmp_path, "tfidf")
    await worker.encode(["start"])
    pid = int(worker.health()["pid"])  # type: ignore[call-overload]
    waiting = asyncio.create_task(worker.encode(["long text " * 100] * 300))
    await asyncio.sleep(0)
    await worker.close()
    with pytest.raises(Unavailable):
        await waiting
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_texts_that_are_no_unicode_pass(worker: EncoderWorker) -> None:
    _, vectors = await worker.encode(["\ud800 half"])
    assert np.isfinite(vectors).all()


async def test_no_texts_get_no_vectors(worker: EncoderWorker) -> None:
    space, vectors = await worker.encode([])
    assert vectors.shape == (0, space.dimensions)


async def test_a_worker_that_was_closed_stays_so(worker: EncoderWorker) -> None:
    await worker.encode(["start"])
    await worker.close()
    with pytest.raises(Unavailable, match="shutting down"):
        await worker.encode(["late"])
    assert not worker.warm()
    assert worker.health()["pid"] is None


async def test_one_that_ran_long_enough_is_soon_back_however_often_it_died(
    worker: EncoderWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_PAUSES_S", (0.05, 60.0))
    monkeypatch.setattr(client, "_SOUND_AFTER_S", 0.0)
    for _ in range(3):
        await worker.encode(["start"])
        os.kill(int(worker.health()["pid"]), signal.SIGKILL)  # type: ignore[call-overload]
        with pytest.raises(Unavailable):
            await worker.encode(["dead"])
        await asyncio.sleep(0.1)
    await worker.encode(["back"])
    assert worker.health()["deaths"] == 3


async def test_a_question_that_nobody_waits_for_any_more_is_not_encoded(worker: EncoderWorker) -> None:
    await worker.encode(["start"])
    given_up = asyncio.create_task(worker.encode(["x " * 400] * 100))
    await asyncio.sleep(0)
    given_up.cancel()
    _, vectors = await worker.encode(["next"])
    assert np.allclose(vectors, HashingEncoder().encode(["next"]))


@pytest.mark.parametrize(
    ("texts", "most"), [(["字" * 100] * 20, 2), (["a" * 100] * 20, 8), (["a"] * 20, 8), (["字" * 5_000] * 3, 1)]
)
def test_batches_are_as_small_as_a_question_can_wait(texts: list[str], most: int) -> None:
    batches = list(client._batches(texts))
    assert max(map(len, batches)) == most
    assert [each for batch in batches for each in batch] == [each[:MAX_CHARACTERS] for each in texts]


CONFINED = """
import asyncio, sys
from pathlib import Path
from homeagent_sdk.confine import confine, import_roots, standard_read_only
from memory_service.encoders.client import EncoderWorker

async def main(folder):
    worker = EncoderWorker(folder / "cache")
    space, vectors = await worker.encode(["a bicycle"])
    print(confinement.files, space.encoder, vectors.any(), len(list((folder / "cache").iterdir())))
    await worker.close()

folder = Path(sys.argv[1])
listable = import_roots("memory_service")
confinement = confine([folder], standard_read_only("memory_service"), tcp=False, listable=listable)
asyncio.run(main(folder))
"""


async def test_it_starts_confined_to_the_folders_of_the_service(tmp_path: Path) -> None:
    code, said = await run(CONFINED, tmp_path)
    assert (code, said) == (0, f"{landlock_abi() >= 1} use True 1")


ORPHANED = """
import asyncio, os, signal, sys
from pathlib import Path
from memory_service.encoders.client import EncoderWorker

async def main():
    worker = EncoderWorker(Path(sys.argv[1]), "tfidf")
    await worker.encode(["start"])
    pid = worker.health()["pid"]
    print(pid, flush=True)
    # So that it cannot notice by itself that its input has ended.
    os.kill(pid, signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_it_dies_with_the_service_whatever_it_is_doing(tmp_path: Path) -> None:
    code, pid = await run(ORPHANED, tmp_path)
    assert code == -signal.SIGKILL
    try:
        async with asyncio.timeout(5):
            while is_running(int(pid)):  # noqa: ASYNC110 - no child of ours, no event
                await asyncio.sleep(0.01)
    finally:
        if is_running(int(pid)):
            os.kill(int(pid), signal.SIGKILL)


def is_running(pid: int) -> bool:
    """Whether there is such a process that has not ended: one may wait long for whoever inherited it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def run(script: str, folder: Path) -> tuple[int | None, str]:
    """Return the exit code of a script and the last line that it wrote."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script, str(folder)), stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode().splitlines()[-1]
