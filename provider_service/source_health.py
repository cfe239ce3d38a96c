"""What becomes of a source that fails: how long it rests, and what brings it back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from provider_service.errors import CallFailed, Fault

FIRST_REST_S = 30.0
LONGEST_REST_S = 1800.0
LONGEST_TOLD_REST_S = 86_400.0
"""The most that a source may ask for by Retry-After."""

PROBE_EVERY_S = 2.0
"""How often a resting source is tried all the same when no other is left."""

_MAX_DOUBLINGS = 6

State = Literal["ready", "cooling", "bad_key", "stopped"]

_BLAMELESS = frozenset({Fault.CONTEXT, Fault.REQUEST, Fault.BUSY, Fault.ADAPTER})
_MAY_PROBE = frozenset({Fault.OTHER, Fault.MODEL})


class SourceHealth:
    """The health of one source.

    :param monotonic: the clock, in seconds
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._fault: Fault | None = None
        self._reason = ""
        self._failures = 0
        self._failed_at = float("-inf")
        self._rests_until = float("-inf")
        self._tried_at = float("-inf")

    @property
    def state(self) -> State:
        """``ready``, ``cooling`` (rests), ``bad_key`` (until the key changes) or ``stopped`` (the model is refused)."""
        if self._fault is Fault.KEY:
            return "bad_key"
        if self.rest_s <= 0:
            return "ready"
        return "stopped" if self._fault is Fault.MODEL else "cooling"

    @property
    def reason(self) -> str:
        """Why it is not ready; empty if it is."""
        return "" if self.state == "ready" else self._reason

    @property
    def rest_s(self) -> float:
        """For how long it still rests, in seconds; infinite while its key is bad."""
        return float("inf") if self._fault is Fault.KEY else max(0.0, self._rests_until - self._monotonic())

    @property
    def may_be_probed(self) -> bool:
        """Whether it may be tried although it rests, because nothing else is left.

        A home network that was down for a minute must not leave its owner without an answer for the next thirty. A
        source that asked to be left alone, or refused the key, is left alone.
        """
        return self._fault in _MAY_PROBE and self._monotonic() - self._tried_at >= PROBE_EVERY_S

    def starts(self) -> float:
        """Note that a call starts; return its time for :meth:`failed`."""
        self._tried_at = self._monotonic()
        return self._tried_at

    def succeeded(self) -> None:
        """Note that a call was answered."""
        self._fault = None
        self._failures = 0
        self._rests_until = float("-inf")

    def failed(self, failure: CallFailed, started: float) -> None:
        """Note that the call begun at ``started`` failed.

        Of several calls that one outage ended, the first counts.
        """
        if failure.fault in _BLAMELESS or (self._fault is Fault.KEY and failure.fault is not Fault.KEY):
            return
        now = self._monotonic()
        if started >= self._failed_at:
            self._failures += 1
        self._failed_at = now
        self._fault = failure.fault
        self._reason = failure.reason
        self._rests_until = max(self._rests_until, now + self._rest_for(failure))

    def _rest_for(self, failure: CallFailed) -> float:
        if failure.retry_after_s is not None:
            return min(max(failure.retry_after_s, 0.0), LONGEST_TOLD_REST_S)
        if failure.fault is Fault.MODEL:
            return LONGEST_REST_S
        # The exponent is bounded, since two to the number of failures of a week overflows.
        return min(FIRST_REST_S * 2.0 ** min(self._failures - 1, _MAX_DOUBLINGS), LONGEST_REST_S)
