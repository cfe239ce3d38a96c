"""What the exit codes of ``homeagent`` mean."""

from __future__ import annotations

from homeagent_sdk.errors import Conflict, Denied, HomeAgentError, Invalid, NotFound, Unavailable

OK = 0
FAILED = 1
USAGE = 2
CONFIGURATION = 3
NOT_RUNNING = 4
DENIED = 5


class NotRunning(Unavailable):
    """Raised when a command needs a running HomeAgent and there is none."""


_BY_ERROR: tuple[tuple[type[BaseException], int], ...] = (
    (NotRunning, NOT_RUNNING),
    (Denied, DENIED),
    (Invalid, CONFIGURATION),
    (Conflict, CONFIGURATION),
    (NotFound, FAILED),
    (HomeAgentError, FAILED),
)


def exit_code_of(error: BaseException) -> int:
    """Return the exit code that tells a script what kind of error this was."""
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), FAILED)
