"""Answering the kernel's calls: ``<plugin>.tool``, ``<plugin>.stage``, ``<plugin>.output``."""

from __future__ import annotations

import asyncio
import inspect
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from homeagent_sdk.bus.abc import CallContext
from homeagent_sdk.errors import Denied, HomeAgentError, Invalid, NotFound, Overloaded
from homeagent_sdk.plugin.carriage import carried
from homeagent_sdk.plugin.messages import OutputMessage, Receipt, StageCall, ToolContext
from homeagent_sdk.plugin.plugin import Plugin
from homeagent_sdk.plugin.schema import ToolSchema

_THREADS = 8
_LARGEST_BACKLOG = 32
_REMEMBERED_OUTPUTS = 1024
_LONGEST_DETAIL = 500


class Threads:
    """Runs the plain functions of a plugin: 8 at a time, at most 32 waiting, further ones are refused.

    A thread cannot be stopped, so a function that hangs keeps its place; the bound keeps that visible.
    """

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix=name)
        self._busy = 0

    async def run(self, function: Callable[..., Any], *positional: Any, **named: Any) -> Any:
        """Call ``function``, in the loop if it is async, else in a thread.

        :raises Overloaded: too many plain functions run or wait
        """
        if inspect.iscoroutinefunction(function):
            return await function(*positional, **named)
        if self._busy >= _THREADS + _LARGEST_BACKLOG:
            raise Overloaded("too many calls wait for a thread of this plugin", hint="try again later")
        self._busy += 1
        future = self._executor.submit(function, *positional, **named)
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda _: loop.is_closed() or loop.call_soon_threadsafe(self._release))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Let no further function start; those that run are not waited for."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _release(self) -> None:
        self._busy -= 1


class Calls:
    """The handlers that answer the kernel for one plugin."""

    def __init__(self, plugin: Plugin, name: str, threads: Threads) -> None:
        self._plugin = plugin
        self._name = name
        self._threads = threads
        self.schemas: dict[str, ToolSchema] = {tool.name: tool.schema() for tool in plugin.tools.values()}
        self._outputs: OrderedDict[str, asyncio.Task[Receipt]] = OrderedDict()

    async def tool(self, body: Any, call: CallContext) -> dict[str, Any]:
        """Answer ``<plugin>.tool``; whatever the tool does wrong comes back as a structured error."""
        _only_kernel(call)
        name = str(body.get("tool"))
        tool = self._plugin.tools.get(name)
        if tool is None:
            raise NotFound(f"plugin {self._name} has no tool {name!r}", field="tool")
        try:
            arguments = self.schemas[name].bind(body.get("arguments"), ToolContext.from_wire(body.get("context")))
            content = await self._threads.run(tool.function, **arguments)
            return {"content": carried(content, f"tool {name}"), "is_error": False}
        except HomeAgentError as error:
            return _tool_error(error)
        except Exception as error:
            self._plugin.log.exception("tool failed", tool=name)
            detail = f"tool {name} failed: {type(error).__name__}: {error}"[:_LONGEST_DETAIL]
            hint = "the arguments need not be at fault; the plugin's log says more"
            return _error_answer({"field": None, "reason": "crashed", "detail": detail, "hint": hint})

    async def stage(self, body: Any, call: CallContext) -> dict[str, Any]:
        """Answer ``<plugin>.stage``; a handler that returns what it did not declare is refused."""
        _only_kernel(call)
        stage = str(body.get("stage"))
        handler = self._plugin.stages.get(stage)
        if handler is None:
            raise NotFound(f"plugin {self._name} has no handler of stage {stage!r}", field="stage")
        fields = body.get("fields") or {}
        request = StageCall(stage, fields, ToolContext.from_wire(body.get("context")))
        answer = await self._threads.run(handler.function, request)
        changes = {} if answer is None else carried(answer, f"stage {stage}")
        if not isinstance(changes, dict):
            raise Invalid(f"the handler of {stage} returned {type(answer).__name__}", hint="return a dict or None")
        undeclared = sorted(changes.keys() - handler.changes)
        if undeclared:
            raise Invalid(
                f"the handler of {stage} changed {', '.join(undeclared)}, which it did not declare",
                hint=f"say changes={set(undeclared)} in the decorator",
            )
        response = changes.pop("response", None)
        return {"changes": changes, "response": None if response is None else str(response)}

    async def output(self, body: Any, call: CallContext) -> dict[str, Any]:
        """Answer ``<plugin>.output``; an id that was sent before is not sent again, its receipt is repeated."""
        _only_kernel(call)
        message = OutputMessage.from_wire(body)
        channel = self._plugin.outputs.get(message.channel)
        if channel is None:
            raise NotFound(f"plugin {self._name} has no output channel {message.channel!r}", field="channel")
        sending = self._outputs.get(message.output_id)
        if sending is None:
            sending = asyncio.create_task(self._send(channel.function, message))
            self._outputs[message.output_id] = sending
            self._forget_old_outputs()
        receipt = await asyncio.shield(sending)
        if receipt.status == "failed":
            self._outputs.pop(message.output_id, None)
        return receipt.to_wire()

    async def _send(self, function: Callable[..., Any], message: OutputMessage) -> Receipt:
        try:
            answer = await self._threads.run(function, message)
        except HomeAgentError as error:
            return Receipt("failed", str(error))
        except Exception as error:
            self._plugin.log.exception("output failed", channel=message.channel)
            return Receipt("failed", f"{type(error).__name__}: {error}"[:_LONGEST_DETAIL])
        if answer is None:
            return Receipt("unconfirmed", "sent; the channel does not say whether it arrived")
        if not isinstance(answer, Receipt):
            return Receipt("unconfirmed", f"the channel returned {type(answer).__name__} instead of a Receipt")
        return answer

    def _forget_old_outputs(self) -> None:
        while len(self._outputs) > _REMEMBERED_OUTPUTS:
            self._outputs.popitem(last=False)


def _only_kernel(call: CallContext) -> None:
    """Refuse calls of others, as the hub does too: a plugin acts for the principal that the kernel names."""
    if call.origin.tier != "kernel":
        raise Denied(f"{call.method} is called by the kernel alone, not by {call.origin.name}")


def _tool_error(error: HomeAgentError) -> dict[str, Any]:
    reason = str(error.detail.get("reason") or error.code)
    return _error_answer({"field": error.field, "reason": reason, "detail": error.message, "hint": error.hint})


def _error_answer(error: dict[str, Any]) -> dict[str, Any]:
    return {"content": None, "is_error": True, "error": error}
