"""What the model is sent: fixed part, timeline, memory, input, in this order, so that providers can cache."""

from kernel.prompt.builder import PromptBuilder, PromptParts
from kernel.prompt.timeline import PastTurn, Timeline, Timelines
from kernel.prompt.tokens import TokenCorrection, estimate_messages, estimate_tokens

__all__ = [
    "PastTurn",
    "PromptBuilder",
    "PromptParts",
    "Timeline",
    "Timelines",
    "TokenCorrection",
    "estimate_messages",
    "estimate_tokens",
]
