"""What the steps of a turn work with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import structlog

from homeagent_sdk.bus import BusPeer
from homeagent_sdk.errors import HomeAgentError
from kernel.channels import ChannelRegistry
from kernel.config import ConfigRegistry
from kernel.journal import Journal
from kernel.prompt import PastTurn, PromptBuilder, Timelines, TokenCorrection
from kernel.remember import Rememberer
from kernel.sources import Sources
from kernel.stage_host import StageHost, StageResult
from kernel.tools import ToolRegistry
from kernel.turns.feed import TurnFeed
from kernel.turns.frame import SCHEMA_VERSION, TurnFrame

_log = structlog.get_logger("turns")


@dataclass(slots=True)
class TurnEnvironment:
    """The parts of the kernel that turns use; one for the process.

    :ivar wall_clock: seconds since 1970
    """

    bus: BusPeer
    config: ConfigRegistry
    journal: Journal
    stages: StageHost
    tools: ToolRegistry
    channels: ChannelRegistry
    timelines: Timelines
    sources: Sources
    rememberer: Rememberer
    wall_clock: Callable[[], float]
    prompts: PromptBuilder = field(default_factory=PromptBuilder)
    correction: TokenCorrection = field(default_factory=TokenCorrection)


@dataclass(slots=True)
class TurnRun:
    """One turn being worked on: its frame, and what can be made again from it and is therefore not saved.

    :ivar past: the lane's last turns as this turn sees them; None until they are read
    :ivar prefix: the messages up to and including the input; None until they are built
    """

    frame: TurnFrame
    environment: TurnEnvironment
    feed: TurnFeed
    past: list[PastTurn] | None = None
    prefix: list[dict[str, Any]] | None = None
    step_ms: dict[str, float] = field(default_factory=dict)
    """Milliseconds that each step took, over all its repetitions."""

    async def save(self) -> None:
        """Record the frame as it is now; after this returns the turn goes on from here, whatever happens."""
        frame = self.frame
        await self.environment.journal.save(frame.turn_id, frame.step, frame.pack(), schema_version=SCHEMA_VERSION)

    async def publish(self, topic: str, payload: dict[str, Any]) -> None:
        """Put an event on the ring; a turn never fails because nobody can be told of it."""
        try:
            await self.environment.bus.publish(topic, {"turn_id": self.frame.turn_id, **payload})
        except HomeAgentError as error:
            _log.warning("event not published", topic=topic, turn=self.frame.turn_id, reason=str(error))

    @property
    def context(self) -> dict[str, Any]:
        """What plugins are told about the turn that they are called for."""
        frame = self.frame
        return {
            "turn_id": frame.turn_id,
            "channel": frame.channel,
            "conversation": frame.conversation,
            "principal": frame.principal,
            "speaker": frame.speaker or None,
        }

    async def run_stage(self, stage: str, fields: dict[str, Any], tool_owner: str | None = None) -> StageResult:
        """Run a stage over the bus; costs nothing where no plugin has registered for it."""
        environment = self.environment
        if not environment.stages.handlers(stage, tool_owner):
            return StageResult(fields)

        async def invoke(handler: Any, values: Any, context: Any) -> Any:
            body = {"stage": stage, "fields": dict(values), "context": context}
            return await environment.bus.call(f"{handler.plugin}.stage", body, timeout_s=handler.spec.timeout_s)

        result = await environment.stages.run(stage, fields, self.context, invoke, tool_owner=tool_owner)
        skipped = [each.plugin for each in result.skipped]
        await self.publish("stage", {"stage": stage, "ran": list(result.ran), "skipped": skipped})
        return result
