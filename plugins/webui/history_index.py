"""Recognises a conversation by the history that a client sends along.

OpenAI clients have no name for a conversation: they send all of it, each time. After each answer the messages so far
are hashed into one value, which stands for the conversation at that point; the next request begins with the same ones.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Message = tuple[str, str]
"""Role (user or assistant) and text."""

POINTS = 10_000
"""How many points are remembered; the ones used longest ago are forgotten first."""

_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Point:
    """A conversation as it stood after an answer."""

    digest: bytes
    """Stands for the principal and all messages up to there."""
    conversation: str
    is_head: bool
    """Nothing was said in the conversation after it."""


class HistoryIndex:
    """Points of conversations, by digest. In memory; what :meth:`record` returns has to be kept by the caller."""

    def __init__(self, points: Iterable[Point] = ()) -> None:
        self._points: OrderedDict[bytes, dict[str, None]] = OrderedDict()
        self._heads: dict[str, bytes] = {}
        self._count = 0
        for point in points:
            self._add(point)

    def find(self, principal: str, history: Sequence[Message]) -> str | None:
        """Return the conversation that the history belongs to.

        The longest known beginning decides, since a client may hold an answer that was cut off. Where two conversations
        began with the same words, the one in which nothing else was said since is meant.
        """
        for digest in reversed(_digests(principal, history)):
            conversations = self._points.get(digest)
            if conversations:
                self._points.move_to_end(digest)
                newest_first = list(reversed(conversations))
                return next((c for c in newest_first if self._heads.get(c) == digest), newest_first[0])
        return None

    def claim(self, conversation: str) -> None:
        """Note that a conversation goes on, so that a request at the same moment does not take it for its own."""
        self._heads.pop(conversation, None)

    def record(
        self, principal: str, history: Sequence[Message], conversation: str, answers: Sequence[str]
    ) -> list[Point]:
        """Remember that ``history`` of ``conversation`` was answered, and return the new points.

        :param answers: the answer as the client may hold it: cut off where its connection ended; last, in full
        """
        points = []
        for number, answer in enumerate(answers, start=1):
            digests = _digests(principal, [*history, ("assistant", answer)])
            point = Point(digests[-1], conversation, number == len(answers))
            self._add(point)
            points.append(point)
        return points

    def _add(self, point: Point) -> None:
        conversations = self._points.setdefault(point.digest, {})
        self._points.move_to_end(point.digest)
        if point.conversation not in conversations:
            conversations[point.conversation] = None
            self._count += 1
        if point.is_head:
            self._heads[point.conversation] = point.digest
        while self._count > POINTS:
            digest, forgotten = self._points.popitem(last=False)
            self._count -= len(forgotten)
            for conversation in forgotten:
                if self._heads.get(conversation) == digest:
                    del self._heads[conversation]


def _digests(principal: str, history: Sequence[Message]) -> list[bytes]:
    """Return a digest for each assistant message: of the principal and all up to and with that message."""
    chain = hashlib.sha256(principal.encode("utf-8", "replace"))
    digests = []
    for role, text in history:
        data = text.strip().encode("utf-8", "replace")
        chain.update(f"\x00{role}\x00{len(data)}\x00".encode())
        chain.update(data)
        if role == "assistant":
            digests.append(chain.digest()[:_DIGEST_BYTES])
    return digests
