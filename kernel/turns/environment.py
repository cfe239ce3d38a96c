"""What the steps of a turn work with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog

from homeagent_sdk.bus import BusPeer
from homeagent_sdk.errors import HomeAgentError
from kernel.channels import ChannelRegistry
from kernel.config import ConfigRegistry
from kernel.journal import Journal
from kernel.principals import OWNER
from kernel.prompt import PastTurn, PromptBuilder, Timelines, TokenCorrection
from kernel.prompt.persona import Persona
from kernel.remember import Rememberer
from kernel.sources import Sources, SourceView
from kernel.stage_host import StageHost, StageResult
from kernel.tools import KERNEL, Offer, ToolRegistry
from kernel.turns.feed import TurnFeed
from kernel.turns.frame import SCHEMA_VERSION, TurnFrame
from kernel.turns.recording import PATIENCE_S, record

T = TypeVar("T")
_log = structlog.get_logger("turns")


async def _at_once() -> None:
    """Wait for nothing."""


@dataclass(slots=True)
class TurnEnvironment:
    """The parts of the kernel that turns use; one for the process.

    :ivar wall_clock: seconds since 1970
    :ivar absent_tools: tools of plugins that died and are being started again, with their plugins
    :ivar plugins_back: waits, after a start of the kernel, until the plugins have registered again, or a few seconds
    :ivar patience_s: how long a turn waits for a journal that cannot be written
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
    persona: Persona
    wall_clock: Callable[[], float]
    absent_tools: Mapping[str, str] = field(default_factory=dict)
    plugins_back: Callable[[], Awaitable[None]] = _at_once
    patience_s: float = PATIENCE_S
    prompts: PromptBuilder = field(default_factory=PromptBuilder)
    correction: TokenCorrection = field(default_factory=TokenCorrection)


@dataclass(slots=True)
class TurnRun:
    """One turn being worked on: its frame, and what can be made again from it and is therefore not saved.

    :ivar past: the lane's last turns as this turn sees them; None until they are read
    :ivar is_pruned: there were others, which were moved to the archive
    :ivar prefix: the messages up to and including the input; None until they are built
    :ivar memory_tokens: what recalled memories may cost; known once ``past`` is
    """

    frame: TurnFrame
    environment: TurnEnvironment
    feed: TurnFeed
    past: list[PastTurn] | None = None
    is_pruned: bool = False
    prefix: list[dict[str, Any]] | None = None
    memory_tokens: int = 0
    saved: bytes | None = None
    """The frame as it was recorded last; None: not since this run began."""
    step_ms: dict[str, float] = field(default_factory=dict)
    """Milliseconds that each step took, over all its repetitions."""

    async def save(self) -> None:
        """Record the frame as it is now; after this returns the turn goes on from here, whatever happens.

        :raises NotRecorded: the journal cannot be written
        """
        frame, journal = self.frame, self.environment.journal
        self.saved = packed = frame.pack()
        await self.record(lambda: journal.save(frame.turn_id, frame.step, packed, schema_version=SCHEMA_VERSION))

    async def record(self, write: Callable[[], Awaitable[T]]) -> T:
        """Write to the journal, with the patience that turns have.

        :raises NotRecorded: the journal cannot be written
        """
        return await record(write, self.environment.patience_s)

    async def source(self) -> SourceView:
        """Return the source that will probably answer."""
        return await self.environment.sources.choose(self.frame.model)

    @property
    def is_owner_speaking(self) -> bool:
        """Whether the turn answers the owner in person, and not a timer of theirs or anybody else."""
        frame = self.frame
        return frame.principal == OWNER and frame.kind == "user" and frame.level != "L1"

    async def asks_for_persona(self) -> bool:
        """Tell whether the model is to offer the owner the choice of its personality."""
        is_open = self.is_owner_speaking and self.environment.persona.is_choice_open
        return is_open and (await self.source()).takes_tools

    async def offer(self) -> Offer:
        """Return the tools that the model is shown; none where it takes none, the catalogue apart."""
        fetched = self.frame.fetched
        if await self.asks_for_persona():
            fetched = [*fetched, KERNEL]
        offer = self.environment.tools.offer(fetched)
        return offer if (await self.source()).takes_tools else Offer((), offer.catalogue, 0)

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
