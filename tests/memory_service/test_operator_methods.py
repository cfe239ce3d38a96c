"""What the operator asks of the memory over the bus: import, show, known, forget."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from homeagent_sdk.bus.abc import CallContext
from homeagent_sdk.errors import Invalid, NotFound, Overloaded, Unavailable
from homeagent_sdk.testing.local_bus import LocalBus
from memory_service import importing as importing_module
from memory_service.conversation_log import ConversationLog
from memory_service.forgetting import Forgetting
from memory_service.graph.model import Holder
from memory_service.importing import Importing
from memory_service.model import Check, Note, Report
from memory_service.operator_methods import OperatorMethods
from memory_service.store.abc import Store
from tests.memory_service.samples import NOON, an_event

SECRET = "zebraquokka77"


def a_line(id: str, text: str = "hello", **more: Any) -> dict[str, Any]:
    return {"id": id, "time": NOON, "speaker": "Ann", "peer": "ann", "text": text, **more}


class Journal:
    """The kernel, as far as forgetting goes."""

    def __init__(self, bus: LocalBus) -> None:
        self.asked: list[dict[str, Any]] = []
        self.answer: dict[str, Any] = {"turns": 1, "unfinished": 0, "earlier": 0, "erased": True}
        self.error: Exception | None = None
        bus.peer("kernel", "kernel").serve("kernel.forget", self._forget)

    async def _forget(self, body: Any, context: CallContext) -> Any:
        self.asked.append(body)
        if self.error is not None:
            raise self.error
        return self.answer


class Service:
    """What the operator sees, with a hand on the parts behind it."""

    def __init__(self, bus: LocalBus, store: Store, folder: Path) -> None:
        peer = bus.peer("memory")
        self.store = store
        self.stored = 0
        self.gone: list[tuple[str, list[int]]] = []
        self.log = ConversationLog(store.log, folder / "conversations", wall_clock=lambda: NOON)
        self.forgetting = Forgetting(peer, store, self.log)
        self.forgetting.on_forgotten(lambda kind, numbers: self.gone.append((kind, list(numbers))))
        OperatorMethods(peer, store, Importing(store, self._stored), self.forgetting).serve()
        self.operator = bus.peer("operator-1", "operator")

    def _stored(self) -> None:
        self.stored += 1

    async def call(self, method: str, body: Any) -> Any:
        return await self.operator.call(method, body)


@pytest.fixture
def journal(bus: LocalBus) -> Journal:
    return Journal(bus)


@pytest.fixture
async def service(bus: LocalBus, store: Store, journal: Journal, tmp_path: Path) -> Service:
    made = Service(bus, store, tmp_path)
    await made.log.apply({"core.memory.conversation_log": True})
    return made


def in_files(folder: Path, text: str) -> list[str]:
    return [file.name for file in folder.rglob("*") if file.is_file() and text.encode() in file.read_bytes()]


# -- import -----------------------------------------------------------------------------------------------------------


async def test_an_import_keeps_what_it_was_given(service: Service, store: Store) -> None:
    lines = [a_line("e1", "cake", reply="yes"), a_line("e2", "tea", shared=True, peer="bea", speaker="")]
    assert await service.call("memory.import", {"events": lines}) == {"stored": 2, "known": 0, "forgotten": 0}
    first, second = await store.events.get(["e1", "e2"])
    assert (first.channel, first.conversation, first.principal, first.visible_to) == ("import", "ann", "ann", ("ann",))
    assert (first.speaker, first.time, first.input, first.response) == ("Ann", NOON, "cake", "yes")
    assert (second.shared, second.visible_to, second.speaker) == (True, (), "bea")


async def test_importing_again_changes_nothing(service: Service) -> None:
    lines = [a_line("e1"), a_line("e2")]
    await service.call("memory.import", {"events": lines})
    again = await service.call("memory.import", {"events": [*lines, a_line("e3"), a_line("e3")]})
    assert again == {"stored": 1, "known": 3, "forgotten": 0}
    assert service.stored == 2


async def test_events_of_one_moment_keep_their_order(service: Service, store: Store) -> None:
    names = [f"e{number}" for number in (5, 3, 9, 1)]
    await service.call("memory.import", {"events": [a_line(name) for name in names]})
    assert [event.id for event in await store.events.get(names)] == names


async def test_a_short_batch_does_not_overtake_a_long_one(service: Service, store: Store) -> None:
    names = [f"e{number}" for number in range(500)]
    long, short = ([a_line(name) for name in part] for part in (names[:499], names[499:]))
    await asyncio.gather(*(service.call("memory.import", {"events": lines}) for lines in (long, short)))
    assert [event.id for event in await store.events.get(names)] == names


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"id": ""}, "events.1.id"),
        ({"id": 7}, "events.1.id"),
        ({"time": "2026-12-01"}, "events.1.time"),
        ({"time": -1}, "events.1.time"),
        ({"peer": None}, "events.1.peer"),
        ({"text": None}, "events.1.text"),
        ({"reply": 1}, "events.1.reply"),
        ({"shared": "yes"}, "events.1.shared"),
        ({"text": "x" * 8_000_001}, "events.1.text"),
    ],
)
async def test_one_bad_event_and_nothing_is_stored(
    service: Service, store: Store, change: dict[str, Any], field: str
) -> None:
    with pytest.raises(Invalid) as raised:
        await service.call("memory.import", {"events": [a_line("e1"), {**a_line("e2"), **change}]})
    assert raised.value.field == field
    assert (await store.upkeep.stats()).events == 0


async def test_more_than_a_batch_is_refused(service: Service) -> None:
    with pytest.raises(Invalid, match="500"):
        await service.call("memory.import", {"events": [a_line(str(number)) for number in range(501)]})


async def test_a_store_that_is_busy_is_waited_for(
    service: Service, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing_module, "_FIRST_PAUSE_S", 0.001)
    append, busy = store.events.append_many, iter(range(2))

    async def fails_after_the_first(events: Any) -> int:
        if next(busy, None) is not None:
            await append(events[:1])
            raise Overloaded("too much")
        return await append(events)

    monkeypatch.setattr(store.events, "append_many", fails_after_the_first)
    answer = await service.call("memory.import", {"events": [a_line("e1"), a_line("e2"), a_line("e3")]})
    assert answer == {"stored": 3, "known": 0, "forgotten": 0}


# -- show and known ---------------------------------------------------------------------------------------------------


async def test_an_event_is_shown_with_where_it_lies_and_its_indexes(service: Service, store: Store) -> None:
    await service.call("memory.import", {"events": [a_line("e1", "cake")]})
    space = await store.vectors.open_space("f1", "fuse", 3)
    (item,) = await store.vectors.queued(1)
    await store.vectors.put(space, [(item, {"said": b"abc"})])
    (document,) = await store.documents.archive(["e1"], "ann")
    shown = await service.call("memory.show", {"id": "e1"})
    assert (shown["kind"], shown["tier"], shown["document"]) == ("event", "document", document.id)
    assert (shown["text"], shown["time"], shown["visible_to"], shown["shared"]) == ("cake", NOON, ["ann"], False)
    assert shown["indexes"] == {
        "words": True,
        "vectors": [{"encoder": "fuse", "fingerprint": "f1", "part": "said", "bytes": 3}],
        "waits_for_vector": False,
    }


async def test_a_document_and_a_note_are_shown(service: Service, store: Store) -> None:
    await service.call("memory.import", {"events": [a_line("e1"), a_line("e2")]})
    (document,) = await store.documents.archive(["e1", "e2"], "ann")
    shown = await service.call("memory.show", {"id": document.id})
    assert (shown["kind"], shown["is_note"], shown["events"]) == ("document", False, ["e1", "e2"])
    await store.documents.write_note(Note("n1", "ann", ("ann",), False, NOON, "the code", "code", ("home",), "e1"))
    shown = await service.call("memory.show", {"id": "n1"})
    assert (shown["is_note"], shown["content"], shown["tags"]) == (True, "the code", ["home"])
    assert shown["indexes"]["words"] and shown["indexes"]["waits_for_vector"]
    assert (await service.call("memory.show", {"id": "e1"}))["notes"] == ["n1"]


async def test_what_is_not_there_is_told_from_what_was_forgotten(service: Service) -> None:
    await service.call("memory.import", {"events": [a_line("e1")]})
    await service.call("memory.forget", {"ids": ["e1"]})
    with pytest.raises(NotFound, match="was forgotten"):
        await service.call("memory.show", {"id": "e1"})
    with pytest.raises(NotFound, match="there is no"):
        await service.call("memory.show", {"id": "e2"})


async def test_the_ledger_asks_what_is_missing(service: Service) -> None:
    await service.call("memory.import", {"events": [a_line("e1"), a_line("e2")]})
    await service.call("memory.forget", {"ids": ["e2"]})
    answer = await service.call("memory.known", {"ids": ["e1", "e2", "e3"]})
    assert answer == {"missing": ["e3"], "forgotten": ["e2"]}


async def test_verifying_tells_how_far_it_is_and_what_it_found(
    service: Service, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def verify(progress: Callable[[int, int], None]) -> Report:
        await asyncio.to_thread(progress, 1, 2)
        await asyncio.sleep(0)
        progress(2, 2)
        return Report((Check("words", 0, ()), Check("orphans", 2, ("v1", "v2"))))

    monkeypatch.setattr(store.upkeep, "verify", verify)
    *progress, report = [item async for item in service.operator.stream("memory.verify", {})]
    assert progress and progress[-1] == {"checked": 2, "of": 2}
    assert report == {
        "ok": False,
        "checks": [
            {"name": "words", "ok": True, "count": 0, "examples": []},
            {"name": "orphans", "ok": False, "count": 2, "examples": ["v1", "v2"]},
        ],
    }


async def test_what_is_only_derived_is_made_anew(service: Service, store: Any) -> None:
    await service.call("memory.import", {"events": [a_line("e1", "cake")]})
    await store._database.write(lambda connection: connection.execute("DELETE FROM event_words") and None)
    *_, report = [item async for item in service.operator.stream("memory.verify", {})]
    assert not report["ok"]
    assert sum((await service.call("memory.repair", {}))["repaired"].values()) > 0
    *_, report = [item async for item in service.operator.stream("memory.verify", {})]
    assert report["ok"]


async def test_a_check_that_breaks_off_says_why(
    service: Service, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def verify(progress: Callable[[int, int], None]) -> Report:
        raise Unavailable("the disk is gone")

    monkeypatch.setattr(store.upkeep, "verify", verify)
    with pytest.raises(Unavailable, match="the disk is gone"):
        async for _ in service.operator.stream("memory.verify", {}):
            pass


# -- forget -----------------------------------------------------------------------------------------------------------


async def test_nothing_is_left_anywhere_and_every_store_says_so(
    service: Service, store: Store, journal: Journal, tmp_path: Path
) -> None:
    await service.call("memory.import", {"events": [a_line("e1", SECRET, reply=SECRET), a_line("e2")]})
    await service.log.catch_up()
    assert {"memory.db-wal", "2023-05-02.jsonl"} <= set(in_files(tmp_path, SECRET))
    answer = await service.call("memory.forget", {"ids": ["e1"]})
    assert in_files(tmp_path, SECRET) == []
    assert answer["count"] == 1 and answer["ids"] == ["e1"] and answer["complete"]
    assert answer["receipts"]["journal"] == {"turns": 1, "unfinished": 0, "earlier": 0, "erased": True}
    assert answer["receipts"]["memory"]["events"] == 1
    assert answer["receipts"]["conversation_log"] == {"lines": 1}
    assert answer["receipts"]["files"] == {"erased": True}
    assert journal.asked == [{"ids": ["e1"], "lanes": [["import", "ann", "ann"]], "dry_run": False}]
    assert [kind for kind, _ in service.gone] == ["event"]
    assert (await store.upkeep.stats()).events == 1


async def test_what_was_forgotten_is_not_imported_again(service: Service) -> None:
    await service.call("memory.import", {"events": [a_line("e1")]})
    await service.call("memory.forget", {"ids": ["e1"]})
    answer = await service.call("memory.import", {"events": [a_line("e1"), a_line("e2")]})
    assert answer == {"stored": 1, "known": 0, "forgotten": 1}


async def test_a_look_changes_nothing(service: Service, store: Store, journal: Journal) -> None:
    lines = [a_line(f"e{number}", f"text {number}", time=NOON + number) for number in range(8)]
    await service.call("memory.import", {"events": lines})
    answer = await service.call("memory.forget", {"principal": "ann", "before": NOON + 6, "dry_run": True})
    assert answer["count"] == 6 and len(answer["examples"]) == 5 and answer["complete"]
    assert answer["examples"][0] == {"id": "e5", "time": NOON + 5, "speaker": "Ann", "text": "text 5"}
    assert journal.asked == [{"principal": "ann", "after": None, "before": NOON + 6, "dry_run": True}]
    assert (await store.upkeep.stats()).events == 8


async def test_nothing_is_forgotten_here_before_the_journal_has(
    service: Service, store: Store, journal: Journal
) -> None:
    """Or the kernel would tell again what it still has."""
    await service.call("memory.import", {"events": [a_line("e1")]})
    journal.error = Unavailable("the journal cannot be written")
    with pytest.raises(Unavailable):
        await service.call("memory.forget", {"ids": ["e1"]})
    assert (await store.upkeep.stats()).events == 1
    journal.error = None
    assert (await service.call("memory.forget", {"ids": ["e1"]}))["count"] == 1


async def test_media_are_deleted_unless_something_else_holds_them(
    service: Service, store: Store, tmp_path: Path
) -> None:
    await service.call("memory.import", {"events": [a_line("e1"), a_line("e2")]})
    await store.media.put(b"only hers", "text/plain", Holder("event", "e1"))
    for id in ("e1", "e2"):
        await store.media.put(b"of both", "text/plain", Holder("event", id))
    answer = await service.call("memory.forget", {"ids": ["e1"]})
    assert answer["receipts"]["media"] == {"files": 1}
    assert in_files(tmp_path / "media", "only hers") == [] and in_files(tmp_path / "media", "of both")


async def test_a_turn_that_is_not_over_makes_it_incomplete(service: Service, journal: Journal) -> None:
    await service.call("memory.import", {"events": [a_line("e1")]})
    journal.answer = {**journal.answer, "unfinished": 1}
    assert not (await service.call("memory.forget", {"principal": "ann"}))["complete"]


@pytest.mark.parametrize("step", ["log.forget", "forgetting.media", "forgetting.erase", "forgetting.settle"])
async def test_what_was_interrupted_is_finished_by_the_next_start(
    service: Service, store: Store, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.call("memory.import", {"events": [a_line("e1", SECRET)]})
    await service.log.catch_up()
    where, _, name = step.partition(".")

    async def fails(*_: Any) -> Any:
        raise Unavailable("killed")

    with monkeypatch.context() as patch:
        patch.setattr(service.log if where == "log" else store.forgetting, name, fails)
        with pytest.raises(Unavailable):
            await service.call("memory.forget", {"ids": ["e1"]})
    assert not await store.forgetting.is_settled()
    await service.forgetting.finish()
    assert await store.forgetting.is_settled()
    assert in_files(tmp_path, SECRET) == []


async def test_many_ids_go_to_the_kernel_in_pages(service: Service, store: Store, journal: Journal) -> None:
    await store.events.append_many([an_event(f"t{n:04}", conversation=f"c{n % 3}") for n in range(1_010)])
    (document,) = await store.documents.archive([f"t{number:04}" for number in range(1_010)], "owner")
    answer = await service.call("memory.forget", {"ids": [document.id]})
    assert answer["count"] == 1_010 and len(answer["ids"]) == 200
    assert [len(body["ids"]) for body in journal.asked] == [1_000, 11]
    assert sorted(journal.asked[1]["lanes"]) == [["webui", "owner", f"c{number}"] for number in range(3)]


@pytest.mark.parametrize(
    ("body", "field"),
    [({}, "ids"), ({"ids": [""]}, "ids"), ({"before": "now"}, "before"), ({"after": -5}, "after"), ([], None)],
)
async def test_a_selection_that_is_none_is_refused(service: Service, body: Any, field: str | None) -> None:
    with pytest.raises(Invalid) as raised:
        await service.call("memory.forget", body)
    assert raised.value.field == field


async def test_the_log_holds_imports_too(service: Service, tmp_path: Path) -> None:
    await service.call("memory.import", {"events": [a_line(f"e{number}") for number in range(3)]})
    await service.log.catch_up()
    text = "".join(path.read_text() for path in (tmp_path / "conversations").iterdir())
    assert [json.loads(line)["id"] for line in text.splitlines()] == ["e0", "e1", "e2"]
