"""A progress bar on stderr, where somebody looks at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from homeagent.output import console
from homeagent_sdk.catalogue import text

Advance = Callable[[float, float | None], None]
"""Told how much is done, and of how much if that is known."""


@contextmanager
def progress(what: str, *, in_bytes: bool = False) -> Iterator[Advance]:
    """Show a bar while the block runs; nothing is shown where stderr is no terminal.

    :param what: the catalogue's ``command.progress_<what>`` stands before the bar
    """
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    screen = console(stderr=True)
    columns: list[Any] = [
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn() if in_bytes else MofNCompleteColumn(),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=screen, disable=not screen.is_terminal, transient=True) as bar:
        task = bar.add_task(text(f"command.progress_{what}"), total=None)

        def advance(done: float, of: float | None = None) -> None:
            bar.update(task, completed=done, total=of)

        yield advance
