"""The journal: every accepted input, durable before its sender is told so, until it has its one outcome."""

from kernel.journal.journal import Journal
from kernel.journal.records import (
    Accepted,
    Conversation,
    Counts,
    Forgotten,
    JournaledTurn,
    NewTurn,
    Selection,
    ToldTurn,
)

__all__ = [
    "Accepted",
    "Conversation",
    "Counts",
    "Forgotten",
    "Journal",
    "JournaledTurn",
    "NewTurn",
    "Selection",
    "ToldTurn",
]
