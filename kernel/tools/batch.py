"""In which order the calls of one batch run."""

from __future__ import annotations

from collections.abc import Sequence

from kernel.tools.tool import Tool


def plan(tools: Sequence[Tool | None]) -> list[list[int]]:
    """Return groups of positions: those of a group run at the same time, the groups one after another.

    All calls whose tools are ``parallel_safe`` form one group, at the place of the first of them; every other call is
    a group of its own. Results go into the history by position, whatever was ready first.

    :param tools: the tool of each call; None where there is none
    """
    groups: list[list[int]] = []
    together: list[int] | None = None
    for position, tool in enumerate(tools):
        if tool is None or not tool.flags.parallel_safe or tool.flags.serial:
            groups.append([position])
        elif together is None:
            together = [position]
            groups.append(together)
        else:
            together.append(position)
    return groups
