"""Sends an answer that nobody waits for, such as a timer's, over the channel that its lane belongs to."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from homeagent_sdk.errors import HomeAgentError
from kernel.channels import OutputChannel
from kernel.turns.environment import TurnRun
from kernel.turns.own_tools import is_surely_not_sent, read_receipt

_ATTEMPTS: Final = 4
_TIMEOUT_S: Final = 10.0
_PAUSE_S: Final = 1.0
_log = structlog.get_logger("turns")


async def deliver(run: TurnRun, text: str) -> None:
    """Send the answer, and send it again while that cannot do harm; the lane's history has it in any case.

    Every attempt bears the same id, by which the sdk knows what it has sent already. A channel that must not be sent
    anything twice is not asked again once the answer may have left, be it before a crash of the kernel.
    """
    frame = run.frame
    for attempt in range(1, _ATTEMPTS + 1):
        if attempt > 1:
            await asyncio.sleep(_PAUSE_S * (attempt - 1))
        channel = run.environment.channels.output(frame.channel)
        if channel is None:
            _log.warning("no such output channel", channel=frame.channel, turn=frame.turn_id)
        elif not await _is_to_be_repeated(run, channel, text):
            return
    _log.error("an answer was not sent", channel=frame.channel, turn=frame.turn_id)


async def _is_to_be_repeated(run: TurnRun, channel: OutputChannel, text: str) -> bool:
    """Send once; returns whether sending again may help and cannot do harm."""
    frame, sends_once = run.frame, channel.redelivery == "at_most_once"
    if sends_once:
        if frame.is_sending:
            _log.warning("an answer may or may not have been sent", channel=frame.channel, turn=frame.turn_id)
            return False
        frame.is_sending = True
        await run.save()
    body = {
        "output_id": frame.turn_id,
        "channel": frame.channel,
        "payload": text,
        "type": "text",
        "meta": {},
        "conversation": frame.conversation,
        "principal": frame.principal,
    }
    try:
        receipt = await run.environment.bus.call(f"{channel.plugin}.output", body, timeout_s=_TIMEOUT_S)
    except HomeAgentError as error:
        _log.warning("output not confirmed", channel=frame.channel, turn=frame.turn_id, reason=str(error))
        frame.is_sending = sends_once and not is_surely_not_sent(error)
        return not frame.is_sending
    status, note = read_receipt(receipt)
    _log.info("output sent", channel=frame.channel, turn=frame.turn_id, status=status, note=note)
    frame.is_sending = False
    return status == "failed"
