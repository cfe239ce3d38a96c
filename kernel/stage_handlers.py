"""What a plugin may ask for when it registers handlers of stages; all of it is checked then, not when a turn runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from homeagent_sdk.errors import Denied, Invalid
from kernel.stages import STAGES

DEFAULT_TIMEOUT_S = 5.0
LONGEST_TIMEOUT_S = 60.0
GLOBAL = "global"
OWN_TOOLS = "own_tools"
_PRIORITY_LIMIT = 1_000_000
_KEYS = frozenset({"stage", "scope", "changes", "priority", "timeout_s", "required"})


@dataclass(frozen=True, slots=True)
class StageSpec:
    """What a plugin asks for when it registers a handler.

    :ivar changes: the fields that it may change; none: it only watches
    :ivar scope: ``global``, or ``own_tools``: only calls of the plugin's own tools
    :ivar priority: the lower runs earlier, among handlers that change the same field
    :ivar timeout_s: how long it may take, in seconds
    :ivar required: whether the turn ends if the handler does not do its work, instead of going on without it
    """

    stage: str
    changes: frozenset[str] = frozenset()
    scope: str = GLOBAL
    priority: int = 0
    timeout_s: float = DEFAULT_TIMEOUT_S
    required: bool = False

    @classmethod
    def from_wire(cls, body: Any) -> StageSpec:
        """Read an entry of ``stages`` of ``kernel.register``.

        :raises Invalid: it is malformed; ``field`` says where
        """
        if not isinstance(body, dict) or not isinstance(body.get("stage"), str):
            raise Invalid("a stage handler must be an object with a stage", field="stages")
        unknown = sorted(map(str, body.keys() - _KEYS))
        if unknown:
            raise Invalid(
                f"a stage handler has no {', '.join(unknown)}", field="stages", hint=f"it has {sorted(_KEYS)}"
            )
        changes = body.get("changes") or []
        if not isinstance(changes, list) or not all(isinstance(each, str) for each in changes):
            raise Invalid("changes must be a list of fields", field="changes")
        return cls(
            stage=body["stage"],
            changes=frozenset(changes),
            scope=str(body.get("scope", GLOBAL)),
            priority=_number(body.get("priority", 0), "priority", int),
            timeout_s=float(_number(body.get("timeout_s", DEFAULT_TIMEOUT_S), "timeout_s", (int, float))),
            required=bool(body.get("required", False)),
        )


@dataclass(frozen=True, slots=True)
class StageHandler:
    """A registered handler: the plugin that it belongs to, and what it asked for."""

    plugin: str
    tier: str
    spec: StageSpec

    @property
    def order(self) -> tuple[int, str]:
        """Where it stands among handlers that change the same field."""
        return (self.spec.priority, self.plugin)


def check_handlers(handlers: Iterable[StageHandler], grants: Mapping[str, frozenset[str]] | None) -> None:
    """Check all handlers of one plugin.

    :param grants: stage → the fields that the plugin's manifest lets it change; None: all
    :raises Invalid: one asks for what its stage does not offer, or two are for the same stage
    :raises Denied: one asks for what the manifest does not grant
    """
    stages: set[str] = set()
    for handler in handlers:
        _check(handler)
        _check_options(handler)
        if grants is not None:
            _check_grants(handler, grants)
        if handler.spec.stage in stages:
            raise Invalid(
                f"the plugin {handler.plugin} registers two handlers for {handler.spec.stage}",
                field="stages",
                hint="a plugin has one handler for each stage; do both jobs in it",
            )
        stages.add(handler.spec.stage)


def _check(handler: StageHandler) -> None:
    plugin, spec = handler.plugin, handler.spec
    stage = STAGES.get(spec.stage)
    if stage is None:
        raise Invalid(
            f"the plugin {plugin} registers for the stage {spec.stage!r}, which the kernel does not have",
            field="stage",
            hint=f"the stages are {', '.join(STAGES)}",
        )
    refused = sorted(spec.changes - stage.changes)
    if refused:
        raise Invalid(
            f"the plugin {plugin} wants to change {', '.join(refused)} in {spec.stage}, which does not offer that",
            field="changes",
            hint=f"{spec.stage} lets a handler change {', '.join(sorted(stage.changes)) or 'nothing'}",
        )


def _check_options(handler: StageHandler) -> None:
    plugin, spec = handler.plugin, handler.spec
    what = f"the handler of {plugin} for {spec.stage}"
    if spec.scope not in (GLOBAL, OWN_TOOLS):
        raise Invalid(f"{what} has the scope {spec.scope!r}", field="scope", hint=f"use {GLOBAL} or {OWN_TOOLS}")
    if spec.scope == OWN_TOOLS and not STAGES[spec.stage].has_tool:
        tool_stages = " and ".join(stage.name for stage in STAGES.values() if stage.has_tool)
        raise Invalid(
            f"{what} has the scope {OWN_TOOLS}, but {spec.stage} is about no tool",
            field="scope",
            hint=f"only {tool_stages} have that scope",
        )
    if not 0 < spec.timeout_s <= LONGEST_TIMEOUT_S:
        raise Invalid(
            f"{what} has a time limit of {spec.timeout_s:g} s",
            field="timeout_s",
            hint=f"choose more than 0 and at most {LONGEST_TIMEOUT_S:g} s: every turn waits for it",
        )
    if abs(spec.priority) > _PRIORITY_LIMIT:
        raise Invalid(f"{what} has the priority {spec.priority}", field="priority", hint=f"at most ±{_PRIORITY_LIMIT}")


def _check_grants(handler: StageHandler, grants: Mapping[str, frozenset[str]]) -> None:
    plugin, spec = handler.plugin, handler.spec
    granted = grants.get(spec.stage)
    if granted is None:
        raise Denied(
            f"the manifest of {plugin} does not list the stage {spec.stage}, for which it registers",
            field="stage",
            hint="add it to stages in plugin.json; the owner is asked at installation",
        )
    refused = sorted(spec.changes - granted)
    if refused:
        raise Denied(
            f"the manifest of {plugin} does not let it change {', '.join(refused)} in {spec.stage}",
            field="changes",
            hint=f"it lists {', '.join(sorted(granted)) or 'no fields'} there",
        )


def _number(value: Any, name: str, kind: type | tuple[type, ...]) -> Any:
    if isinstance(value, bool) or not isinstance(value, kind):
        raise Invalid(f"{name} of a stage handler is {value!r}; it must be a number", field=name)
    return value
