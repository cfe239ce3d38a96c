"""Moves a frame from step to step until it has its outcome. The whole life of a turn can be read here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import structlog

from homeagent_sdk.bus.context import current_trace
from homeagent_sdk.catalogue import text as catalogue_text
from homeagent_sdk.errors import Conflict, HomeAgentError, Internal
from kernel.turns import input_steps, model_steps, output_steps, tool_steps
from kernel.turns.environment import TurnEnvironment, TurnRun
from kernel.turns.feed import TurnFeed
from kernel.turns.frame import (
    AFTER_OUTPUT,
    BEFORE_OUTPUT,
    DONE,
    EMIT,
    LLM,
    ON_INPUT,
    POST_ACTION,
    PRE_ACTION,
    RECALL,
    RECEIVED,
    TOOLS,
    TurnFrame,
)

Step = Callable[[TurnRun], Awaitable[str]]

STEPS: Final[Mapping[str, Step]] = {
    RECEIVED: input_steps.receive,
    ON_INPUT: input_steps.on_input,
    RECALL: input_steps.recall,
    PRE_ACTION: input_steps.pre_action,
    LLM: model_steps.ask,
    POST_ACTION: model_steps.post_action,
    TOOLS: tool_steps.run_batch,
    BEFORE_OUTPUT: output_steps.before_output,
    EMIT: output_steps.emit,
    AFTER_OUTPUT: output_steps.after_output,
}
"""Step → the function that does it and names the next one."""
SAVED_AFTER: Final = frozenset({LLM, TOOLS})
"""Steps whose result is recorded before the next one begins: repeating them would cost money or do something twice. The
others give the same result again. An answer that nobody has still to see or change is recorded with the outcome."""
MOST_RESUMES: Final = 2
"""How often a turn may be taken up again at the same step; beyond, that step is taken to be what kills the kernel."""
_log = structlog.get_logger("turns")


class TurnMachine:
    """Runs turns."""

    def __init__(self, environment: TurnEnvironment) -> None:
        self._environment = environment
        self._feeds: dict[str, TurnFeed] = {}
        self._resumed: set[str] = set()
        self.is_closing = False
        """Set when the kernel stops: turns that are cancelled now stay unfinished and go on after the next start."""

    def feed(self, turn_id: str) -> TurnFeed | None:
        """Return the live side of a turn that is not finished."""
        return self._feeds.get(turn_id)

    def expect(self, frame: TurnFrame, *, is_resumed: bool = False) -> None:
        """Make the turn followable; it waits in its lane."""
        self._feeds[frame.turn_id] = TurnFeed()
        if is_resumed:
            self._resumed.add(frame.turn_id)

    async def run(self, frame: TurnFrame) -> None:
        """Run a turn from where it stands to its outcome."""
        run = TurnRun(frame, self._environment, self._feeds[frame.turn_id])
        current_trace.set(frame.trace)
        try:
            await self._run(run)
        except asyncio.CancelledError:
            if self.is_closing:
                raise
            await self._stopped(run)
        except Conflict as error:
            _log.error("the turn has an outcome already", turn=frame.turn_id, reason=str(error))
        except HomeAgentError as error:
            await self._failed(run, error)
        except Exception:
            _log.exception("turn failed", turn=frame.turn_id, step=frame.step)
            await self._failed(run, Internal(catalogue_text("kernel.turn_failed", turn=frame.turn_id)))
        finally:
            if not self.is_closing:
                self._feeds.pop(frame.turn_id, None)

    async def _run(self, run: TurnRun) -> None:
        frame, environment = run.frame, self._environment
        if frame.turn_id in self._resumed:
            self._resumed.discard(frame.turn_id)
            attempts = await environment.journal.begin_attempt(frame.turn_id)
            if attempts > MOST_RESUMES:
                raise Internal(catalogue_text("kernel.turn_kills_kernel", step=frame.step, attempts=attempts))
        run.feed.start()
        await run.publish("turn.started", {"channel": frame.channel, "conversation": frame.conversation})
        while frame.step != DONE:
            step, began = frame.step, time.perf_counter()
            frame.step = await STEPS[step](run)
            if step in SAVED_AFTER and not self._is_about_to_finish(frame):
                await run.save()
            run.step_ms[step] = run.step_ms.get(step, 0.0) + (time.perf_counter() - began) * 1000
        _log.debug("turn done", turn=frame.turn_id, **{name: round(ms, 2) for name, ms in run.step_ms.items()})

    def _is_about_to_finish(self, frame: TurnFrame) -> bool:
        stages = self._environment.stages
        is_plain = frame.step == POST_ACTION and not frame.calls and frame.kind == "user"
        return is_plain and not stages.handlers("post_action") and not stages.handlers("before_output")

    async def _stopped(self, run: TurnRun) -> None:
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        run.frame.finish_reason = "stopped"
        await self._finish(run, "stopped", run.feed.text, None)

    async def _failed(self, run: TurnRun, error: HomeAgentError) -> None:
        _log.warning("turn ends with an error", turn=run.frame.turn_id, step=run.frame.step, reason=str(error))
        run.frame.finish_reason = "error"
        run.feed.reset()
        await self._finish(run, "error", "", error)

    async def _finish(self, run: TurnRun, outcome: str, text: str, error: HomeAgentError | None) -> None:
        if run.frame.step in (AFTER_OUTPUT, DONE):
            return  # the outcome is recorded; only watching plugins had not been told yet
        try:
            await output_steps.finish(run, outcome, text, error)
        except Conflict as conflict:
            _log.error("the turn has an outcome already", turn=run.frame.turn_id, reason=str(conflict))
        except HomeAgentError as problem:
            _log.error("the outcome cannot be recorded", turn=run.frame.turn_id, reason=str(problem))
            run.feed.close(output_steps.outcome_item(run.frame, "error", "", problem))
