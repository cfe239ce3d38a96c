"""What the memory service asks of a store. Any other store must pass the same tests (``tests/memory_service/store``).

A store is opened by ``__main__`` and called from one event loop, by any number of tasks at once. No method blocks the
loop. Every method may raise :class:`~homeagent_sdk.errors.Unavailable` if the medium fails (full, broken, gone), with
its path and what to do, and :class:`~homeagent_sdk.errors.Overloaded` if too many requests wait already. What a method
wrote is safe on the medium when it returns, all of it or nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from memory_service.model import (
    Deleted,
    Document,
    Event,
    InContext,
    LogPosition,
    Note,
    NoteSearch,
    Report,
    Search,
    Selected,
    Selection,
    Stats,
    Term,
    ToEmbed,
)
from memory_service.store.graph_abc import GraphStore, MediaStore, SceneStore


class EventStore(Protocol):
    """Keeps events, in whichever tier, and finds them by their words."""

    async def append(self, event: Event) -> bool:
        """Store an event with its words, in the context.

        Called once for each finished turn, and again when the caller does not know whether it succeeded.

        :returns: True if it is new, False if an event with this id was there already (which is then left as it is)
        """

    async def append_many(self, events: Sequence[Event]) -> int:
        """Store events that happened elsewhere, giving way to live appends; those known already are left as they are.

        :returns: how many were new
        """

    async def get(self, ids: Collection[str]) -> tuple[Event, ...]:
        """Return events, oldest first; unknown ids are left out."""

    async def by_number(self, numbers: Collection[int], audience: Collection[str] | None) -> Mapping[int, Event]:
        """Return the events with these numbers that every one of the principals may see."""

    async def missing(self, ids: Collection[str]) -> tuple[str, ...]:
        """Return those of the ids that no event has."""

    async def find(
        self, terms: Sequence[Term], audience: Collection[str] | None, exclude: Collection[str], limit: int
    ) -> Search:
        """Find the events that have at least one of the terms, best first, in every tier; never waits for a writer.

        :param audience: only events that every one of these principals may see; None for all events, which only an
            operator may ask for; never empty
        :param exclude: ids of events to leave out
        :param limit: how many candidates at most
        """

    async def relevance(self, terms: Sequence[Term], numbers: Collection[int]) -> Mapping[int, float]:
        """Return how well these events fit the terms, by number, greater is better; one with no term is left out."""

    async def audiences(self, asking: Collection[str]) -> tuple[int, ...]:
        """Return the numbers of the audiences whose memories every one of these principals may see."""

    async def in_context(self, principal: str, audience: Collection[str], limit: int) -> tuple[InContext, ...]:
        """Return the newest events of a person's context that the audience may see, of all lanes, newest first."""


class DocumentStore(Protocol):
    """Keeps what has left the context, and notes."""

    async def archive(self, events: Collection[str], principal: str) -> tuple[Document, ...]:
        """Move events from the context into new documents, one for each audience; those not in the context stay.

        :param principal: whose context it was
        :returns: the documents made; empty if nothing moved
        """

    async def bring_back(self, events: Collection[str]) -> tuple[str, ...]:
        """Move events from wherever they are back into the context, each at its own time; a deliberate read.

        Documents that are left without events vanish, the others count one read.

        :returns: the ids of the events that moved
        """

    async def write_note(self, note: Note) -> bool:
        """Store a note, or replace the one with its id; False if it stood there already, word for word."""

    async def get(self, ids: Collection[str]) -> tuple[Document, ...]:
        """Return documents, oldest first; unknown ids are left out."""

    async def count_read(self, ids: Collection[str]) -> None:
        """Somebody read these documents on purpose."""

    async def find_notes(self, terms: Sequence[Term], audience: Collection[str] | None, limit: int) -> NoteSearch:
        """Find notes by words, best first; see :meth:`EventStore.find`."""

    async def notes_by_number(self, numbers: Collection[int], audience: Collection[str] | None) -> Mapping[int, Note]:
        """Return the notes with these numbers that every one of the principals may see."""


class VectorStore(Protocol):
    """Keeps vectors, each in the space of the encoder that made it, and knows what has none yet."""

    async def open_space(self, fingerprint: str, encoder: str, dimensions: int) -> int:
        """Return the number of a space; a new one puts everything that is stored into the queue."""

    async def last_space(self) -> tuple[str, str, int] | None:
        """Return the space that was opened last: encoder, fingerprint, dimensions; None if there is none."""

    async def queued(self, limit: int) -> tuple[ToEmbed, ...]:
        """Return what waits for a vector, the newest first, with its texts."""

    async def put(self, space: int, items: Sequence[tuple[ToEmbed, Mapping[str, bytes]]]) -> tuple[ToEmbed, ...]:
        """Store the codes of items, by part, and take the items out of the queue; what is gone meanwhile is left out.

        :returns: the items that are stored
        """

    async def load(self, space: int, after: int, limit: int) -> Sequence[tuple[int, str, int, int, str, bytes]]:
        """Return stored vectors in the order of their row: row, kind, item, audience, part, code.

        :param after: the last row that was read before, 0 to begin
        """

    async def waiting(self) -> int:
        """Return how many items wait for a vector."""


class Forgetting(Protocol):
    """Makes what is stored as if it had never been, in steps that may be repeated at any time.

    Called one after another: :meth:`delete`, what lies outside the store, :meth:`erase`, :meth:`settle`. An event that
    was forgotten cannot be appended again: the digest of its id is kept.
    """

    async def select(self, selection: Selection, examples: int) -> Selected:
        """Count what a selection holds, and show so many of its newest events."""

    async def lanes(self, ids: Collection[str]) -> Mapping[str, tuple[str, str, str]]:
        """Return the events with these ids, and those of the archives with these ids: channel, principal, conversation.

        The keys are the events' ids.
        """

    async def delete(self, selection: Selection) -> Deleted:
        """Delete what is selected and all that hangs on it: words, vectors, notes, relations, documents left empty."""

    async def forgotten(self, ids: Collection[str]) -> frozenset[str]:
        """Return those of the ids whose event was forgotten."""

    async def is_settled(self) -> bool:
        """Say whether everything that was forgotten is gone for good; False after a crash in the middle."""

    async def media(self) -> tuple[str, ...]:
        """Return the digests of media whose bytes are to be deleted since nothing holds them any more."""

    async def erase(self) -> bool:
        """Write over what the store's files still hold of deleted rows.

        :returns: False if questions under way kept a part from being erased; then it is not settled yet
        """

    async def settle(self) -> None:
        """Record that nothing is left of what was forgotten until now."""


class LogStore(Protocol):
    """Keeps how far the readable log of conversations has come, beside the events that it must be in step with."""

    async def position(self) -> LogPosition | None:
        """Return the position that was confirmed last; None if there never was one."""

    async def confirm(self, position: LogPosition) -> None:
        """Record a position; what stands before it in the file is safe on the medium."""

    async def following(self, after: int, limit: int, characters: int) -> Sequence[tuple[int, Event]]:
        """Return the events after a number, in the order in which they were stored.

        :param characters: about so many at most, but one event at least
        """

    async def newest(self) -> int:
        """Return the number of the event that was stored last, 0 if there is none."""


class Upkeep(Protocol):
    """What the operator asks of the store as a whole."""

    async def stats(self) -> Stats:
        """Count what there is."""

    async def describe(self, id: str) -> Mapping[str, Any] | None:
        """Return everything that is stored about an event, document, note or relation; None if there is none."""

    async def verify(self, progress: Callable[[int, int], None]) -> Report:
        """Look at everything that is stored; takes about a second for 20,000 events, and holds up nobody.

        :param progress: called now and then with how many of how many steps are done
        """

    async def repair(self) -> Mapping[str, int]:
        """Make anew what is only derived and found wanting: words and places in the queue; drop what hangs on nothing.

        :returns: how many rows were written or deleted, by the check that had found them wanting
        """


class Backup(Protocol):
    """Makes copies of the whole store for a backup; see :class:`homeagent_sdk.snapshots.Copies`."""

    def hold(self, backup: str) -> AsyncGenerator[dict[str, Any], None]:
        """Freeze what is committed, copy it, and keep the copy until the iterator is closed."""


class Store(Protocol):
    """The memory's store, by what lies in it."""

    @property
    def events(self) -> EventStore:
        """Events: turns, word for word."""

    @property
    def documents(self) -> DocumentStore:
        """Archives and notes."""

    @property
    def graph(self) -> GraphStore:
        """Facts."""

    @property
    def scenes(self) -> SceneStore:
        """Recurring situations."""

    @property
    def media(self) -> MediaStore:
        """Pictures, sounds and other bytes."""

    @property
    def vectors(self) -> VectorStore:
        """Vectors and the queue for them."""

    @property
    def forgetting(self) -> Forgetting:
        """Deleting for good."""

    @property
    def log(self) -> LogStore:
        """The place of the log of conversations."""

    @property
    def upkeep(self) -> Upkeep:
        """The store as a whole."""

    @property
    def backup(self) -> Backup:
        """Copies of the whole."""

    def health(self) -> dict[str, object]:
        """Say how the store is, at once and without touching the medium: ``state`` (running or failed), ``reason``."""

    async def close(self) -> None:
        """Finish the writes that were accepted, and close; called once, last."""
