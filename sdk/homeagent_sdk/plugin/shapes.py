"""One annotation, both ways: the JSON schema that the model sees, and the check of what the model sent.

Checks are lenient where models are sloppy (numbers in strings, whole floats for integers) and strict where a guess
could do harm (arrays, objects, unknown keys).
"""

from __future__ import annotations

import dataclasses
import math
import types
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from homeagent_sdk.errors import Invalid

_TRUE = frozenset({"true", "yes", "1", "on"})
_FALSE = frozenset({"false", "no", "0", "off"})


def bad_value(path: str, expected: str, value: Any, hint: str | None = None, reason: str = "type") -> Invalid:
    """Return the error for a value that does not fit."""
    shown = repr(value)
    shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
    return Invalid(f"{path} must be {expected}, not {shown}", field=path, hint=hint, detail={"reason": reason})


class Shape(ABC):
    """What a value must look like."""

    is_optional = False

    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """Return the JSON schema."""

    @abstractmethod
    def coerce(self, value: Any, path: str) -> Any:
        """Return ``value`` as the annotated type.

        :param path: where the value stands, for the error
        :raises Invalid: it does not fit; ``detail["reason"]`` is required, type, value or unknown
        """


class AnyShape(Shape):
    """Anything that JSON can say."""

    def schema(self) -> dict[str, Any]:
        """Return the schema that allows everything."""
        return {}

    def coerce(self, value: Any, path: str) -> Any:
        """Return the value."""
        return value


class TextShape(Shape):
    """A string; numbers and booleans are written out."""

    def schema(self) -> dict[str, Any]:
        """Return the schema of a string."""
        return {"type": "string"}

    def coerce(self, value: Any, path: str) -> str:
        """Return a string."""
        if isinstance(value, str):
            return value
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int | float):
            return str(value)
        raise bad_value(path, "a string", value)


class IntegerShape(Shape):
    """A whole number, also as text or as a float without a fraction."""

    def schema(self) -> dict[str, Any]:
        """Return the schema of an integer."""
        return {"type": "integer"}

    def coerce(self, value: Any, path: str) -> int:
        """Return an int."""
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        number = _number(value)
        if number is None or not number.is_integer():
            raise bad_value(path, "a whole number", value)
        return int(value.strip()) if isinstance(value, str) and value.strip().lstrip("+-").isdigit() else int(number)


class NumberShape(Shape):
    """A number, also as text; never NaN or infinite."""

    def schema(self) -> dict[str, Any]:
        """Return the schema of a number."""
        return {"type": "number"}

    def coerce(self, value: Any, path: str) -> float:
        """Return a float."""
        number = _number(value)
        if number is None:
            raise bad_value(path, "a number", value)
        return number


class BooleanShape(Shape):
    """True or false, also as the usual words or as 0 and 1."""

    def schema(self) -> dict[str, Any]:
        """Return the schema of a boolean."""
        return {"type": "boolean"}

    def coerce(self, value: Any, path: str) -> bool:
        """Return a bool."""
        if isinstance(value, bool):
            return value
        word = str(value).strip().lower() if isinstance(value, str | int | float) else ""
        if word in _TRUE or value == 1:
            return True
        if word in _FALSE or value == 0:
            return False
        raise bad_value(path, "true or false", value)


@dataclass(slots=True)
class ChoiceShape(Shape):
    """One of a fixed set of values."""

    options: tuple[Any, ...]

    def schema(self) -> dict[str, Any]:
        """Return an enum, with its type where all options share one."""
        kinds = {_JSON_TYPES.get(type(option)) for option in self.options}
        enum: dict[str, Any] = {"enum": list(self.options)}
        return {"type": kinds.pop(), **enum} if len(kinds) == 1 and None not in kinds else enum

    def coerce(self, value: Any, path: str) -> Any:
        """Return the option that was meant."""
        for option in self.options:
            if type(option) is type(value) and option == value:
                return option
        for option in self.options:
            if str(option).lower() == str(value).strip().lower():
                return option
        expected = "one of " + ", ".join(repr(option) for option in self.options)
        raise bad_value(path, expected, value, reason="value")


@dataclass(slots=True)
class ListShape(Shape):
    """A list whose items have one shape."""

    item: Shape

    def schema(self) -> dict[str, Any]:
        """Return the schema of an array."""
        return {"type": "array", "items": self.item.schema()}

    def coerce(self, value: Any, path: str) -> list[Any]:
        """Return a list."""
        if not isinstance(value, list | tuple):
            raise bad_value(path, "an array", value)
        return [self.item.coerce(item, f"{path}[{index}]") for index, item in enumerate(value)]


@dataclass(slots=True)
class MappingShape(Shape):
    """An object with keys of the caller's choice and values of one shape."""

    value: Shape

    def schema(self) -> dict[str, Any]:
        """Return the schema of an open object."""
        return {"type": "object", "additionalProperties": self.value.schema() or True}

    def coerce(self, value: Any, path: str) -> dict[str, Any]:
        """Return a dict."""
        if not isinstance(value, dict):
            raise bad_value(path, "an object", value)
        return {str(key): self.value.coerce(item, f"{path}.{key}") for key, item in value.items()}


@dataclass(slots=True)
class OptionalShape(Shape):
    """A shape or null; a missing value is null."""

    inner: Shape
    is_optional = True

    def schema(self) -> dict[str, Any]:
        """Return the inner schema: a model leaves the value out instead of sending null."""
        return self.inner.schema()

    def coerce(self, value: Any, path: str) -> Any:
        """Return None or the inner value."""
        return None if value is None else self.inner.coerce(value, path)


@dataclass(slots=True)
class Field:
    """One named member of an object: a parameter of a tool, or a field of a dataclass."""

    name: str
    shape: Shape
    description: str = ""
    has_default: bool = False
    default: Any = None

    @property
    def is_required(self) -> bool:
        """Whether the model has to give it."""
        return not self.has_default and not self.shape.is_optional

    def schema(self) -> dict[str, Any]:
        """Return the member's schema with its description and default."""
        schema = dict(self.shape.schema())
        if self.description:
            schema["description"] = self.description
        if self.has_default and isinstance(self.default, str | int | float):
            schema["default"] = self.default
        return schema


@dataclass(slots=True)
class ObjectShape(Shape):
    """An object with known members; ``build`` makes the Python value of those that were given."""

    fields: list[Field]
    build: Callable[..., Any]

    def schema(self) -> dict[str, Any]:
        """Return the schema of a closed object."""
        schema: dict[str, Any] = {"type": "object", "properties": {f.name: f.schema() for f in self.fields}}
        required = [f.name for f in self.fields if f.is_required]
        if required:
            schema["required"] = required
        schema["additionalProperties"] = False
        return schema

    def coerce(self, value: Any, path: str) -> Any:
        """Return what ``build`` makes of the members; those left out or null take their default."""
        if not isinstance(value, dict):
            raise bad_value(path or "arguments", "an object", value)
        prefix = f"{path}." if path else ""
        self._refuse_unknown(value, prefix)
        given: dict[str, Any] = {}
        for member in self.fields:
            item = value.get(member.name)
            if item is not None:
                given[member.name] = member.shape.coerce(item, prefix + member.name)
            elif member.is_required:
                raise self._missing(member, prefix)
            elif not member.has_default:
                given[member.name] = None
        try:
            return self.build(**given)
        except ValueError as error:
            raise Invalid(f"{path}: {error}", field=path or None, detail={"reason": "value"}) from error

    def _refuse_unknown(self, value: dict[str, Any], prefix: str) -> None:
        known = [member.name for member in self.fields]
        for key in value:
            if key not in known:
                hint = f"known: {', '.join(known)}" if known else "it takes none"
                raise Invalid(
                    f"{prefix}{key} is not known", field=f"{prefix}{key}", hint=hint, detail={"reason": "unknown"}
                )

    @staticmethod
    def _missing(member: Field, prefix: str) -> Invalid:
        what = f" ({member.description})" if member.description else ""
        return Invalid(
            f"{prefix}{member.name} is missing",
            field=f"{prefix}{member.name}",
            hint=f"give {member.name}{what}; do not repeat the call without it",
            detail={"reason": "required"},
        )


def _number(value: Any) -> float | None:
    """Return a finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


_JSON_TYPES: dict[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}
_SIMPLE: dict[Any, Callable[[], Shape]] = {
    str: TextShape,
    int: IntegerShape,
    float: NumberShape,
    bool: BooleanShape,
    Any: AnyShape,
    list: lambda: ListShape(AnyShape()),
    dict: lambda: MappingShape(AnyShape()),
}


def shape_of(annotation: Any, where: str) -> Shape:
    """Return the shape that an annotation asks for.

    :param where: what is annotated, for the error
    :raises Invalid: the annotation cannot be told to a model
    """
    if annotation in _SIMPLE:
        return _SIMPLE[annotation]()
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return shape_of(arguments[0], where)
    if origin is Literal:
        return ChoiceShape(arguments)
    if origin is list:
        return ListShape(shape_of(arguments[0], where))
    if origin is dict and arguments[0] is str:
        return MappingShape(shape_of(arguments[1], where))
    if origin in (Union, types.UnionType) and len(arguments) == 2 and type(None) in arguments:
        return OptionalShape(shape_of(next(a for a in arguments if a is not type(None)), where))
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return _dataclass_shape(annotation, where)
    raise Invalid(
        f"{where} is annotated {annotation!r}, which cannot be told to a model",
        hint="use str, int, float, bool, list[...], dict[str, ...], Literal, Optional or a dataclass",
    )


def _dataclass_shape(kind: type, where: str) -> ObjectShape:
    hints = get_type_hints(kind, include_extras=True)
    members = [
        Field(
            member.name,
            shape_of(hints[member.name], f"{where}.{member.name}"),
            description_of(hints[member.name]),
            has_default=member.default is not dataclasses.MISSING or member.default_factory is not dataclasses.MISSING,
            default=None if member.default is dataclasses.MISSING else member.default,
        )
        for member in dataclasses.fields(kind)
        if member.init
    ]
    return ObjectShape(members, kind)


def description_of(annotation: Any) -> str:
    """Return the text of ``Annotated[kind, "text"]``, or an empty string."""
    if get_origin(annotation) is Annotated:
        return next((extra for extra in get_args(annotation)[1:] if isinstance(extra, str)), "")
    return ""
