"""The steps after the model: before_output, emit, after_output."""

from __future__ import annotations

from kernel.turns.delivery import deliver
from kernel.turns.environment import TurnRun
from kernel.turns.frame import AFTER_OUTPUT, DONE, EMIT
from kernel.turns.outcome import finish


async def before_output(run: TurnRun) -> str:
    """Plugins see the final text; one may change or replace it, or have nothing sent."""
    frame = run.frame
    result = await run.run_stage("before_output", {"final_text": frame.final_text or ""})
    frame.final_text = str(result.fields["final_text"] if result.response is None else result.response)
    return EMIT


async def emit(run: TurnRun) -> str:
    """Give the turn its outcome, durably, and then tell those who follow it."""
    frame = run.frame
    if frame.kind == "self" and frame.final_text:
        await deliver(run, frame.final_text)
    await finish(run, "answer", frame.final_text or "")
    return AFTER_OUTPUT


async def after_output(run: TurnRun) -> str:
    """Plugins may watch what was sent."""
    await run.run_stage("after_output", {"final_text": run.frame.final_text or ""})
    return DONE
