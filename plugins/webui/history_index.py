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
    """A conversation as it stood after a message."""

    digest: bytes
    """Stands for the principal and all messages up to there."""
    conversation: str
    is_head: bool
    """Nothing was said in the conversation after it."""


class HistoryIndex:
    """Points of conversations, by digest. In memory; the points that it returns have to be kept by the caller."""

    def __init__(self, points: Iterable[Point] = ()) -> None:
        self._points: OrderedDict[bytes, tuple[str, ...]] = OrderedDict()
        self._heads: dict[str, bytes] = {}
        self._count = 0
        for point in points:
            self._add(point)

    def __len__(self) -> int:
        return self._count

    def find(self, principal: str, history: Sequence[Message]) -> str | None:
        """Return the conversation that the history belongs to.

        The longest known beginning decides, since a client may hold an answer that was cut off. Where two conversations
        began with the same words, the one in which nothing else was said since is meant.
        """
        for digest in reversed(_digests(principal, history)):
            newest_first = self._points.get(digest)
            if newest_first:
                self._points.move_to_end(digest)
                return next((c for c in newest_first if self._heads.get(c) == digest), newest_first[0])
        return None

    def asked(self, principal: str, messages: Sequence[Message], conversation: str) -> Point:
        """Remember that the last of ``messages`` was put to the agent in ``conversation``.

        From now on nothing else is taken for the conversation's next message.
        """
        self._heads.pop(conversation, None)
        point = Point(_digests(principal, messages)[-1], conversation, False)
        self._add(point)
        return point

    def answered(self, principal: str, messages: Sequence[Message], answer: str, conversation: str) -> Point:
        """Remember that the last of ``messages`` was answered."""
        point = Point(_digests(principal, [*messages, ("assistant", answer)])[-1], conversation, True)
        self._add(point)
        return point

    def forget(self, point: Point) -> None:
        """Forget a point; that of a question is not needed once the client has the whole answer."""
        known = self._points.get(point.digest, ())
        if point.conversation in known:
            self._count -= 1
            others = tuple(each for each in known if each != point.conversation)
            if others:
                self._points[point.digest] = others
            else:
                del self._points[point.digest]

    def _add(self, point: Point) -> None:
        known = self._points.get(point.digest, ())
        if point.conversation not in known:
            self._count += 1
        others = tuple(each for each in known if each != point.conversation)
        self._points[point.digest] = (point.conversation, *others)
        self._points.move_to_end(point.digest)
        if point.is_head:
            self._heads[point.conversation] = point.digest
        while self._count > POINTS:
            digest, forgotten = self._points.popitem(last=False)
            self._count -= len(forgotten)
            for conversation in forgotten:
                if self._heads.get(conversation) == digest:
                    del self._heads[conversation]


def _digests(principal: str, history: Sequence[Message]) -> list[bytes]:
    """Return a digest for each message: of the principal and all up to and with that message."""
    chain = hashlib.sha256(principal.encode("utf-8", "replace"))
    digests = []
    for role, text in history:
        data = text.strip().encode("utf-8", "replace")
        chain.update(f"\x00{role}\x00{len(data)}\x00".encode())
        chain.update(data)
        digests.append(chain.digest()[:_DIGEST_BYTES])
    return digests
