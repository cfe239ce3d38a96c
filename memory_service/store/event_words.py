"""The words of an event: what of it stands in the index, and how they get there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import apsw

from memory_service.model import ToolResult
from memory_service.words.days import day_of
from memory_service.words.tokenizer import written

INDEXED_TOOL_CHARACTERS = 8_000
"""So much of an event's tool output is searchable; all of it is kept. Longer outputs would drown what was said."""

Words = tuple[str, str, str, str]
"""Of what was said, of the reply, of tool output, and of speaker and day: the columns of ``event_words``."""

_INSERT = "INSERT INTO event_words (rowid, said, reply, tools, about) VALUES (?, ?, ?, ?, ?)"
_TEXTS = "SELECT number, input, response, tool_results, speaker, time FROM event"


def words_of(said: str, reply: str, results: Iterable[ToolResult], speaker: str, time: float) -> Words:
    """Cut the texts of an event into tokens; takes a while for long ones, so it is done outside the transaction.

    :param results: those that want no memory are left out
    :param time: when it happened, seconds since 1970
    """
    tools = "\n".join(f"{result.name} {result.output}" for result in results if not result.no_memory)
    about = f"{_name(speaker)} {day_of(time)}"
    return written(said), written(reply), written(tools[:INDEXED_TOOL_CHARACTERS]), about


@lru_cache(maxsize=1_024)
def _name(speaker: str) -> str:
    return written(speaker)


def write_words(connection: apsw.Connection, number: int, words: Words) -> None:
    """Write the words of an event that has none in the index, inside the caller's transaction."""
    connection.execute(_INSERT, (number, *words))


def write_all_words(connection: apsw.Connection) -> None:
    """Fill an empty index with the words of all events, inside the caller's transaction."""
    for number, words in _of_rows(connection.execute(_TEXTS)):
        write_words(connection, number, words)


def write_words_anew(connection: apsw.Connection, numbers: Sequence[int]) -> None:
    """Write the words of stored events into the index as if for the first time."""
    chosen = json.dumps(list(numbers))
    found = list(connection.execute(f"{_TEXTS} WHERE number IN (SELECT value FROM json_each(?))", (chosen,)))
    for number, words in _of_rows(found):
        connection.execute("DELETE FROM event_words WHERE rowid = ?", (number,))
        write_words(connection, number, words)


def _of_rows(found: Iterable[tuple[int, str, str, str, str, float]]) -> Iterator[tuple[int, Words]]:
    for number, said, reply, results, speaker, time in found:
        told = [ToolResult(each["name"], each["output"], each["no_memory"]) for each in json.loads(results)]
        yield number, words_of(said, reply, told, speaker, time)
