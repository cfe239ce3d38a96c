"""Writes ``docs/settings.md`` from the definitions: ``python -m kernel.config.documentation docs/settings.md``."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from kernel.config.core_settings import CORE_SETTINGS
from kernel.config.definitions import Definition

_HEAD = """# Settings

Made from `kernel/config/core_settings.py` by `python -m kernel.config.documentation docs/settings.md`.

`homeagent config list` shows all settings with their values, `homeagent config set KEY VALUE` changes one at once,
`homeagent config unset KEY` brings the default back. `homeagent up --set KEY=VALUE` overrides one for that run only.
Durations are written as `90s`, `30m`, `1h30m`, `2d` or `1w`; a bare number means seconds.

A source of answers, that is a model behind an API, has a name of your choice, which stands for `<name>` below. Its key
is not a setting: `homeagent config set core.llm.sources.<name>.api_key` reads it from its input and hands it to the
provider service, the only process that keeps it.

Plugins define settings of their own, `plugin.<plugin>.<key>`, in their `plugin.json`; `homeagent config list plugin.`
shows those of all plugins that were started once.

"""


def documentation() -> str:
    """Return the page on all settings of the agent itself."""
    return _HEAD + "\n".join(_table(CORE_SETTINGS)) + "\n"


def _table(definitions: Iterable[Definition]) -> Iterable[str]:
    yield "| Key | Type | Default | Meaning | 含义 |"
    yield "|---|---|---|---|---|"
    for each in definitions:
        english, chinese = (each.description[language].replace("|", "\\|") for language in ("en", "zh"))
        yield f"| `{each.key}` | {_type(each)} | {_default(each)} | {english} | {chinese} |"


def _type(definition: Definition) -> str:
    if definition.options:
        return " / ".join(f"`{option}`" for option in definition.options)
    low, high = definition.minimum, definition.maximum
    if definition.type == "duration" or (low is None and high is None):
        return definition.type
    bounds = f"{low:.0f} to {high:.0f}" if high is not None else f"from {low:.0f}"
    return f"{definition.type}, {bounds}"


def _default(definition: Definition) -> str:
    if definition.default == "":
        return "empty"
    if isinstance(definition.default, bool):
        return str(definition.default).lower()
    return str(definition.default)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(documentation(), encoding="utf-8")
