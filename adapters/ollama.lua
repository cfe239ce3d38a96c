-- Ollama's own API (/api/chat). Give the server's address as base_url, such as http://127.0.0.1:11434.
-- The contract of an adapter is told at the top of openai.lua.

local get = json.get

local adapter = { name = "ollama", version = "1", endpoint = "/api/chat", headers = {}, plain_messages = "raw" }

-- Request ------------------------------------------------------------------------------------------------------------

-- Images go beside the text, as base64 without the head of the data URL.
local function split_content(content)
  if type(content) ~= "table" or json.is_null(content) then
    return json.is_null(content) and "" or content, nil
  end
  local texts, images = {}, json.list()
  for _, part in ipairs(content) do
    local url = get(part, "image_url", "url")
    if url then
      local data = string.match(string.sub(url, 1, 200), "^data:[^,]*,()")
      if not data then error("ollama takes images as data only, not as links", 0) end
      images[#images + 1] = string.sub(url, data)
    elseif get(part, "text") then
      texts[#texts + 1] = part.text
    end
  end
  return table.concat(texts, "\n"), #images > 0 and images or nil
end

local function out_tool_call(call)
  local inner = get(call, "function") or call
  local arguments = get(inner, "arguments")
  if type(arguments) == "string" then arguments = json.decode(arguments) or { raw = arguments } end
  if type(arguments) ~= "table" then arguments = { value = arguments } end
  return { ["function"] = { name = get(inner, "name"), arguments = arguments } }
end

local function out_message(message, tool_names)
  if json.is_raw(message) then return message end
  local content, images = split_content(message.content)
  local out = { role = message.role, content = content, images = images }
  local calls = get(message, "tool_calls")
  if calls and #calls > 0 then
    out.tool_calls = json.list()
    for i, call in ipairs(calls) do
      out.tool_calls[i] = out_tool_call(call)
      tool_names[get(call, "id") or ""] = out.tool_calls[i]["function"].name
    end
  end
  if message.role == "tool" then
    out.tool_name = get(message, "name") or tool_names[get(message, "tool_call_id") or ""]
  end
  return out
end

local function out_tools(tools)
  local out = json.list()
  for i, tool in ipairs(tools) do
    local parameters = get(tool, "parameters") or { type = "object", properties = {} }
    out[i] = {
      type = "function",
      ["function"] = { name = tool.name, description = get(tool, "description"), parameters = parameters },
    }
  end
  return out
end

function adapter.transform_request(request, meta)
  local body = {
    model = request.model, messages = json.list(), stream = get(request, "stream") or false,
    options = { temperature = get(request, "temperature"), num_predict = get(request, "max_tokens"),
      num_ctx = get(meta, "context_window") },
  }
  local tool_names = {}
  for i, message in ipairs(request.messages) do body.messages[i] = out_message(message, tool_names) end
  local tools = get(request, "tools")
  if tools and #tools > 0 and get(request, "tool_choice") ~= "none" then body.tools = out_tools(tools) end
  if get(request, "disable_thinking") then body.think = false end
  return body
end

-- Answer -------------------------------------------------------------------------------------------------------------

local function in_usage(body)
  local prompt, completion = get(body, "prompt_eval_count"), get(body, "eval_count")
  if not prompt and not completion then return nil end
  return { prompt_tokens = prompt or 0, completion_tokens = completion or 0 }
end

-- Ollama sends each tool call whole and without an id; `first` is the index of the next one.
local function in_tool_calls(message, first)
  local calls = get(message, "tool_calls")
  if not calls or #calls == 0 then return nil end
  local found = json.list()
  for i, call in ipairs(calls) do
    found[i] = {
      index = first + i - 1, id = get(call, "id"), name = get(call, "function", "name"),
      arguments = json.encode(get(call, "function", "arguments") or {}),
    }
  end
  return found
end

local function in_body(body, state)
  local problem = get(body, "error")
  if problem then return { error = adapter.transform_error(nil, body) } end
  local message = get(body, "message")
  local first = state.calls or 0
  local piece = {
    content = get(message, "content"), reasoning = get(message, "thinking"),
    tool_calls = in_tool_calls(message, first),
  }
  if piece.tool_calls then state.calls = first + #piece.tool_calls end
  if get(body, "done") then
    piece.finish_reason = (state.calls or 0) > 0 and "tool_calls" or get(body, "done_reason") or "stop"
    piece.usage = in_usage(body)
  end
  return piece
end

function adapter.transform_response(body) return in_body(body, {}) end
function adapter.transform_stream_chunk(event, state) return in_body(event, state) end

-- Errors: {"error": "text"} and a status; 404 means that the model is not there --------------------------------------

function adapter.transform_error(status, body)
  local message = get(body, "error") or get(body, "error", "message")
  local kind = nil
  if status == 404 and message then kind = "model" end
  return { status = status, kind = kind, message = type(message) == "string" and message or nil }
end

return adapter
