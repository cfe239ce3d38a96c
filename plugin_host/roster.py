"""All plugins of this host, and what a person may do with them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import Conflict, Invalid, NotFound, Unavailable
from homeagent_sdk.logging import get_logger
from plugin_host.discovery import FoundPlugin, find_plugins
from plugin_host.state_file import StateFile
from plugin_host.supervised import START_LIMIT_S, SupervisedPlugin, Surroundings

_SETTLE_S = START_LIMIT_S + 5.0
_log = get_logger("roster")


@dataclass(frozen=True, slots=True)
class Folders:
    """Where plugins come from."""

    builtin: Path
    external: Path


@dataclass(slots=True)
class Changes:
    """What an order changed."""

    plugins: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    """Plugins whose new files cannot be used, and why: their old ones run on."""


class Roster:
    """The plugins, in the order in which they were found. One order at a time is carried out."""

    def __init__(self, folders: Folders, state: StateFile, surroundings: Surroundings) -> None:
        self._folders = folders
        self._state = state
        self._surroundings = surroundings
        self._lock = asyncio.Lock()
        self.plugins: list[SupervisedPlugin] = []

    async def start_all(self) -> None:
        """Find all plugins and start those that can be and are not disabled."""
        self.plugins = [SupervisedPlugin(found, self._surroundings) for found in await self._find()]
        for plugin in self.plugins:
            self._begin(plugin)

    async def stop_all(self, grace_s: float) -> None:
        """Stop all plugins, at the same time."""
        await asyncio.gather(*(plugin.stop(grace_s=grace_s) for plugin in self.plugins))

    def living(self) -> set[str]:
        """Return the marks of the plugins that have a process."""
        return {f"{plugin.name}:{plugin.generation}" for plugin in self.plugins if plugin.pid is not None}

    def running(self, name: str) -> SupervisedPlugin | None:
        """Return the plugin of that name if it runs."""
        return next((plugin for plugin in self.plugins if plugin.name == name and plugin.state == "running"), None)

    async def restart(self, name: str) -> Changes:
        """Stop a plugin and start it with the files that are there now; its crashes are forgotten.

        :raises NotFound: there is no such plugin
        :raises Conflict: it is disabled
        :raises Invalid: its files cannot be used; if it runs, it runs on
        :raises Unavailable: it did not start
        """
        return await self._carry_out(self._restart(name))

    async def reload(self, name: str | None) -> Changes:
        """Start anew what has changed on disk since it was started; find new plugins, stop those that are gone.

        :param name: only this one
        :raises NotFound: there is no such plugin
        :raises Invalid: its new files cannot be used; the old ones run on
        """
        return await self._carry_out(self._reload(name))

    async def enable(self, name: str) -> Changes:
        """Let a plugin run again, from now on.

        :raises NotFound: there is no such plugin
        :raises Unavailable: it did not start, or that it is enabled cannot be stored
        """
        return await self._carry_out(self._enable(name))

    async def disable(self, name: str) -> Changes:
        """Stop a plugin and do not start it any more, until :meth:`enable`.

        :raises NotFound: there is no such plugin
        :raises Unavailable: that it is disabled cannot be stored
        """
        return await self._carry_out(self._disable(name))

    async def _carry_out(self, order: Coroutine[Any, Any, Changes]) -> Changes:
        """Finish an order even if its caller goes away: half of a restart would be a stop."""

        async def alone() -> Changes:
            async with self._lock:
                return await order

        return await asyncio.shield(asyncio.create_task(alone()))

    async def _restart(self, name: str) -> Changes:
        plugin = self._get(name)
        if self._state.is_disabled(name):
            raise Conflict(f"plugin {name} is disabled", hint="enable it first")
        found = await self._find()
        fresh = next((each for each in found if each.folder == plugin.found.folder), None)
        if fresh is None or fresh.problem:
            raise Invalid(fresh.problem if fresh else f"{plugin.found.folder} is gone", field="name")
        await self._renew(plugin, fresh)
        return await self._started(Changes([fresh.name]), [plugin])

    async def _reload(self, name: str | None) -> Changes:
        only = self._get(name) if name is not None else None
        found = {each.folder: each for each in await self._find()}
        changes, begun = Changes(), []
        for plugin in [only] if only is not None else list(self.plugins):
            fresh = found.get(plugin.found.folder)
            if fresh is None:
                await plugin.stop()
                self.plugins.remove(plugin)
                changes.plugins.append(plugin.name)
            elif fresh == plugin.found:
                continue
            elif fresh.problem and plugin.is_active:
                changes.problems[plugin.name] = fresh.problem
            else:
                await self._renew(plugin, fresh)
                changes.plugins.append(fresh.name)
                begun.append(plugin)
        if only is None:
            begun += self._take_in_new(found, changes)
        if only is not None and changes.problems:
            raise Invalid(changes.problems[only.name], hint="the old files run on")
        await asyncio.gather(*(plugin.settled(_SETTLE_S) for plugin in begun))
        return changes

    def _take_in_new(self, found: dict[Path, FoundPlugin], changes: Changes) -> list[SupervisedPlugin]:
        known = {plugin.found.folder for plugin in self.plugins}
        added = [SupervisedPlugin(each, self._surroundings) for each in found.values() if each.folder not in known]
        self.plugins += added
        for plugin in added:
            self._begin(plugin)
            changes.plugins.append(plugin.name)
        return added

    async def _enable(self, name: str) -> Changes:
        plugin = self._get(name)
        if not self._state.is_disabled(name):
            return Changes()
        await self._state.set_disabled(name, False)
        self._begin(plugin)
        return await self._started(Changes([name]), [plugin])

    async def _disable(self, name: str) -> Changes:
        plugin = self._get(name)
        if self._state.is_disabled(name):
            return Changes()
        await self._state.set_disabled(name, True)
        await plugin.stop(state="disabled", reason=text("host.disabled"))
        return Changes([name])

    async def _renew(self, plugin: SupervisedPlugin, fresh: FoundPlugin) -> None:
        await plugin.stop()
        plugin.take_over(fresh)
        self._begin(plugin)

    async def _started(self, changes: Changes, plugins: list[SupervisedPlugin]) -> Changes:
        """Wait until the plugins run; raise :class:`Unavailable` for the first that does not."""
        await asyncio.gather(*(plugin.settled(_SETTLE_S) for plugin in plugins))
        for plugin in plugins:
            if plugin.state != "running":
                raise Unavailable(
                    f"plugin {plugin.name} did not start: {plugin.reason or plugin.state}",
                    hint=f"its log is log/plugin-{plugin.name}.log in the data directory",
                )
        return changes

    def _begin(self, plugin: SupervisedPlugin) -> None:
        """Start a plugin unless a person has disabled it."""
        if self._state.is_disabled(plugin.name) and not plugin.found.problem:
            plugin.state, plugin.reason = "disabled", text("host.disabled")
        else:
            plugin.start()

    def _get(self, name: str) -> SupervisedPlugin:
        for plugin in self.plugins:
            if plugin.name == name:
                return plugin
        known = ", ".join(sorted(plugin.name for plugin in self.plugins))
        raise NotFound(f"there is no plugin {name!r}", field="name", hint=f"there are: {known}")

    async def _find(self) -> list[FoundPlugin]:
        found = await asyncio.to_thread(find_plugins, self._folders.builtin, self._folders.external)
        for plugin in found:
            if plugin.problem:
                _log.error("a plugin cannot be started", plugin=plugin.name, reason=plugin.problem)
        return found
