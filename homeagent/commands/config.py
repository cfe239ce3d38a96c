"""``homeagent config``: every setting of the system, read and changed while it runs."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from homeagent.client import operator
from homeagent.commands._shared import DataDirOption, JsonOption, data_dir, run
from homeagent.key_input import read_key
from homeagent.output import shown, tell, write, write_json, write_table
from homeagent_sdk.catalogue import language, text
from homeagent_sdk.errors import Invalid
from homeagent_sdk.paths import DataDir

if TYPE_CHECKING:
    from homeagent_sdk.bus import BusPeer

KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help=text("command.argument_config_key"))]
ValueArgument = Annotated[str | None, typer.Argument(metavar="VALUE", help=text("command.argument_config_value"))]
PrefixArgument = Annotated[str, typer.Argument(metavar="PREFIX", help=text("command.argument_config_prefix"))]
FileOption = Annotated[Path | None, typer.Option("--file", metavar="FILE", help=text("command.option_value_file"))]

_SOURCE_KEY = re.compile(r"core\.llm\.sources\.(?P<source>[^.]+)\.api_key")
_TRUE, _FALSE = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})


def add_to(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help=text("command.help_config"), no_args_is_help=True)
    group.command("get", help=text("command.help_config_get"))(_get)
    group.command("set", help=text("command.help_config_set"))(_set)
    group.command("list", help=text("command.help_config_list"))(_list)
    group.command("unset", help=text("command.help_config_unset"))(_unset)
    app.add_typer(group, name="config")


def _get(key: KeyArgument, data_dir_: DataDirOption = None, as_json: JsonOption = False) -> None:
    run(lambda: _show_one(data_dir(data_dir_), key, as_json))


def _set(
    key: KeyArgument,
    value: ValueArgument = None,
    file: FileOption = None,
    data_dir_: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    run(lambda: _change(data_dir(data_dir_), key, value, file, as_json))


def _list(prefix: PrefixArgument = "", data_dir_: DataDirOption = None, as_json: JsonOption = False) -> None:
    run(lambda: _show_all(data_dir(data_dir_), prefix, as_json))


def _unset(key: KeyArgument, data_dir_: DataDirOption = None, as_json: JsonOption = False) -> None:
    run(lambda: _forget(data_dir(data_dir_), key, as_json))


async def _show_one(data: DataDir, key: str, as_json: bool) -> None:
    async with operator(data) as peer:
        entry = await peer.call("kernel.config_get", {"key": key})
    if as_json:
        write_json(entry)
    else:
        write(_value_shown(entry))


async def _show_all(data: DataDir, prefix: str, as_json: bool) -> None:
    async with operator(data) as peer:
        entries: list[dict[str, Any]] = (await peer.call("kernel.config_list", {"prefix": prefix}))["entries"]
    if as_json:
        write_json(entries)
        return
    rows = [
        {
            "key": entry["key"],
            "value": _value_shown(entry),
            "origin": text(f"command.config_{entry['source']}"),
            "about": _described(entry),
        }
        for entry in entries
    ]
    write_table(rows, ("key", "value", "origin", "about"))


async def _change(data: DataDir, key: str, value: str | None, file: Path | None, as_json: bool) -> None:
    if value is not None and file is not None:
        raise typer.BadParameter(text("command.value_or_file"))
    source = _SOURCE_KEY.fullmatch(key)
    async with operator(data) as peer:
        if source is not None:
            _refuse_key_in_arguments(value)
            await set_source_key(peer, source["source"], read_key(file, text("command.ask_key", name=key)))
            tell(text("command.source_key_set", source=source["source"]))
            return
        entry = await peer.call("kernel.config_get", {"key": key})
        if entry.get("secret"):
            _refuse_key_in_arguments(value)
            value = read_key(file, text("command.ask_key", name=key))
        elif file is not None:
            value = await asyncio.to_thread(file.read_text, encoding="utf-8")
        if value is None:
            raise typer.BadParameter(text("command.value_missing", key=key))
        entry = await peer.call("kernel.config_set", {"key": key, "value": typed(value, str(entry["type"]))})
    _tell_entry(entry, as_json)


async def _forget(data: DataDir, key: str, as_json: bool) -> None:
    source = _SOURCE_KEY.fullmatch(key)
    async with operator(data) as peer:
        if source is not None:
            await set_source_key(peer, source["source"], None)
            tell(text("command.source_key_unset", source=source["source"]))
            return
        entry = await peer.call("kernel.config_unset", {"key": key})
    _tell_entry(entry, as_json)


async def set_source_key(peer: BusPeer, source: str, key: str | None) -> None:
    """Give the provider service the key of a source, or have it forget the key; no other process sees it."""
    await peer.call("provider.set_key", {"source": source, "key": key})


def typed(value: str, kind: str) -> Any:
    """Return a value as its setting has it; what does not fit goes on as text, and the kernel says why it does not.

    :param kind: string, int, float, bool, duration, select, text or secret
    """
    try:
        if kind == "int":
            return int(value)
        if kind == "float":
            return float(value)
    except ValueError:
        return value
    if kind == "bool" and value.lower() in _TRUE | _FALSE:
        return value.lower() in _TRUE
    return value


def _refuse_key_in_arguments(value: str | None) -> None:
    if value is not None:
        raise Invalid(text("command.key_in_arguments"), hint=text("command.key_in_arguments_hint"))


def _tell_entry(entry: dict[str, Any], as_json: bool) -> None:
    if as_json:
        write_json(entry)
    else:
        tell(f"{entry['key']} = {_value_shown(entry)}")


def _value_shown(entry: dict[str, Any]) -> str:
    if entry.get("secret"):
        return text("command.secret_set") if entry.get("is_set") else text("command.secret_not_set")
    return shown(entry["value"]) if entry["value"] is not None else ""


def _described(entry: dict[str, Any]) -> str:
    description = entry.get("description") or {}
    return str(description.get(language()) or description.get("en") or "")
