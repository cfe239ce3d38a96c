"""What a model wrote runs only if it is whole and fits."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel.tools import ArgumentsRefused, Tool, ToolRegistry, check_arguments, parse_arguments

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
    max_leaves=12,
)
ARGUMENTS = st.dictionaries(st.text(min_size=1), JSON, min_size=1, max_size=4)


def refused(schema, arguments):
    with pytest.raises(ArgumentsRefused) as refusal:
        check_arguments(schema, arguments)
    return refusal.value.problems


def properties(**members):
    return {"type": "object", "properties": members}


@settings(deadline=None)
@given(ARGUMENTS, st.booleans())
def test_whole_arguments_are_read_as_they_are(arguments, is_ascii):
    try:
        text = json.dumps(arguments, ensure_ascii=is_ascii)
        text.encode()
    except UnicodeEncodeError:
        return
    assert parse_arguments(text) == arguments


@settings(max_examples=60, deadline=None)
@given(ARGUMENTS)
def test_arguments_cut_off_at_any_place_are_never_run(arguments):
    text = json.dumps(arguments)
    for end in range(len(text)):
        with pytest.raises(ArgumentsRefused):
            parse_arguments(text[:end])


def test_a_tool_with_arguments_does_not_run_on_an_empty_text_and_one_without_does():
    registry = ToolRegistry()
    takes = Tool("a", "p", "d", properties(limit={"type": "integer"}))
    takes_none = Tool("b", "p", "d", properties())
    assert registry.arguments(takes_none, " ") == registry.arguments(takes_none, "{}") == {}
    assert registry.arguments(takes, "{}") == {}
    with pytest.raises(ArgumentsRefused) as refusal:
        registry.arguments(takes, "")
    assert refusal.value.problems[0].reason == "json"


def test_a_cut_off_is_called_so():
    for text in ('{"path": "/tmp/a', '{"path": "/tmp/a"', '{"path":'):
        with pytest.raises(ArgumentsRefused, match="cut off after") as refusal:
            parse_arguments(text)
        assert refusal.value.problems[0].to_wire().keys() == {"field", "reason", "detail", "hint"}
        assert "complete JSON" in refusal.value.hint
    with pytest.raises(ArgumentsRefused, match=r"Expecting ',' delimiter at character 8"):
        parse_arguments('{"a": 1 "b": 2}')


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        '"text"',
        "1",
        "null",
        '{"a": NaN}',
        '{"a": Infinity}',
        '{"a": 1} {"b": 2}',
        '{"a": 1}x',
        "{'a': 1}",
        '{"a": 100000000000000000000}',
        r'{"a": "\ud800"}',
        "[" * 100_000,
        '{"a":' * 2000 + "1" + "}" * 2000,
        '{"a": "' + "x" * (4 * 1024 * 1024) + '"}',
    ],
    ids=lambda text: text[:20],
)
def test_what_is_no_object_or_cannot_be_passed_on_is_refused(text):
    with pytest.raises(ArgumentsRefused) as refusal:
        parse_arguments(text)
    assert refusal.value.problems[0].reason == "json"
    assert len(refusal.value.message) < 400


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"delay": 20s}', {"delay": "20s"}),
        ('{"a": 1.5h, "b": [5m,2d ]}', {"a": "1.5h", "b": ["5m", "2d"]}),
        ('{"note": "wait: 20s, then go", "delay": 20s}', {"note": "wait: 20s, then go", "delay": "20s"}),
        (r'{"note": "say \"x\": 5m, ok", "delay": -3ms}', {"note": 'say "x": 5m, ok', "delay": "-3ms"}),
    ],
)
def test_bare_units_are_mended(text, arguments):
    assert parse_arguments(text) == arguments


@pytest.mark.parametrize("text", ['{"delay": 20s', '{"delay": 20x}', '{"a" 20s}', '{"delay": 20 s 5}'])
def test_mending_makes_nothing_run_that_is_broken_otherwise(text):
    with pytest.raises(ArgumentsRefused):
        parse_arguments(text)


def test_a_missing_or_blank_required_argument_is_named_with_its_meaning():
    schema = properties(path={"type": "string", "description": "file to read"}, note={"type": "string"}) | {
        "required": ["path"]
    }
    for arguments in ({}, {"path": ""}, {"path": "  "}, {"note": "x"}):
        (problem,) = refused(schema, arguments)
        assert (problem.field, problem.reason) == ("path", "required")
        assert "file to read" in problem.hint
        assert "do not repeat the call without it" in problem.hint
    assert check_arguments(schema, {"path": None}) == {"path": None}
    may_be_blank = properties(content={"type": "string", "minLength": 0}) | {"required": ["content"]}
    assert check_arguments(may_be_blank, {"content": ""}) == {"content": ""}


@pytest.mark.parametrize(
    ("schema", "given_value", "passed"),
    [
        ({"type": "integer"}, 5, 5),
        ({"type": "integer"}, 5.0, 5),
        ({"type": "integer"}, " 5 ", 5),
        ({"type": "integer"}, "9007199254740993", 9007199254740993),
        ({"type": "integer"}, "-5.0", -5),
        ({"type": "integer", "description": "delay in seconds"}, "20s", 20),
        ({"type": "integer", "description": "delay in seconds"}, "5m", 300),
        ({"type": "integer", "description": "how many minutes"}, "2h", 120),
        ({"type": "integer", "description": "等待的秒数"}, "1m", 60),
        ({"type": "number", "description": "timeout in milliseconds"}, "1.5s", 1500.0),
        ({"type": "number"}, 5, 5),
        ({"type": "number"}, "5.25", 5.25),
        ({"type": "boolean"}, True, True),
        ({"type": "boolean"}, "false", False),
        ({"type": "boolean"}, "Yes", True),
        ({"type": "boolean"}, 0, False),
        ({"type": "string"}, "x", "x"),
        ({"type": "string"}, 5, "5"),
        ({"type": "string"}, True, "true"),
        ({"type": "array"}, [1, "a"], [1, "a"]),
        ({"type": "array", "items": {"type": "integer"}}, ["1", 2], [1, 2]),
        ({"type": "object"}, {"any": 1}, {"any": 1}),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, {"a": "1"}, {"a": 1}),
        ({"enum": ["on", "off"]}, "on", "on"),
        ({"type": "string", "enum": ["on", "off"]}, " ON", "on"),
        ({"enum": [1, 2]}, "2", 2),
        ({"const": "x"}, "x", "x"),
        ({"type": ["integer", "null"]}, "4", 4),
        ({"anyOf": [{"type": "integer"}, {"type": "array"}]}, ["x"], ["x"]),
        ({"oneOf": [{"type": "array"}, {"type": "string"}]}, "x", "x"),
        ({"type": "integer", "minimum": 1, "maximum": 5}, "5", 5),
        ({}, {"what": "ever"}, {"what": "ever"}),
        ({"type": "sometype"}, 1, 1),
        ({"type": "integer"}, None, None),
    ],
)
def test_a_value_is_passed_on_in_the_type_that_the_tool_asks_for(schema, given_value, passed):
    checked = check_arguments(properties(value=schema), {"value": given_value})
    assert checked == {"value": passed}
    assert type(checked["value"]) is type(passed)


@pytest.mark.parametrize("name", ["delay_s", "wait_seconds", "timeout_secs"])
def test_the_name_of_an_argument_tells_its_unit_too(name):
    assert check_arguments(properties(**{name: {"type": "number"}}), {name: "2m"}) == {name: 120.0}


@pytest.mark.parametrize(
    ("schema", "value", "reason", "hint"),
    [
        ({"type": "integer"}, "20s", "type", "whole number without a unit"),
        ({"type": "integer", "description": "how many hours"}, "20s", "type", "whole number"),
        ({"type": "integer"}, 2.5, "type", "whole number"),
        ({"type": "integer"}, True, "type", "whole number"),
        ({"type": "integer"}, "many", "type", "whole number"),
        ({"type": "integer"}, [], "type", "whole number"),
        ({"type": "number"}, "nan", "type", "number"),
        ({"type": "number"}, "1e999", "type", "number"),
        ({"type": "boolean"}, "maybe", "type", "true or false"),
        ({"type": "boolean"}, [], "type", "true or false"),
        ({"type": "string"}, ["x"], "type", "a text"),
        ({"type": "string"}, {"x": 1}, "type", "a text"),
        ({"type": "array"}, '["x"]', "type", "not a text of one"),
        ({"type": "object"}, '{"x": 1}', "type", "not a text of one"),
        ({"enum": ["on", "off"]}, "dim", "value", "'on', 'off'"),
        ({"enum": ["on", "off"]}, ["on"], "value", "'on', 'off'"),
        ({"type": "integer", "minimum": 1, "maximum": 5}, 6, "value", "from 1 to 5"),
        ({"type": "number", "minimum": 1}, 0, "value", "from 1 to any"),
        ({"anyOf": [{"type": "integer"}, {"type": "array"}]}, "x", "type", "number"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_what_would(schema, value, reason, hint):
    (problem,) = refused(properties(value=schema), {"value": value})
    assert (problem.field, problem.reason) == ("value", reason)
    assert hint in problem.hint


def test_an_unknown_argument_is_reported_with_the_one_that_was_meant():
    schema = properties(path={"type": "string"}, limit={"type": "integer"})
    (problem,) = refused(schema, {"paht": "x"})
    assert (problem.field, problem.reason) == ("paht", "unknown")
    assert "did you mean path?" in problem.hint
    (problem,) = refused(properties(), {"x": 1})
    assert "it takes: none" in problem.hint
    assert check_arguments(schema | {"additionalProperties": True}, {"other": 1}) == {"other": 1}


def test_nested_values_are_checked_and_named_by_their_place():
    item = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name"],
    }
    schema = properties(people={"type": "array", "items": item})
    assert check_arguments(schema, {"people": [{"name": "A", "age": "3"}]}) == {"people": [{"name": "A", "age": 3}]}
    problems = refused(schema, {"people": [{"name": "A"}, {"age": "old", "nmae": "B"}]})
    assert [(each.field, each.reason) for each in problems] == [
        ("people[1].name", "required"),
        ("people[1].age", "type"),
        ("people[1].nmae", "unknown"),
    ]


def test_all_problems_are_told_at_once_but_not_without_end():
    schema = properties(**{f"n{index}": {"type": "integer"} for index in range(20)})
    problems = refused(schema, {f"n{index}": "x" for index in range(20)})
    assert len(problems) == 8


def test_what_was_given_is_not_changed():
    given_arguments = {"list": ["1"], "object": {"a": "1"}}
    schema = properties(
        list={"type": "array", "items": {"type": "integer"}},
        object={"type": "object", "properties": {"a": {"type": "integer"}}},
    )
    assert check_arguments(schema, given_arguments) == {"list": [1], "object": {"a": 1}}
    assert given_arguments == {"list": ["1"], "object": {"a": "1"}}


SCHEMAS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["string", "integer", "number", "boolean", "array", "object", "null", "odd"]),
        "enum": st.lists(JSON, max_size=3),
        "items": st.just({"type": "integer"}),
        "minimum": st.integers(-5, 5),
        "properties": st.just({"a": {"type": "string"}}),
    },
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from("abc"), SCHEMAS), st.dictionaries(st.sampled_from("abcd"), JSON))
def test_whatever_the_schema_and_the_arguments_the_check_ends_and_says_why(members, arguments):
    try:
        check_arguments(properties(**members), arguments)
    except ArgumentsRefused as refusal:
        assert all(problem.detail and problem.hint for problem in refusal.problems)
