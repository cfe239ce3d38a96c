"""How the tokens of a prompt are shared out: fixed part, timeline, memory, input, results of tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from kernel.prompt import PromptParts, estimate_messages, estimate_tokens
from kernel.turns.environment import TurnRun

_SHORTEST_RESULT: Final = 500
"""Characters; a result is never cut further."""
_CUT_HERE: Final = "[cut here: there is no room for the rest of this result]"


@dataclass(frozen=True, slots=True)
class Budget:
    """What the parts may cost, in estimated tokens.

    :ivar memory: what was recalled
    :ivar timeline: the lane's last turns, this once
    :ivar lasting_timeline: likewise beside an input of no length; what does not fit there is forgotten
    """

    memory: int
    timeline: int
    lasting_timeline: int


async def budget(run: TurnRun) -> Budget:
    """Share out the prompt (reference/memory.md §1.4).

    target = window x utilisation, capped; available = target - fixed part - input; the memory gets a third.
    """
    frame = run.frame
    target = await _target(run)
    fixed = estimate_messages([run.environment.prompts.fixed(fixed_parts(run))]) + await _offered(run)
    room = max(0, target - fixed) >> frame.shrunk
    available = max(0, target - fixed - estimate_tokens(frame.message)) >> frame.shrunk
    percent = run.environment.config.int("core.agent.context.memory_ratio_percent")
    memory, lasting_memory = _share(available, percent), _share(room, percent)
    return Budget(memory, available - memory, room - lasting_memory)


async def fitting_tail(run: TurnRun, prefix: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the model's calls and their results, the longest results cut if the whole would not fit.

    The frame keeps them whole: another source, or a later call, may have more room.

    :param prefix: what stands before them
    """
    tail = run.frame.tail
    if not tail:
        return tail
    target = await _target(run)
    room = max(target - estimate_messages(prefix) - await _offered(run), target // 4) >> run.frame.shrunk
    fitted, limit = tail, max((len(each["content"] or "") for each in tail if each["role"] == "tool"), default=0)
    while estimate_messages(fitted) > room and limit > _SHORTEST_RESULT:
        limit = max(limit // 2, _SHORTEST_RESULT)
        fitted = [_cut(message, limit) for message in tail]
    return fitted


def fixed_parts(run: TurnRun) -> PromptParts:
    """Return what the fixed part of the prompt is made of."""
    config = run.environment.config
    return PromptParts(
        system_prompt=config.text("core.agent.system_prompt"),
        persona=run.environment.persona.text,
        catalogue=run.environment.tools.offer().catalogue,
    )


async def _target(run: TurnRun) -> int:
    """Return how long the prompt may be, in tokens as we estimate them."""
    config, source = run.environment.config, await run.source()
    target = source.context_window * config.int("core.agent.context.utilization_percent") // 100
    cap = config.int("core.agent.context.max_target_tokens")
    if cap > 0:
        target = min(target, cap)
    return int(target / run.environment.correction.factor(source.name))


async def _offered(run: TurnRun) -> int:
    return (await run.offer()).tokens


def _share(available: int, percent: int) -> int:
    return available * percent // 100 if percent else available // 3


def _cut(message: dict[str, Any], limit: int) -> dict[str, Any]:
    content = message["content"]
    if message["role"] != "tool" or len(content) <= limit:
        return message
    return {**message, "content": f"{content[:limit]}\n{_CUT_HERE}"}
