"""Errors of the kernel itself; all other errors are those of :mod:`homeagent_sdk.errors`."""

from __future__ import annotations

from homeagent_sdk.errors import Unavailable


class RequiredHandlerFailed(Unavailable):
    """Raised when a stage handler without which no turn may go on crashed, was late, answered badly or is not there.

    :param plugin: whose handler it is
    :param stage: the stage that it guards
    :param reason: what was wrong with it
    """

    def __init__(self, plugin: str, stage: str, reason: str) -> None:
        super().__init__(
            f"the plugin {plugin} must approve {stage} and did not: {reason}",
            hint=f"look at the log of {plugin}; `homeagent plugin restart {plugin}` starts it again",
            detail={"plugin": plugin, "stage": stage},
        )
