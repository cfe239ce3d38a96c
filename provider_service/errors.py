"""What can go wrong between a request and its answer, before it is told to the caller as an error of the sdk."""

from __future__ import annotations

from enum import StrEnum


class Fault(StrEnum):
    """Whose fault a failed call was, and so what becomes of the source."""

    KEY = "key"
    """The key was refused: not used again until it is changed."""
    MODEL = "model"
    """This model was refused or does not exist: the source rests, its key is good."""
    RATE = "rate"
    """Too many requests: the source rests as long as it says."""
    CONTEXT = "context"
    """The prompt is too long for the model: no fault of the source."""
    REQUEST = "request"
    """The API refuses this request: no fault of the source."""
    BUSY = "busy"
    """All slots of the source stayed taken: no fault of the source."""
    ADAPTER = "adapter"
    """The adapter script failed: no fault of the source, and cured by editing the script."""
    OTHER = "other"
    """Anything else, such as no connection or a server error: the source rests, longer each time."""


class CallFailed(Exception):
    """Raised when one source did not answer one request.

    :param fault: what kind of failure it was
    :param reason: a few words for a person, without secrets
    :param status: the HTTP status, if there was one
    :param retry_after_s: how long the source asked to be left alone
    """

    def __init__(
        self, fault: Fault, reason: str, *, status: int | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(reason)
        self.fault = fault
        self.reason = reason
        self.status = status
        self.retry_after_s = retry_after_s


class AdapterError(Exception):
    """Raised when an adapter script fails, hangs, or is missing; ``is_upstream``: it was given nonsense to read."""

    def __init__(self, message: str, *, is_upstream: bool = False) -> None:
        super().__init__(message)
        self.is_upstream = is_upstream


class Disconnected(Exception):
    """Raised when the connection to a source broke; ``was_reused`` if it had idled since an earlier call."""

    def __init__(self, reason: str, *, was_reused: bool = False) -> None:
        super().__init__(reason)
        self.was_reused = was_reused
