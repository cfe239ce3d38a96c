"""Moves a frame from step to step until it has its outcome. The whole life of a turn can be read here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
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
    SCHEMA_VERSION,
    TOOLS,
    TurnFrame,
)
from kernel.turns.outcome import close_with_recorded, finish, outcome_item
from kernel.turns.recording import NotRecorded

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
PAUSED: Final = "paused"
"""What the journal has for a step when the kernel was stopped on purpose; the frame knows the real one."""
MOST_CRASHES: Final = 2
"""How often the kernel may die at the same step of a turn before that step is taken to be what kills it."""
_log = structlog.get_logger("turns")


class Earlier(Enum):
    """What became of an unfinished turn when the kernel ran last."""

    WAITED = "it waited in its lane"
    PAUSED = "it ran, and the kernel was stopped on purpose"
    BROKEN_OFF = "it ran, and the kernel died"


class TurnMachine:
    """Runs turns."""

    def __init__(self, environment: TurnEnvironment) -> None:
        self._environment = environment
        self._feeds: dict[str, TurnFeed] = {}
        self._earlier: dict[str, Earlier] = {}
        self.is_closing = False
        """Set when the kernel stops: what happens to turns now stays out of the journal, and they go on after the
        next start."""

    def feed(self, turn_id: str) -> TurnFeed | None:
        """Return the live side of a turn that is not finished."""
        return self._feeds.get(turn_id)

    def expect(self, frame: TurnFrame, earlier: Earlier | None = None) -> None:
        """Make the turn followable; it waits in its lane.

        :param earlier: of a turn that was accepted before the kernel was started
        """
        self._feeds[frame.turn_id] = TurnFeed()
        if earlier is not None:
            self._earlier[frame.turn_id] = earlier

    async def run(self, frame: TurnFrame) -> None:
        """Run a turn from where it stands to its outcome."""
        run = TurnRun(frame, self._environment, self._feeds[frame.turn_id])
        current_trace.set(frame.trace)
        try:
            await self._begin(run)
            await self._go_on(run)
        except asyncio.CancelledError:
            if self.is_closing:
                await self._pause(run)
                raise
            await self._stopped(run)
        except Exception as error:
            if not self.is_closing:
                await self._failed(run, error)
        finally:
            self._let_go(run)

    async def withdraw(self, frame: TurnFrame) -> None:
        """Give a turn that was stopped before it began its outcome."""
        run = TurnRun(frame, self._environment, self._feeds[frame.turn_id])
        try:
            await self._stopped(run)
        finally:
            self._let_go(run)

    def _let_go(self, run: TurnRun) -> None:
        """Forget the live side; whoever followed it was told the outcome, or is told that there is a fault."""
        if self.is_closing:
            return
        if not run.feed.is_closed:
            problem = Internal(catalogue_text("kernel.turn_failed", turn=run.frame.turn_id))
            run.feed.close(outcome_item(run.frame, "error", "", problem))
        self._feeds.pop(run.frame.turn_id, None)

    # -- the way to the outcome ---------------------------------------------------------------------------------------

    async def _begin(self, run: TurnRun) -> None:
        frame, environment = run.frame, self._environment
        earlier = self._earlier.pop(frame.turn_id, None)
        if earlier is not None:
            await environment.plugins_back()
        if earlier is Earlier.PAUSED:
            await run.save()  # puts the real step back
        elif earlier is Earlier.BROKEN_OFF:
            crashes = await run.record(lambda: environment.journal.begin_attempt(frame.turn_id))
            if crashes >= MOST_CRASHES:
                raise Internal(catalogue_text("kernel.turn_kills_kernel", step=frame.step, attempts=crashes))
        run.feed.start()
        await run.publish("turn.started", {"channel": frame.channel, "conversation": frame.conversation})

    async def _go_on(self, run: TurnRun) -> None:
        frame = run.frame
        while frame.step != DONE:
            step, began = frame.step, time.perf_counter()
            frame.step = await STEPS[step](run)
            if step in SAVED_AFTER and not self._is_about_to_finish(frame):
                await run.save()
            run.step_ms[step] = run.step_ms.get(step, 0.0) + (time.perf_counter() - began) * 1000

    def _is_about_to_finish(self, frame: TurnFrame) -> bool:
        """Tell whether nothing stands between the model's answer and the record of it as the outcome."""
        stages = self._environment.stages
        is_plain = frame.step == POST_ACTION and not frame.calls and frame.kind == "user"
        return is_plain and not stages.handlers("post_action") and not stages.handlers("before_output")

    # -- ends that are no answer --------------------------------------------------------------------------------------

    async def _stopped(self, run: TurnRun) -> None:
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        run.frame.finish_reason = "stopped"
        await self._end(run, "stopped", run.feed.text, None)

    async def _failed(self, run: TurnRun, error: Exception) -> None:
        turn_id, step = run.frame.turn_id, run.frame.step
        run.frame.step = EMIT
        if isinstance(error, NotRecorded):
            self._not_recorded(run, error)
            return
        if isinstance(error, Conflict) and await self._is_finished(run):
            return
        if isinstance(error, HomeAgentError):
            _log.warning("turn ends with an error", turn=turn_id, step=step, reason=str(error))
        else:
            _log.error("turn failed", turn=turn_id, step=step, exc_info=error)
            error = Internal(catalogue_text("kernel.turn_failed", turn=turn_id))
        run.feed.reset()
        run.frame.finish_reason = "error"
        await self._end(run, "error", "", error)

    async def _is_finished(self, run: TurnRun) -> bool:
        """Tell whether the journal has an outcome for the turn; then it stands, and the followers are told it."""
        await close_with_recorded(run)
        return run.feed.is_closed

    async def _end(self, run: TurnRun, outcome: str, text: str, error: HomeAgentError | None) -> None:
        if run.feed.is_closed:
            return  # the outcome is recorded; only watching plugins had not been told yet
        run.frame.step = EMIT
        try:
            await finish(run, outcome, text, error)
        except NotRecorded as problem:
            self._not_recorded(run, problem)

    def _not_recorded(self, run: TurnRun, problem: NotRecorded) -> None:
        _log.error("the turn stays unfinished until the next start", turn=run.frame.turn_id, reason=str(problem))
        run.feed.close(outcome_item(run.frame, "error", "", problem))

    async def _pause(self, run: TurnRun) -> None:
        """Leave a turn for the next start, and note that it is not the turn that brings the kernel down."""
        journal, turn_id = self._environment.journal, run.frame.turn_id
        try:
            stored = await journal.get(turn_id)
            if stored is None or stored.outcome is not None:
                return
            packed, version = (run.saved, SCHEMA_VERSION) if run.saved else (stored.frame, stored.schema_version)
            await journal.save(turn_id, PAUSED, packed, schema_version=version)
        except HomeAgentError as error:
            _log.warning("a turn that is left for the next start was not marked", turn=turn_id, reason=str(error))
