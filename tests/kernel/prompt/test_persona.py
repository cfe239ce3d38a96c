"""Which persona is in force, which was before it, and whether the owner is to be asked for one."""

from __future__ import annotations

import asyncio
from typing import Any

import apsw
import pytest

from homeagent_sdk.errors import Invalid, NotFound, Unavailable
from kernel.config import ConfigRegistry
from kernel.config.core_settings import PERSONA
from kernel.database import Database
from kernel.prompt.persona import ASK_AGAIN_AFTER_S, COMMAND, CONVERSATION, FILE, MOST_BYTES, SETTING, Persona


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def config(database: Database) -> ConfigRegistry:
    config = ConfigRegistry(database)
    await config.load()
    return config


@pytest.fixture
async def persona(database: Database, config: ConfigRegistry, clock: Clock) -> Persona:
    persona = Persona(database, config, wall_clock=clock)
    await persona.load()
    return persona


async def reloaded(database: Database, config: ConfigRegistry, clock: Clock) -> Persona:
    again = Persona(database, config, wall_clock=clock)
    await again.load()
    return again


async def test_what_was_set_counts_then_the_setting_then_the_built_in_one(
    persona: Persona, config: ConfigRegistry
) -> None:
    assert (persona.text, persona.describe()["origin"]) == (PERSONA, "built_in")
    await config.set(SETTING, "You are terse.")
    assert (persona.text, persona.describe()["origin"]) == ("You are terse.", "setting")
    assert await persona.set("You are a pirate.", CONVERSATION)
    assert (persona.text, persona.describe()["origin"]) == ("You are a pirate.", "conversation")
    assert await persona.reset(COMMAND)
    assert (persona.text, persona.describe()["origin"]) == ("You are terse.", "setting")
    await config.set(SETTING, "")
    assert persona.text == "", "an empty setting means: nothing"


async def test_it_is_there_after_a_restart(
    persona: Persona, database: Database, config: ConfigRegistry, clock: Clock
) -> None:
    await persona.set("你是一只猫。", CONVERSATION)
    clock.now += 5
    await persona.set("You are a dog.", FILE)
    again = await reloaded(database, config, clock)
    assert again.describe() == persona.describe()
    assert again.describe()["changed_at"] == 1_000_005.0
    assert again.describe(previous=True)["content"] == "你是一只猫。"
    assert not again.is_choice_open


async def test_exactly_one_step_back_is_kept(persona: Persona, database: Database) -> None:
    with pytest.raises(NotFound):
        persona.describe(previous=True)
    for number in range(5):
        await persona.set(f"number {number}", COMMAND)
    assert persona.describe(previous=True)["content"] == "number 3"
    assert await database.read(lambda connection: connection.execute("SELECT count(*) FROM persona").get) == 2
    await persona.reset(COMMAND)
    assert (persona.text, persona.describe(previous=True)["content"]) == (PERSONA, "number 4")


async def test_before_the_first_change_was_the_default(persona: Persona) -> None:
    await persona.set("something", COMMAND)
    assert persona.describe(previous=True)["content"] == PERSONA
    assert persona.describe(previous=True)["changed_at"] is None


async def test_setting_the_same_again_changes_nothing_and_keeps_the_previous_one(persona: Persona) -> None:
    await persona.set("one", COMMAND)
    await persona.set("two", COMMAND)
    assert not await persona.set("  two\r\n", COMMAND)
    assert persona.describe(previous=True)["content"] == "one"
    await persona.reset(COMMAND)
    assert not await persona.reset(COMMAND)
    assert persona.describe(previous=True)["content"] == "two"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "empty"),
        ("\ufeff \n", "empty"),
        ("猫" * (MOST_BYTES // 3 + 1), str(MOST_BYTES)),
        ("a\x00b", "control characters"),
        ("\x7fELF", "control characters"),
    ],
)
async def test_what_is_no_persona_is_refused(persona: Persona, content: str, words: str) -> None:
    for attempt in (persona.set(content, COMMAND), persona.import_personal_file(content)):
        with pytest.raises(Invalid, match=words) as refusal:
            await attempt
        assert refusal.value.field == "content"
    assert (persona.text, persona.is_choice_open) == (PERSONA, True)


async def test_16_kib_are_taken_and_their_cost_is_told(persona: Persona) -> None:
    await persona.set("\ufeff" + "x" * MOST_BYTES, COMMAND)
    assert persona.describe()["content"] == "x" * MOST_BYTES
    assert 4000 < persona.describe()["tokens"] < 4500


async def test_lines_and_tabs_stay_and_ends_of_lines_are_made_alike(persona: Persona) -> None:
    await persona.set("\ufeffone\r\n\ttwo\n", FILE)
    assert persona.text == "one\n\ttwo"


async def test_the_personal_file_wins_when_it_has_changed_and_only_then(
    persona: Persona, database: Database, config: ConfigRegistry, clock: Clock
) -> None:
    assert await persona.import_personal_file("from the file")
    assert persona.describe()["origin"] == "personal.md"
    await persona.set("from the talk", CONVERSATION)
    again = await reloaded(database, config, clock)
    assert not await again.import_personal_file("from the file\n")
    assert again.text == "from the talk"
    assert await again.import_personal_file("from the file, edited")
    assert again.text == "from the file, edited"


async def test_the_choice_is_open_until_somebody_chooses(persona: Persona) -> None:
    assert persona.is_choice_open
    await persona.set("a pirate", CONVERSATION)
    assert not persona.is_choice_open
    assert not await persona.postpone(), "there is nothing to postpone"
    assert persona.describe()["choice"] == "custom"


async def test_the_default_is_a_choice_too(persona: Persona, clock: Clock) -> None:
    assert not await persona.reset(CONVERSATION)
    clock.now += 100 * ASK_AGAIN_AFTER_S
    assert (persona.is_choice_open, persona.describe()["choice"]) == (False, "default")


async def test_who_has_written_the_setting_has_chosen(persona: Persona, config: ConfigRegistry) -> None:
    await config.set(SETTING, "You are terse.")
    assert not persona.is_choice_open
    await config.unset(SETTING)
    assert persona.is_choice_open


async def test_later_means_in_a_week_by_the_clock_on_the_wall(
    persona: Persona, database: Database, config: ConfigRegistry, clock: Clock
) -> None:
    assert await persona.postpone()
    assert not persona.is_choice_open
    clock.now += ASK_AGAIN_AFTER_S - 1
    again = await reloaded(database, config, clock)
    assert not again.is_choice_open
    clock.now += 1
    assert again.is_choice_open
    assert await again.postpone()
    assert not again.is_choice_open


async def test_who_gives_up_waiting_does_not_part_what_is_stored_from_what_is_in_force(
    persona: Persona, database: Database, config: ConfigRegistry, clock: Clock
) -> None:
    setting = asyncio.create_task(persona.set("a pirate", COMMAND))
    await asyncio.sleep(0)
    setting.cancel()
    await asyncio.gather(setting, return_exceptions=True)
    await persona.set("a sailor", COMMAND)
    assert persona.describe(previous=True)["content"] == "a pirate"
    assert (await reloaded(database, config, clock)).describe() == persona.describe()


async def test_what_cannot_be_stored_changes_nothing(persona: Persona, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(database: Database, work: Any) -> Any:
        raise Unavailable("the disk is full") from apsw.FullError()

    monkeypatch.setattr(Database, "write", full)
    for change in (persona.set("a pirate", COMMAND), persona.reset(COMMAND), persona.postpone()):
        with pytest.raises(Unavailable):
            await change
    assert (persona.text, persona.is_choice_open) == (PERSONA, True)
