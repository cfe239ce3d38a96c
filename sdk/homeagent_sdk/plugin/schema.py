"""From a function to a tool: its JSON schema, and the check of the arguments before the function runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_type_hints

from homeagent_sdk.errors import Invalid
from homeagent_sdk.plugin.docstring import Docstring, parse_docstring
from homeagent_sdk.plugin.messages import ToolContext
from homeagent_sdk.plugin.shapes import Field, ObjectShape, description_of, shape_of

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """What is known of a tool from its function alone."""

    description: str
    arguments: ObjectShape
    context_parameter: str | None
    """The parameter that receives the :class:`ToolContext`, if the function has one."""

    def parameters(self) -> dict[str, Any]:
        """Return the JSON schema of the arguments."""
        return self.arguments.schema()

    def bind(self, arguments: Any, context: ToolContext) -> dict[str, Any]:
        """Return the keyword arguments to call the function with.

        :raises Invalid: an argument is missing, unknown or of the wrong type; ``field`` names it
        """
        bound: dict[str, Any] = self.arguments.coerce({} if arguments is None else arguments, "")
        if self.context_parameter is not None:
            bound[self.context_parameter] = context
        return bound


def tool_schema(name: str, function: Callable[..., Any]) -> ToolSchema:
    """Read a tool's schema off its signature and docstring.

    :raises Invalid: something cannot be told to a model, or the docstring does not fit the signature
    """
    docstring = parse_docstring(function)
    if not docstring.description:
        raise Invalid(f"tool {name} has no docstring", hint="say in its docstring what it does: the model reads it")
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise Invalid(f"tool {name}: {error}", hint="import the names in its annotations at module level") from error
    members: list[Field] = []
    context_parameter: str | None = None
    for parameter in inspect.signature(function).parameters.values():
        if hints.get(parameter.name) is ToolContext:
            context_parameter = parameter.name
        else:
            members.append(_member(name, parameter, hints, docstring))
    _refuse_unknown_parameters(name, docstring, {member.name for member in members} | {context_parameter})
    return ToolSchema(docstring.description, ObjectShape(members, dict), context_parameter)


def _member(name: str, parameter: inspect.Parameter, hints: dict[str, Any], docstring: Docstring) -> Field:
    where = f"parameter {parameter.name} of tool {name}"
    if parameter.kind not in _NAMED:
        raise Invalid(f"{where} cannot be given by name", hint="tools take no *args, **kwargs or positional-only ones")
    if parameter.name not in hints:
        raise Invalid(f"{where} has no annotation", hint="annotate it, e.g. str")
    annotation = hints[parameter.name]
    has_default = parameter.default is not inspect.Parameter.empty
    return Field(
        parameter.name,
        shape_of(annotation, where),
        docstring.parameters.get(parameter.name) or description_of(annotation),
        has_default=has_default,
        default=parameter.default if has_default else None,
    )


def _refuse_unknown_parameters(name: str, docstring: Docstring, known: set[Any]) -> None:
    for documented in docstring.parameters:
        if documented not in known:
            raise Invalid(f"the docstring of tool {name} describes {documented}, which it does not take")
