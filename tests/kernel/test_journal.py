"""The journal as the turn loop uses it."""

import asyncio
import statistics
import time

import apsw
import pytest

from homeagent_sdk.errors import Conflict, Invalid, NotFound, Overloaded, Unavailable
from kernel.journal import Accepted, Journal, NewTurn


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def turn(turn_id: str, **changes) -> NewTurn:
    values = {"channel": "webui", "conversation": "c1", "principal": "owner", "text": f"text of {turn_id}"}
    return NewTurn(turn_id=turn_id, frame=b"frame", **(values | {"delivery_id": f"d-{turn_id}"} | changes))


@pytest.fixture
async def journal(tmp_path):
    journal = Journal(tmp_path / "kernel" / "journal.db", wall_clock=Clock())
    await journal.open()
    yield journal
    await journal.close()


async def finished(journal: Journal, turn_id: str, outcome: str = "answer", **changes) -> None:
    await journal.accept(turn(turn_id, **changes))
    await journal.finish(turn_id, outcome, "the answer")


async def test_an_accepted_turn_is_unfinished_until_it_has_its_outcome(journal):
    assert await journal.accept(turn("t1")) == Accepted("t1", duplicate=False)
    assert [each.turn_id for each in await journal.unfinished()] == ["t1"]
    await journal.finish("t1", "answer", "hello", {"usage": {"total_tokens": 3}}, frame=b"last")
    assert await journal.unfinished() == []
    found = await journal.get("t1")
    assert (found.outcome, found.answer, found.result, found.frame, found.step) == (
        "answer",
        "hello",
        {"usage": {"total_tokens": 3}},
        b"last",
        "done",
    )


async def test_a_repeated_delivery_gets_the_first_turn_even_after_that_finished(journal):
    await journal.accept(turn("t1", delivery_id="d"))
    again = await journal.accept(turn("t2", delivery_id="d"))
    assert (again.turn_id, again.duplicate) == ("t1", True)
    await journal.finish("t1", "answer", "x")
    assert (await journal.accept(turn("t3", delivery_id="d"))).duplicate
    other = await journal.accept(turn("t4", delivery_id="d", channel="cli"))
    assert (other.turn_id, other.duplicate) == ("t4", False)


async def test_the_same_delivery_arriving_many_times_at_once_starts_one_turn(journal):
    receipts = await asyncio.gather(*(journal.accept(turn(f"t{n}", delivery_id="d")) for n in range(50)))
    assert len({receipt.turn_id for receipt in receipts}) == 1
    assert [receipt.duplicate for receipt in receipts].count(False) == 1


async def test_inputs_without_a_delivery_id_are_never_duplicates(journal):
    receipts = [await journal.accept(turn(f"t{n}", delivery_id=None)) for n in range(3)]
    assert not any(receipt.duplicate for receipt in receipts)


async def test_a_turn_id_is_used_once(journal):
    await journal.accept(turn("t1", delivery_id="a"))
    with pytest.raises(Conflict, match="t1"):
        await journal.accept(turn("t1", delivery_id="b"))


async def test_a_turn_goes_on_where_it_was_saved_last(journal):
    await journal.accept(turn("t1"))
    await journal.save("t1", "llm", b"second", schema_version=2)
    (found,) = await journal.unfinished()
    assert (found.step, found.frame, found.schema_version, found.text) == ("llm", b"second", 2, "text of t1")


async def test_a_second_outcome_is_refused_and_the_first_stands(journal):
    await finished(journal, "t1")
    with pytest.raises(Conflict, match="t1 has its outcome already: answer"):
        await journal.finish("t1", "error", "other")
    with pytest.raises(Conflict):
        await journal.save("t1", "llm", b"late")
    with pytest.raises(Conflict):
        await journal.begin_attempt("t1")
    found = await journal.get("t1")
    assert (found.outcome, found.answer) == ("answer", "the answer")


async def test_two_outcomes_at_once_leave_one(journal):
    await journal.accept(turn("t1"))
    results = await asyncio.gather(*(journal.finish("t1", "answer", str(n)) for n in range(20)), return_exceptions=True)
    assert results.count(None) == 1
    assert all(isinstance(each, Conflict) for each in results if each is not None)


async def test_what_is_not_there_is_named(journal):
    with pytest.raises(NotFound, match="no turn t9"):
        await journal.save("t9", "llm", b"")
    with pytest.raises(NotFound):
        await journal.finish("t9", "answer", "")
    with pytest.raises(NotFound):
        await journal.begin_attempt("t9")
    assert await journal.get("t9") is None
    with pytest.raises(Invalid, match="cannot end with 'shrug'"):
        await journal.finish("t9", "shrug", "")


async def test_attempts_count_per_step_and_survive_reopening(journal):
    await journal.accept(turn("t1"))
    assert await journal.begin_attempt("t1") == 1
    await journal.save("t1", "llm", b"f")
    assert await journal.begin_attempt("t1") == 1
    await journal.save("t1", "llm", b"marked as begun, the same step")
    await journal.close()
    await journal.open()
    assert await journal.begin_attempt("t1") == 2


async def test_a_failing_write_takes_nothing_of_its_group_with_it(journal):
    results = await asyncio.gather(
        journal.accept(turn("t1")),
        journal.save("nobody", "llm", b""),
        journal.accept(turn("t2")),
        return_exceptions=True,
    )
    assert isinstance(results[1], NotFound)
    assert [each.turn_id for each in await journal.unfinished()] == ["t1", "t2"]


async def test_unfinished_turns_come_in_the_order_of_acceptance(journal):
    names = [f"t{n}" for n in (5, 3, 9, 1)]
    for name in names:
        await journal.accept(turn(name))
    await journal.finish("t9", "skipped", None)
    assert [each.turn_id for each in await journal.unfinished()] == ["t5", "t3", "t1"]


async def test_history_is_the_end_of_the_lane_oldest_first(journal):
    for number in range(5):
        await finished(journal, f"t{number}")
    await journal.accept(turn("open"))
    await finished(journal, "elsewhere", conversation="c2")
    await finished(journal, "guest", principal="p2")
    assert [each.turn_id for each in await journal.history("webui", "c1", 3)] == ["t4", "open", "guest"]
    own = await journal.history("webui", "c1", 3, principal="owner")
    assert [each.turn_id for each in own] == ["t3", "t4", "open"]


async def test_conversations_have_a_title_and_come_newest_first(journal):
    await journal.accept(turn("t1", conversation="a", text="  first\nwords " + "x" * 200))
    await journal.accept(turn("t2", conversation="b"))
    await journal.accept(turn("t3", conversation="a", text="later"))
    await journal.accept(turn("t4", conversation="c", principal="p2"))
    found = await journal.conversations("webui", "owner", 10)
    assert [(each.conversation, each.last_time) for each in found] == [("a", 1003.0), ("b", 1002.0)]
    assert found[0].title.startswith("first words x") and len(found[0].title) == 80
    assert len(await journal.conversations("webui", "owner", 1)) == 1


async def test_memory_is_told_of_turns_that_happened_once(journal):
    for number, outcome in enumerate(("answer", "error", "stopped", "merged", "skipped")):
        await finished(journal, f"t{number}", outcome)
    await finished(journal, "private", no_memory=True)
    await journal.accept(turn("open"))
    assert [each.turn_id for each in await journal.unremembered(10)] == ["t0", "t1", "t2"]
    assert [each.turn_id for each in await journal.unremembered(1)] == ["t0"]
    await journal.mark_remembered(["t0", "t2", "unknown"])
    await journal.mark_remembered([])
    assert [each.turn_id for each in await journal.unremembered(10)] == ["t1"]
    assert (await journal.get("t0")).remembered
    assert (await journal.get("private")).no_memory


async def test_pruning_keeps_what_is_unfinished_unremembered_or_among_the_last_of_its_lane(journal):
    await journal.accept(turn("open"))
    await finished(journal, "unremembered")
    await finished(journal, "private", no_memory=True)
    await finished(journal, "merged", "merged")
    for number in range(4):
        await finished(journal, f"t{number}")
    await journal.mark_remembered([f"t{number}" for number in range(4)])
    await finished(journal, "other-lane", "skipped", conversation="c2")
    assert await journal.prune(older_than_s=1_000_000, keep_per_lane=2) == 0
    assert await journal.prune(older_than_s=0, keep_per_lane=2) == 4
    assert [each.turn_id for each in await journal.history("webui", "c1", 99)] == ["open", "unremembered", "t2", "t3"]
    assert await journal.get("other-lane") is not None
    counts = await journal.counts()
    assert (counts.unfinished, counts.finished, counts.unremembered) == (1, 4, 1)


async def test_pruning_goes_in_slices_and_gives_the_space_back(journal):
    await asyncio.gather(*(finished(journal, f"t{n}", "merged", text="x" * 5_000) for n in range(500)))
    before = journal.path.stat().st_size
    assert await journal.prune(older_than_s=0, keep_per_lane=0) == 500
    await journal.close()
    assert journal.path.stat().st_size < before / 2


async def test_requests_beyond_the_bound_are_refused_at_once(tmp_path):
    journal = Journal(tmp_path / "journal.db", queue_limit=10)
    await journal.open()
    results = await asyncio.gather(*(journal.accept(turn(f"t{n}")) for n in range(30)), return_exceptions=True)
    refused = [each for each in results if isinstance(each, Overloaded)]
    assert len(refused) == 20
    assert "10 requests already wait" in refused[0].message
    assert len(await journal.unfinished()) == 10
    await journal.accept(turn("later"))
    await journal.close()


async def test_a_cancelled_caller_disturbs_nobody(journal):
    task = asyncio.create_task(journal.accept(turn("t1")))
    await asyncio.sleep(0)
    task.cancel()
    await journal.accept(turn("t2"))
    assert (await journal.get("t2")) is not None
    assert journal.waiting == 0


async def test_a_thousand_inputs_at_once_share_few_transactions(journal):
    started = time.perf_counter()
    await asyncio.gather(*(journal.accept(turn(f"t{n}")) for n in range(1000)))
    elapsed = time.perf_counter() - started
    assert journal.transactions <= 50
    assert elapsed < 5.0  # about 0.1 s when nothing else runs
    assert (await journal.counts()).unfinished == 1000


async def test_one_input_alone_is_durable_within_milliseconds(journal):
    durations = []
    for number in range(50):
        started = time.perf_counter()
        await journal.accept(turn(f"t{number}"))
        durations.append(time.perf_counter() - started)
    assert statistics.median(durations) < 0.05  # about 1 ms when nothing else runs; a slow disk needs ten


async def test_every_commit_waits_for_the_disk(journal):
    def pragmas(connection: apsw.Connection) -> tuple:
        return connection.execute("PRAGMA synchronous").get, connection.execute("PRAGMA journal_mode").get

    assert await journal._database.write(pragmas) == (2, "wal")


async def test_the_file_is_private(journal):
    await journal.accept(turn("t1"))
    modes = {each.name: each.stat().st_mode & 0o777 for each in journal.path.parent.iterdir()}
    assert set(modes.values()) == {0o600}, modes
    assert journal.path.parent.stat().st_mode & 0o777 == 0o700


async def test_a_closed_journal_says_so(journal):
    await journal.close()
    await journal.close()
    with pytest.raises(Unavailable, match="closed"):
        await journal.get("t1")
