from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homeagent_sdk.errors import Invalid
from homeagent_sdk.plugin import ToolContext
from homeagent_sdk.plugin.schema import tool_schema


@dataclass
class Place:
    city: str
    floor: int = 0

    def __post_init__(self) -> None:
        if self.floor > 100:
            raise ValueError("no house is that high")


def everything(
    text: str,
    count: int,
    ratio: float,
    flag: bool,
    names: list[str],
    table: dict[str, int],
    unit: Literal["C", "F"],
    place: Place,
    anything: Any,
    note: str | None,
    context: ToolContext,
    limit: Annotated[int, "at most so many"] = 5,
) -> str:
    """Do everything.

    It has two paragraphs.

    :param text: what to say,
        at length
    :param str unit: the unit
    :returns: nothing of interest to a model
    """
    return ""


GOOD = {
    "text": "a",
    "count": 1,
    "ratio": 0.5,
    "flag": True,
    "names": ["x"],
    "table": {"a": 1},
    "unit": "C",
    "place": {"city": "Bern"},
    "anything": [1, {"b": 2}],
}


def bind(**changed: Any) -> dict[str, Any]:
    arguments = {**GOOD, **changed}
    return tool_schema("everything", everything).bind(arguments, ToolContext(channel="c"))


def test_the_schema_comes_from_annotations_and_docstring() -> None:
    schema = tool_schema("everything", everything)
    parameters = schema.parameters()
    properties = parameters["properties"]
    assert schema.description == "Do everything.\n\nIt has two paragraphs."
    assert properties["text"] == {"type": "string", "description": "what to say, at length"}
    assert properties["unit"] == {"type": "string", "enum": ["C", "F"], "description": "the unit"}
    assert properties["names"] == {"type": "array", "items": {"type": "string"}}
    assert properties["table"] == {"type": "object", "additionalProperties": {"type": "integer"}}
    assert properties["limit"] == {"type": "integer", "description": "at most so many", "default": 5}
    assert properties["place"]["required"] == ["city"]
    assert properties["anything"] == {}
    assert "context" not in properties, "the context is not the model's business"
    assert parameters["required"] == [name for name in GOOD]
    assert parameters["additionalProperties"] is False


def test_arguments_arrive_as_the_annotated_types() -> None:
    bound = bind()
    assert bound["place"] == Place("Bern")
    assert bound["note"] is None
    assert "limit" not in bound, "a default is the function's own"
    assert bound["context"] == ToolContext(channel="c")


@pytest.mark.parametrize(
    ("name", "sent", "meant"),
    [
        ("count", "12", 12),
        ("count", " -3 ", -3),
        ("count", 4.0, 4),
        ("count", "9007199254740993", 9007199254740993),
        ("ratio", "0.25", 0.25),
        ("ratio", 1, 1.0),
        ("flag", "yes", True),
        ("flag", "False", False),
        ("flag", 0, False),
        ("text", 12, "12"),
        ("text", True, "true"),
        ("unit", "c", "C"),
        ("place", {"city": "Bern", "floor": "3"}, Place("Bern", 3)),
    ],
)
def test_sloppy_values_are_understood(name: str, sent: Any, meant: Any) -> None:
    assert bind(**{name: sent})[name] == meant


@pytest.mark.parametrize(
    ("name", "sent", "field", "reason"),
    [
        ("count", "12s", "count", "type"),
        ("count", 1.5, "count", "type"),
        ("count", True, "count", "type"),
        ("ratio", "nan", "ratio", "type"),
        ("ratio", float("inf"), "ratio", "type"),
        ("ratio", 10**400, "ratio", "type"),
        ("flag", "perhaps", "flag", "type"),
        ("text", ["a"], "text", "type"),
        ("text", None, "text", "required"),
        ("names", "x", "names", "type"),
        ("names", ["x", {}], "names[1]", "type"),
        ("table", {"a": "b"}, "table.a", "type"),
        ("table", [], "table", "type"),
        ("unit", "K", "unit", "value"),
        ("place", {"town": "Bern"}, "place.town", "unknown"),
        ("place", {}, "place.city", "required"),
        ("place", {"city": "Bern", "floor": 101}, "place", "value"),
        ("nonsense", 1, "nonsense", "unknown"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(name: str, sent: Any, field: str, reason: str) -> None:
    with pytest.raises(Invalid) as caught:
        bind(**{name: sent})
    assert caught.value.field == field
    assert caught.value.detail["reason"] == reason


def test_a_missing_argument_says_what_to_give() -> None:
    def tool(text: str) -> None:
        """Say.

        :param text: what to say
        """

    with pytest.raises(Invalid) as caught:
        tool_schema("tool", tool).bind({}, ToolContext())
    assert caught.value.hint == "give text (what to say); do not repeat the call without it"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*GOOD, "note", "limit", "other"]), json_values) | json_values)
def test_whatever_a_model_sends_is_bound_or_invalid(arguments: Any) -> None:
    sent = {**GOOD, **arguments} if isinstance(arguments, dict) else arguments
    try:
        bound = tool_schema("everything", everything).bind(sent, ToolContext())
    except Invalid as error:
        assert error.message
    else:
        assert isinstance(bound["count"], int) and isinstance(bound["ratio"], float)


def no_docstring(text: str) -> None: ...


def no_annotation(text) -> None:  # type: ignore[no-untyped-def]
    """Say."""


def odd_annotation(text: set[str]) -> None:
    """Say."""


def many(*texts: str) -> None:
    """Say."""


def unknown_type(text: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821
    """Say."""


def wrong_docs(text: str) -> None:
    """Say.

    :param txet: misspelt
    """


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (no_docstring, "no docstring"),
        (no_annotation, "no annotation"),
        (odd_annotation, "cannot be told to a model"),
        (many, "cannot be given by name"),
        (unknown_type, "Nowhere"),
        (wrong_docs, "txet"),
    ],
)
def test_a_function_that_cannot_be_told_to_a_model_is_refused(function: Any, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        tool_schema(function.__name__, function)
