"""What recall and the context window ask of vectors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, Protocol

QUESTION_PATIENCE_S: Final = 0.25
"""How long a question waits for its vector; then words answer alone. A loaded encoder takes a few milliseconds."""


class Meaning(Protocol):
    """One question's vector, ready to be compared with what is stored.

    :ivar enough: how near a meaning must be to count as a record of the question, a cosine
    """

    enough: float

    async def nearest(
        self, audiences: Collection[int] | None, counts: Mapping[str, int]
    ) -> Mapping[str, Mapping[int, float]]:
        """Return the nearest items of each kind: cosine by number.

        :param audiences: only what these audiences may see, by number; None: everything
        :param counts: how many of each kind (``event``, ``note``, ``fact``)
        """

    async def cosines(self, numbers: Mapping[str, Collection[int]]) -> Mapping[str, Mapping[int, float]]:
        """Return how near these items are, by kind and number; what has no vector yet is left out."""


class Meanings(Protocol):
    """Makes vectors of questions."""

    async def of(self, text: str, patience_s: float = QUESTION_PATIENCE_S) -> Meaning | None:
        """Return a question's meaning; None if no encoder is ready, so that nobody waits for one to load.

        :param patience_s: how long to wait at most; of somebody who is patient, also until an encoder has loaded
        """
