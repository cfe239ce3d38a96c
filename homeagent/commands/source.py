"""``homeagent source``: the language models that the agent may ask, in a few words instead of many settings."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Annotated, Any

import typer

from homeagent.chat_connection import ChatConnection, error_of
from homeagent.client import operator
from homeagent.commands._shared import DataDirOption, JsonOption, data_dir, run
from homeagent.commands.config import set_source_key
from homeagent.key_input import read_key
from homeagent.output import tell, write, write_json, write_table
from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import Internal, NotFound, Unavailable
from homeagent_sdk.paths import DataDir

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help=text("command.argument_source"))]
UrlOption = Annotated[str, typer.Option("--base-url", metavar="URL", help=text("command.option_base_url"))]
ModelOption = Annotated[str, typer.Option("--model", metavar="MODEL", help=text("command.option_source_model"))]
AdapterOption = Annotated[str, typer.Option("--adapter", metavar="NAME", help=text("command.option_adapter"))]
WindowOption = Annotated[
    int | None, typer.Option("--context-window", metavar="TOKENS", min=1, help=text("command.option_context_window"))
]
KeyOption = Annotated[bool, typer.Option("--key", help=text("command.option_key"))]
KeyFileOption = Annotated[Path | None, typer.Option("--key-file", metavar="FILE", help=text("command.option_key_file"))]

_PREFIX = "core.llm.sources."
_COLUMNS = ("name", "model", "adapter", "base_url", "context_window", "state", "key_set", "reason")


def add_to(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help=text("command.help_source"), no_args_is_help=True)
    group.command("add", help=text("command.help_source_add"))(_add)
    group.command("list", help=text("command.help_source_list"))(_list)
    group.command("remove", help=text("command.help_source_remove"))(_remove)
    group.command("test", help=text("command.help_source_test"))(_test)
    app.add_typer(group, name="source")


def _add(
    name: NameArgument,
    base_url: UrlOption,
    model: ModelOption,
    adapter: AdapterOption = "openai",
    context_window: WindowOption = None,
    key: KeyOption = False,
    key_file: KeyFileOption = None,
    data_dir_: DataDirOption = None,
) -> None:
    settings: dict[str, Any] = {"model": model, "adapter": adapter, "base_url": base_url}
    if context_window is not None:
        settings["context_window"] = context_window
    run(lambda: _set_all(data_dir(data_dir_), name, settings, key, key_file))


def _list(data_dir_: DataDirOption = None, as_json: JsonOption = False) -> None:
    run(lambda: _show_all(data_dir(data_dir_), as_json))


def _remove(name: NameArgument, data_dir_: DataDirOption = None) -> None:
    run(lambda: _unset_all(data_dir(data_dir_), name))


def _test(name: NameArgument, data_dir_: DataDirOption = None) -> None:
    run(lambda: _ask(data_dir(data_dir_), name))


async def _set_all(data: DataDir, name: str, settings: dict[str, Any], with_key: bool, key_file: Path | None) -> None:
    secret = read_key(key_file, text("command.ask_key", name=name)) if with_key or key_file is not None else None
    async with operator(data) as peer:
        # The address comes last: a source without one is not used, so none is ever seen half described.
        for field, value in settings.items():
            await peer.call("kernel.config_set", {"key": f"{_PREFIX}{name}.{field}", "value": value})
        if secret is not None:
            await set_source_key(peer, name, secret)
    tell(text("command.source_added", source=name))


async def _show_all(data: DataDir, as_json: bool) -> None:
    async with operator(data) as peer:
        sources: list[dict[str, Any]] = (await peer.call("provider.sources", {}))["sources"]
    if as_json:
        write_json(sources)
    elif sources:
        write_table(sources, _COLUMNS)
    else:
        tell(text("command.no_model"))


async def _unset_all(data: DataDir, name: str) -> None:
    async with operator(data) as peer:
        entries = (await peer.call("kernel.config_list", {"prefix": f"{_PREFIX}{name}."}))["entries"]
        stored = [entry["key"] for entry in entries if entry["source"] == "stored"]
        if not stored:
            raise NotFound(text("command.no_source", source=name), hint=text("command.no_source_hint"))
        # The address goes first, as it came last.
        for key in sorted(stored, key=lambda key: not key.endswith(".base_url")):
            await peer.call("kernel.config_unset", {"key": key})
        await set_source_key(peer, name, None)
    tell(text("command.source_removed", source=name))


async def _ask(data: DataDir, name: str) -> None:
    """Have the source answer one small question, by the way that every message takes."""
    async with operator(data) as peer:
        sources = {row["name"]: row for row in (await peer.call("provider.sources", {}))["sources"]}
    if name not in sources:
        raise NotFound(text("command.no_source", source=name), hint=text("command.no_source_hint"))
    options = {"model": sources[name]["model"], "no_memory": True}
    connection = ChatConnection(data, f"source-test-{uuid.uuid4().hex[:12]}", options=options)
    outcome: dict[str, Any] = {}
    async for item in connection.send(text("command.source_test_question")):
        outcome = item
    error = error_of(outcome)
    if error is not None:
        raise error
    if not outcome.get("text"):
        raise Internal(text("command.source_silent", source=name))
    answered_by = outcome.get("model")
    if answered_by != sources[name]["model"]:
        reason = sources[name].get("reason") or sources[name]["state"]
        raise Unavailable(text("command.source_other", source=name, model=answered_by, reason=reason))
    tell(text("command.source_works", source=name, model=answered_by))
    write(str(outcome["text"]))
