"""What an adapter script can and cannot do; the Lua is real, in this process."""

import json

import pytest

from provider_service.lua_adapter import AdapterFailed, LuaAdapter

MEMORY = 32 * 1024 * 1024


def adapter(script, base=None, limit_s=0.3):
    return LuaAdapter("mine", script, base, MEMORY, limit_s)


def run(body, value=None, **options):
    """Run the body of a function of `x` and return what it returns."""
    made = adapter(f"return {{ transform_request = function(x, meta) {body} end }}", **options)
    return json.loads(made.call("transform_request", value))


# Values ---------------------------------------------------------------------------------------------------------------

VALUES = [
    None,
    True,
    0,
    -1,
    2**53 + 1,
    2**63 - 1,
    2**63,
    -(2**70),
    1.5,
    1e300,
    "",
    "你好 \u0000 😀",
    [],
    {},
    [None, 1, None],
    {"a": None, "b": [], "c": {}, "d": [[], [{}]], "": 1},
    [{"default": None, "enum": [None, 0, ""]}],
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_passes_through_as_it_is(value):
    assert run("return x", value) == value


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_passes_through_text_as_it_is(value):
    assert run("return json.decode(json.encode(x))", value) == value


def test_half_an_emoji_passes():
    assert run("return { x, x .. '' }", "\ud83d") == ["\ud83d", "\ud83d"]


def test_raw_json_keeps_its_bytes():
    made = adapter("return { transform_request = function(x) return { parameters = x.parameters } end }")
    value = {"parameters": {"z": 1, "a": [None, 2**80, 1.0], "m": "é"}}
    told = made.call("transform_request", value, raw_keys=frozenset({"parameters"}))
    assert told.decode() == '{"parameters":{"z":1,"a":[null,1208925819614629174706176,1.0],"m":"é"}}'


def test_raw_json_can_be_read():
    script = """return { transform_request = function(x)
        return { json.get(x, "parameters", "a", 2), json.open(x.parameters).z, tostring(x.parameters) }
    end }"""
    value = {"parameters": {"z": 1, "a": [5, 6]}}
    told = adapter(script).call("transform_request", value, raw_keys=frozenset({"parameters"}))
    assert json.loads(told) == [6, 1, '{"z":1,"a":[5,6]}']


def test_equal_requests_are_equal_bytes():
    body = "return { b = 1, a = { d = 1, c = 2 }, zz = 3, y = 4, k = 5 }"
    told = {adapter(f"return {{ transform_request = function() {body} end }}").call("transform_request") for _ in "123"}
    assert told == {b'{"a":{"c":2,"d":1},"b":1,"k":5,"y":4,"zz":3}'}


def test_null_is_not_nil_and_get_reads_both():
    body = "return { x.a == json.null, x.b == nil, json.get(x, 'a') == nil, json.get(x, 'c', 'd'), tostring(x.a) }"
    assert run(body, {"a": None, "c": {"d": 7}}) == [True, True, True, 7, "null"]


def test_an_empty_table_is_an_object_unless_it_was_made_a_list():
    assert run("return { a = {}, b = json.list(), c = json.list{1} }") == {"a": {}, "b": [], "c": [1]}


@pytest.mark.parametrize(
    "body",
    [
        "return print",
        "return { 1, a = 2 }",
        "return 1/0",
        "return 0/0",
        "local t = {} t.t = t return t",
        "return coroutine.create(function() end)",
        "return { [{}] = 1 }",
        "return string.format",
        "local t = {} for i = 1, 60 do t = { t, t } end return t",
    ],
)
def test_what_json_cannot_say_is_refused(body):
    with pytest.raises(AdapterFailed, match=r"mine\.lua"):
        run(body if "print" not in body else "return function() end")


def test_text_that_is_no_json_decodes_to_nil():
    assert run("return { json.decode('{') == nil, json.decode(7) == nil, json.encode(function() end) == nil }") == [
        True,
        True,
        True,
    ]


# Limits ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "coroutine.wrap(function() while true do end end)()",
        "coroutine.wrap(function() while true do pcall(error) end end)()",
        "local co = coroutine.create(function() while true do end end) while true do coroutine.resume(co) end",
        "local function f() return f() end return f()",
        "return setmetatable({}, { __index = function(t, k) return t[k .. 'x'] end }).a",
    ],
)
def test_a_script_that_does_not_end_is_ended(body):
    with pytest.raises(AdapterFailed) as caught:
        run(body)
    assert "time" in str(caught.value) or "overflow" in str(caught.value) or "C stack" in str(caught.value)


def test_a_script_that_loops_while_it_loads_is_ended():
    with pytest.raises(AdapterFailed, match="time"):
        adapter("while true do end")


@pytest.mark.parametrize(
    "body",
    [
        "local t = {} for i = 1, 1e9 do t[i] = { i } end",
        "local s = 'x' while true do s = s .. s end",
        "return string.rep('x', 10000000):rep(1000)",
        "return ('x'):rep(1e12)",
        "return table.concat({}, 'x', 1, 1e9)",
    ],
)
def test_a_script_that_takes_all_memory_is_ended(body):
    with pytest.raises(AdapterFailed):
        run(body, limit_s=5)


def test_a_spent_script_says_so_and_a_broken_one_does_not():
    with pytest.raises(AdapterFailed) as spent:
        run("while true do end")
    with pytest.raises(AdapterFailed) as broken:
        run("error('oh')")
    assert spent.value.is_spent
    assert not broken.value.is_spent


# Rights ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *("os", "io", "package", "debug", "load", "loadstring", "loadfile", "dofile", "require", "python", "print"),
        *("collectgarbage", "string.dump", "warn", "_G.os", "_G._G.io", "getfenv", "rawget(_G, 'debug')"),
    ],
)
def test_what_leads_outside_is_not_there(name):
    assert run(f"return {{ tostring({name}) }}") == ["nil"]


@pytest.mark.parametrize(
    "body",
    [
        "return getmetatable('').__index.dump ~= nil",
        "local g = getmetatable(_G) return g ~= nil",
        "for k, v in pairs(_G) do if type(v) == 'userdata' then return true end end return false",
        "for k, v in pairs(json) do if type(v) == 'userdata' then return true end end return false",
        "local ok, e = pcall(json.decode, ('['):rep(100000)) return type(e) == 'userdata'",
        "local ok, e = pcall(log, {}, {}) return type(e) == 'userdata'",
        "local t = {} t.t = t local ok, e = pcall(json.encode, t) return type(e) == 'userdata'",
        "return getmetatable(json.null) ~= 'json.null'",
    ],
)
def test_no_python_object_is_within_reach(body):
    assert run(body) is False


@pytest.mark.parametrize("body", ["json.null.x = 1", "setmetatable({}, { __gc = function() end })", "log()"])
def test_what_is_closed_stays_closed(body):
    if body == "log()":
        assert run("log() log('a', 'b') return 1") == 1
        return
    with pytest.raises(AdapterFailed):
        run(body)


def test_byte_code_does_not_load():
    with pytest.raises(AdapterFailed):
        adapter("\x1bLua")


def test_one_adapter_does_not_see_another():
    adapter("string.evil = 1 shared = 2 return {}")
    assert run("return { tostring(string.evil), tostring(shared) }") == ["nil", "nil"]


# Messages -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("return {", "mine.lua:1"),
        ("return 7", "mine.lua: the script must return a table"),
        ("error('oh')", "mine.lua:1: oh"),
        ("\n\nlocal x = nil + 1", "mine.lua:3: attempt to perform arithmetic"),
    ],
)
def test_a_script_that_does_not_load_tells_where(script, message):
    with pytest.raises(AdapterFailed) as caught:
        adapter(script)
    assert message in str(caught.value)
    assert "traceback" not in str(caught.value)


def test_an_error_of_any_kind_is_a_message():
    for thrown in ("nil", "{}", "{ code = 1 }", "7", "json.null", "('x'):rep(100000)"):
        with pytest.raises(AdapterFailed) as caught:
            run(f"error({thrown})")
        assert 0 < len(str(caught.value)) <= 300


def test_what_an_adapter_logs_is_kept_within_bounds():
    made = adapter("return { transform_request = function() for i = 1, 1000 do log('info', ('x'):rep(9999)) end end }")
    made.call("transform_request")
    assert len(made.log) == 20
    assert all(len(message) == 500 for _, message in made.log)


def test_what_an_adapter_does_not_define_is_taken_from_the_base():
    base = "local function f() return { from = 'base' } end return { endpoint = '/b', headers = { a = 'b' }, X = f }"
    base = base.replace("X", "transform_request")
    made = adapter("return { endpoint = '/mine' }", base)
    assert made.value("endpoint") == "/mine"
    assert made.value("headers") == {"a": "b"}
    assert json.loads(made.call("transform_request")) == {"from": "base"}
    with pytest.raises(AdapterFailed, match="no function transform_error"):
        made.call("transform_error", 500, "")
