"""Runs the handlers that plugins registered for a stage, so that no change is lost and timing decides nothing.

Handlers are ordered by (priority, plugin name), the lower first. A handler waits for those before it that change one of
*its* fields, and sees the fields as the stage began plus all that these made; handlers that share no field run at
the same time. Since all writers of a field stand in one chain, the outcome is the same however long each of them takes.
A handler that changes nothing watches: it sees the fields as the stage began, and what it returns is refused.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from homeagent_sdk.errors import HomeAgentError, TimedOut
from kernel.errors import RequiredHandlerFailed
from kernel.stage_handlers import GLOBAL, OWN_TOOLS, StageHandler, StageSpec, check_handlers
from kernel.stages import FIELD_KINDS, RESPONSE, STAGES

__all__ = ["Invoke", "Skipped", "StageHandler", "StageHost", "StageResult", "StageSpec"]

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A handler whose work was not used: ``reason`` is late, crashed, refused or absent; ``detail`` says more."""

    plugin: str
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class StageResult:
    """What a stage made of its fields.

    :ivar fields: the fields with all changes, without ``response``
    :ivar response: what cuts the turn short here, as :class:`kernel.stages.ResponseMeaning` says, or None
    :ivar ran: the plugins whose handlers did their work, in order
    :ivar skipped: those whose handlers did not, in order
    """

    fields: Mapping[str, Any]
    response: str | None = None
    ran: tuple[str, ...] = ()
    skipped: tuple[Skipped, ...] = ()


Invoke = Callable[[StageHandler, Mapping[str, Any], Mapping[str, Any]], Awaitable[Any]]
"""Calls a handler with (fields, context) and returns ``{"changes": {field: value}, "response": text or None}``.

The handler must get copies of the values, as it does over the bus."""


@dataclass(frozen=True, slots=True)
class _Step:
    handler: StageHandler
    after: tuple[int, ...]
    """Positions in the plan of the handlers that must be done before this one."""


_Plan = tuple[_Step, ...]
_Made = dict[str, tuple[int, Any]]
"""Field → (position of the handler that wrote it last, value)."""


class StageHost:
    """The registered handlers of all stages. Used from one event loop."""

    def __init__(self) -> None:
        self._handlers: dict[str, tuple[StageHandler, ...]] = {}
        self._absent: set[str] = set()
        self._plans: dict[tuple[str, str | None], _Plan] = {}
        self.counts: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        """(plugin, stage) → how often its handler ``ran``, and was skipped as late, crashed, refused or absent."""

    def register(
        self,
        plugin: str,
        tier: str,
        specs: Iterable[StageSpec],
        *,
        grants: Mapping[str, frozenset[str]] | None = None,
    ) -> None:
        """Replace all handlers of a plugin by these, or change nothing.

        :param grants: stage → the fields that the plugin's manifest lets it change; None: all
        :raises Invalid: a handler asks for what its stage does not offer
        :raises Denied: a handler asks for what the manifest does not grant
        """
        handlers = tuple(StageHandler(plugin, tier, spec) for spec in specs)
        check_handlers(handlers, grants)
        self._handlers[plugin] = handlers
        self._absent.discard(plugin)
        self._plan()

    def unregister(self, plugin: str, *, keep_required: bool = False) -> None:
        """Take out all handlers of a plugin; nothing happens if it has none.

        :param keep_required: for a plugin that died and will be started again: its ``required`` handlers stay and end
            every turn that reaches them, until it registers anew. Otherwise a crash would open what they guard
        """
        handlers = self._handlers.pop(plugin, ())
        kept = tuple(handler for handler in handlers if handler.spec.required) if keep_required else ()
        if kept:
            self._handlers[plugin] = kept
            self._absent.add(plugin)
        else:
            self._absent.discard(plugin)
        self._plan()

    def handlers(self, stage: str, tool_owner: str | None = None) -> tuple[StageHandler, ...]:
        """Return the handlers that :meth:`run` would call, in order; none: the stage need not be prepared."""
        return tuple(step.handler for step in self._plan_for(stage, tool_owner))

    async def run(
        self,
        stage: str,
        fields: Mapping[str, Any],
        context: Mapping[str, Any],
        invoke: Invoke,
        *,
        tool_owner: str | None = None,
    ) -> StageResult:
        """Run the handlers of a stage.

        :param tool_owner: in a tool stage, the plugin that the tool belongs to; no other gets it by ``own_tools``
        :raises RequiredHandlerFailed: a required handler did not do its work; the turn must end
        """
        plan = self._plan_for(stage, tool_owner)
        if not plan:
            return StageResult(fields)
        return await _Run(self, stage, plan, fields, context, invoke).result()

    def _plan_for(self, stage: str, tool_owner: str | None) -> _Plan:
        plan = self._plans.get((stage, tool_owner))
        return plan if plan is not None else self._plans.get((stage, None), ())

    def _plan(self) -> None:
        """Work out the order in every stage: for everybody's tools, and for each plugin that watches over its own."""
        self._plans = {}
        for stage in STAGES:
            everyone = [h for handlers in self._handlers.values() for h in handlers if h.spec.stage == stage]
            owners = [h.plugin for h in everyone if h.spec.scope == OWN_TOOLS]
            for owner in (None, *owners):
                chosen = [h for h in everyone if h.spec.scope == GLOBAL or h.plugin == owner]
                self._plans[stage, owner] = _plan_of(chosen)


def _plan_of(handlers: Iterable[StageHandler]) -> _Plan:
    steps: list[_Step] = []
    last_writer: dict[str, int] = {}
    for position, handler in enumerate(sorted(handlers, key=lambda each: each.order)):
        after = {last_writer[name] for name in handler.spec.changes if name in last_writer}
        steps.append(_Step(handler, tuple(sorted(after))))
        last_writer.update(dict.fromkeys(handler.spec.changes, position))
    return tuple(steps)


@dataclass(slots=True)
class _Run:
    """One run of one stage."""

    host: StageHost
    stage: str
    plan: _Plan
    fields: Mapping[str, Any]
    context: Mapping[str, Any]
    invoke: Invoke
    made: dict[int, _Made] = field(default_factory=dict)
    """Position → what the handler there made, and all before it on whom it depends."""
    skipped: dict[int, Skipped] = field(default_factory=dict)

    async def result(self) -> StageResult:
        if len(self.plan) == 1:
            await self._step(0)
        else:
            await self._all_steps()
        values = _latest(self.made.values())
        response = values.pop(RESPONSE, None)
        return StageResult(
            fields={**self.fields, **values},
            response=response,
            ran=tuple(s.handler.plugin for position, s in enumerate(self.plan) if position not in self.skipped),
            skipped=tuple(self.skipped[position] for position in sorted(self.skipped)),
        )

    async def _all_steps(self) -> None:
        tasks: list[asyncio.Task[None]] = []
        for position, step in enumerate(self.plan):
            before = [tasks[each] for each in step.after]
            tasks.append(asyncio.create_task(self._step_after(position, before)))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in tasks:
                if task.done() and not task.cancelled():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _step_after(self, position: int, before: list[asyncio.Task[None]]) -> None:
        if before:
            await asyncio.wait(before)
            if any(task.cancelled() or task.exception() is not None for task in before):
                return  # a required handler failed, so the turn is over
        await self._step(position)

    async def _step(self, position: int) -> None:
        step = self.plan[position]
        seen: _Made = {}
        for each in step.after:
            _overlay(seen, self.made[each])
        self.made[position] = seen
        counts = self.host.counts[step.handler.plugin, self.stage]
        try:
            changes = await self._changes(step.handler, {**self.fields, **_values(seen)})
        except _NotUsable as problem:
            self._skip(position, counts, problem)
            return
        counts["ran"] += 1
        self.made[position] = seen | {name: (position, value) for name, value in changes.items()}

    async def _changes(self, handler: StageHandler, fields: Mapping[str, Any]) -> dict[str, Any]:
        if handler.plugin in self.host._absent:
            raise _NotUsable("absent", "the plugin is not running")
        limit_s = handler.spec.timeout_s
        try:
            async with asyncio.timeout(limit_s) as limit:
                answer = await self.invoke(handler, fields, self.context)
        except (TimeoutError, TimedOut) as error:
            is_late = limit.expired() or isinstance(error, TimedOut)
            raise _NotUsable("late" if is_late else "crashed", f"no answer within {limit_s:g} s") from error
        except HomeAgentError as error:
            raise _NotUsable("crashed", str(error)) from error
        except Exception as error:
            raise _NotUsable("crashed", f"{type(error).__name__}: {error}") from error
        return _checked_changes(handler, answer)

    def _skip(self, position: int, counts: Counter[str], problem: _NotUsable) -> None:
        handler = self.plan[position].handler
        counts[problem.reason] += 1
        self.skipped[position] = Skipped(handler.plugin, problem.reason, problem.detail)
        _log.warning(
            "stage_handler_skipped",
            stage=self.stage,
            plugin=handler.plugin,
            reason=problem.reason,
            detail=problem.detail,
            required=handler.spec.required,
        )
        if handler.spec.required:
            raise RequiredHandlerFailed(handler.plugin, self.stage, problem.detail) from problem


class _NotUsable(Exception):
    """Raised within a run when a handler gave nothing that can be used; ``reason`` says how it is counted."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def _overlay(under: _Made, over: _Made) -> None:
    for name, entry in over.items():
        if name not in under or under[name][0] < entry[0]:
            under[name] = entry


def _values(made: _Made) -> dict[str, Any]:
    return {name: value for name, (_, value) in made.items()}


def _latest(all_made: Iterable[_Made]) -> dict[str, Any]:
    latest: _Made = {}
    for made in all_made:
        _overlay(latest, made)
    return _values(latest)


def _checked_changes(handler: StageHandler, answer: Any) -> dict[str, Any]:
    """Return the changes of an answer, ``response`` among them."""
    if answer is None:
        return {}
    changes = answer.get("changes") if isinstance(answer, dict) else answer
    if not isinstance(answer, dict) or not (changes is None or isinstance(changes, dict)):
        raise _NotUsable("refused", "its answer is not an object with changes")
    changes = dict(changes or {})
    if answer.get(RESPONSE) is not None:
        changes[RESPONSE] = answer[RESPONSE]
    for name, value in changes.items():
        if name not in handler.spec.changes:
            raise _NotUsable("refused", f"it changed {name!r}, which it had not declared")
        words, is_right = FIELD_KINDS[name]
        if not is_right(value):
            raise _NotUsable("refused", f"it made {name} a {type(value).__name__}; it must be {words}")
    return changes
