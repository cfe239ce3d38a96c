-- What an adapter can reach. Run once in each Lua state, before the adapter; its three arguments are Python functions
-- that never raise, kept here as upvalues so that no script holds a Python object.
local decode_json, encode_json, write_log = ...

local load, sethook, clock, next, type = load, debug.sethook, os.clock, next, type
local getmetatable, setmetatable, rawget, rawlen, rawequal = getmetatable, setmetatable, rawget, rawlen, rawequal
local error, select, tostring, pack, unpack = error, select, tostring, table.pack, table.unpack
local rep, sub, create, resume = string.rep, string.sub, coroutine.create, coroutine.resume

local MAX_REPEATED_BYTES = 16 * 1024 * 1024
local INSTRUCTIONS_BETWEEN_CHECKS = 10000

-- JSON that Lua has no value for ------------------------------------------------------------------------------------

local function refuse() error("this value cannot be changed", 2) end

local null = setmetatable({}, {
  __name = "json.null", __metatable = "json.null", __newindex = refuse,
  __tostring = function() return "null" end,
})
local list_mark = { __name = "json.list" }
local big_integer = { __name = "json.integer", __metatable = "json.integer", __newindex = refuse }
local digits_of = setmetatable({}, { __mode = "k" })
big_integer.__tostring = function(value) return digits_of[value] end

local function new_big_integer(digits)
  local value = setmetatable({}, big_integer)
  digits_of[value] = digits
  return value
end

-- JSON text that is passed on unread.
local raw_json = { __name = "json.raw", __metatable = "json.raw", __newindex = refuse }
local text_of_raw = setmetatable({}, { __mode = "k" })
raw_json.__tostring = function(value) return text_of_raw[value] end

local function new_raw(text)
  local value = setmetatable({}, raw_json)
  text_of_raw[value] = text
  return value
end

local function mark_list(t) return setmetatable(t, list_mark) end

-- Tell Python what a value is: "o" object, "l" list and its length, "n" null, "i" integer and its digits, "r" raw JSON
-- and its text, "x" a table that is both list and object, "f" no table at all.
local function inspect(t)
  if type(t) ~= "table" then return "f", 0 end
  if rawequal(t, null) then return "n", 0 end
  local mark = getmetatable(t)
  if mark == "json.integer" and digits_of[t] then return "i", digits_of[t] end
  if mark == "json.raw" and text_of_raw[t] then return "r", text_of_raw[t] end
  local length = rawlen(t)
  local is_list = length > 0 or mark == list_mark
  if not is_list then return "o", 0 end
  local entries = 0
  for _ in next, t do entries = entries + 1 end
  if entries ~= length then return "x", 0 end
  return "l", length
end

local json = { null = null }

function json.list(t) return mark_list(t or {}) end
function json.is_null(value) return value == nil or rawequal(value, null) end

-- Whether a value is raw JSON, which can only be passed on or read with json.open.
function json.is_raw(value) return type(value) == "table" and text_of_raw[value] ~= nil end

function json.decode(text)
  if type(text) ~= "string" then return nil end
  return decode_json(text)
end

-- Read raw JSON; anything else is returned as it is.
function json.open(value)
  local text = type(value) == "table" and text_of_raw[value]
  if text then return decode_json(text) end
  return value
end

-- The value at a path of keys, or nil where it is missing or null.
function json.get(value, ...)
  for i = 1, select("#", ...) do
    value = json.open(value)
    if type(value) ~= "table" or rawequal(value, null) then return nil end
    value = rawget(value, (select(i, ...)))
  end
  if rawequal(value, null) then return nil end
  return value
end

function json.encode(value) return encode_json(value) end

-- Time --------------------------------------------------------------------------------------------------------------

local deadline, is_late = math.huge, false

-- Once late, an error follows every single instruction, so that a loop around pcall ends too.
local function check_time()
  if clock() > deadline then
    is_late = true
    sethook(check_time, "", 1)
    error("the adapter used up its time", 0)
  end
end

-- Python calls these two around everything that it does in this state.
local function start_clock(limit_s)
  deadline = clock() + limit_s
  sethook(check_time, "", INSTRUCTIONS_BETWEEN_CHECKS)
end

local function stop_clock()
  sethook()
  return is_late
end

local function create_bounded(f)
  local thread = create(f)
  sethook(thread, check_time, "", INSTRUCTIONS_BETWEEN_CHECKS)
  return thread
end

local function wrap_bounded(f)
  local thread = create_bounded(f)
  return function(...)
    local results = pack(resume(thread, ...))
    if not results[1] then error(results[2], 0) end
    return unpack(results, 2, results.n)
  end
end

-- The rest ----------------------------------------------------------------------------------------------------------

string.dump = nil
string.rep = function(text, times, separator)
  local size = (#tostring(text) + #(separator or "")) * (times or 0)
  if size > MAX_REPEATED_BYTES then error("string.rep: the result would be too large", 2) end
  return rep(text, times, separator)
end

-- A finaliser runs where no hook can stop it.
local function set_metatable(t, metatable)
  if type(metatable) == "table" and rawget(metatable, "__gc") ~= nil then
    error("__gc is not available to adapters", 2)
  end
  return setmetatable(t, metatable)
end

local function copy(names, from)
  local to = {}
  for _, name in next, names do to[name] = from[name] end
  return to
end

local function new_environment()
  local env = copy({ "assert", "error", "getmetatable", "ipairs", "next", "pairs", "pcall", "rawequal", "rawget",
    "rawlen", "rawset", "select", "tonumber", "tostring", "type", "xpcall", "string", "table", "math", "utf8" }, _G)
  env.setmetatable = set_metatable
  env.coroutine = copy({ "isyieldable", "resume", "running", "status", "yield" }, coroutine)
  env.coroutine.create, env.coroutine.wrap = create_bounded, wrap_bounded
  env.json = json
  env.log = function(level, message) write_log(sub(tostring(level), 1, 16), sub(tostring(message), 1, 500)) end
  env._G = env
  return env
end

-- Run the text of an adapter and return its table; the name appears in error messages.
local function load_adapter(text, name)
  local chunk, problem = load(text, "@" .. name, "t", new_environment())
  if not chunk then error(problem, 0) end
  local adapter = chunk()
  if type(adapter) ~= "table" then error(name .. ": the script must return a table", 0) end
  return adapter
end

return {
  null = null, mark_list = mark_list, new_big_integer = new_big_integer, new_raw = new_raw, inspect = inspect,
  start_clock = start_clock, stop_clock = stop_clock, load_adapter = load_adapter,
  field = function(t, key) return rawget(t, key) end,
}
