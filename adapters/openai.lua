-- The OpenAI chat API, and everything that speaks it (DeepSeek, Kimi, Qwen, Mistral, Groq, OpenRouter, vLLM, llama.cpp, …).
--
-- An adapter translates one request to an API and its answers back. It is a table with:
--
--   endpoint              text, or function(request, meta): the path after the source's base_url
--   headers               table, or build_headers(meta): further headers; "{api_key}" in a value is replaced after Lua
--                         has run. If no value names it, the key goes into "Authorization: Bearer"
--   transform_request     function(request, meta) -> the body, a table or JSON text
--   transform_response    function(body) -> the answer, when the API did not stream
--   transform_stream_chunk function(event, state) -> a piece of the answer, or nil; `state` is kept for one stream
--   transform_error       function(status, body) -> {kind, code, message, retry_after_s}, or nil for the usual meaning
--
-- request  {model, messages, tools = {{name, description, parameters}}, tool_choice, temperature, max_tokens, stream,
--           disable_thinking}; messages as OpenAI shapes them, an assistant's may carry `opaque` of this adapter
-- meta     {source, model, base_url, timestamp}
-- answer   {content, reasoning, finish_reason, tool_calls = {{index, id, name, arguments}}, usage, opaque, error}; of a
--           piece, texts and arguments are the new part, index says which tool call goes on. `opaque` (a table) comes
--           back in the next request as it was. usage: {prompt_tokens, completion_tokens, total_tokens, cached_tokens,
--           reasoning_tokens}. error: {status, kind, code, message}
-- kind     key, model, rate, context, request or other
--
-- JSON null is json.null, which is not nil: read with json.get(value, "a", "b"), which gives nil for both. A table is a
-- list if it has entries 1..n or was made by json.list{}; json.encode, json.decode (nil if it is no JSON) and
-- log(level, message) exist. The parameters of tools, the values of `opaque` in requests, and in answers all objects and
-- lists under the names that an adapter lists in its field `opaque`, are raw JSON: one value that is passed on byte for
-- byte. json.open(value) and json.get read it. An adapter that passes messages of nothing but role and text on as they are
-- says so with plain_messages = "raw": these are then raw JSON too (json.is_raw), which makes long prompts cheap.
-- What an adapter leaves out is taken from this one, so for most APIs a few lines do:  return { endpoint = "/chat" }

local get = json.get

local adapter = {
  name = "openai", version = "1", endpoint = "/chat/completions", headers = {},
  opaque = { "reasoning_details", "extra_content" },
  plain_messages = "raw",
}

-- Request ------------------------------------------------------------------------------------------------------------

local function out_tool_call(call)
  local inner = get(call, "function") or call
  local arguments = get(inner, "arguments")
  if type(arguments) == "table" then arguments = json.encode(arguments) end
  return {
    id = get(call, "id"), type = "function",
    ["function"] = { name = get(inner, "name"), arguments = arguments or "{}" },
  }
end

local function out_message(message)
  if json.is_raw(message) then return message end
  local out = {
    role = message.role, content = message.content, name = get(message, "name"),
    tool_call_id = get(message, "tool_call_id"),
  }
  local calls = get(message, "tool_calls")
  if calls and #calls > 0 then
    out.tool_calls = json.list()
    for i, call in ipairs(calls) do out.tool_calls[i] = out_tool_call(call) end
    if out.content == "" then out.content = json.null end
  end
  for name, value in pairs(get(message, "opaque") or {}) do
    local number = tonumber(string.match(name, "^extra_content (%d+)$"))
    if not number then
      out[name] = value
    elseif out.tool_calls and out.tool_calls[number] then
      out.tool_calls[number].extra_content = value
    end
  end
  return out
end

local function out_tool(tool)
  local parameters = get(tool, "parameters") or { type = "object", properties = {} }
  return {
    type = "function",
    ["function"] = { name = tool.name, description = get(tool, "description"), parameters = parameters },
  }
end

-- OpenAI's own reasoning models refuse max_tokens and every temperature but their own.
local function is_openai_reasoning_model(name)
  local bare = string.match(name, "^openai/(.*)$") or name
  return string.find(bare, "^o%d") ~= nil or string.find(bare, "^gpt%-5") ~= nil
end

function adapter.transform_request(request)
  local body = { model = request.model, messages = json.list() }
  if is_openai_reasoning_model(request.model) then
    body.max_completion_tokens = get(request, "max_tokens")
  else
    body.max_tokens, body.temperature = get(request, "max_tokens"), get(request, "temperature")
  end
  for i, message in ipairs(request.messages) do body.messages[i] = out_message(message) end
  local tools = get(request, "tools")
  if tools and #tools > 0 then
    body.tools = json.list()
    for i, tool in ipairs(tools) do body.tools[i] = out_tool(tool) end
    body.tool_choice = get(request, "tool_choice")
  end
  if get(request, "stream") then
    body.stream = true
    body.stream_options = { include_usage = true }
  end
  return body
end

-- Answer -------------------------------------------------------------------------------------------------------------

-- Cached tokens are told in OpenAI's details or, by DeepSeek, beside the total.
local function in_usage(usage)
  if not usage then return nil end
  return {
    prompt_tokens = get(usage, "prompt_tokens"), completion_tokens = get(usage, "completion_tokens"),
    total_tokens = get(usage, "total_tokens"),
    cached_tokens = get(usage, "prompt_tokens_details", "cached_tokens") or get(usage, "prompt_cache_hit_tokens"),
    reasoning_tokens = get(usage, "completion_tokens_details", "reasoning_tokens"),
  }
end

local function in_error(problem)
  if type(problem) ~= "table" then return { message = tostring(problem) } end
  return adapter.transform_error(tonumber(get(problem, "status") or get(problem, "code")), { error = problem })
end

-- Content may be a text or a list of parts; refusals are shown as what the model said.
local function in_content(message)
  local content = get(message, "content")
  if type(content) == "table" then
    local texts = {}
    for _, part in ipairs(content) do texts[#texts + 1] = get(part, "text") end
    content = table.concat(texts)
  end
  return content or get(message, "refusal")
end

local function in_tool_calls(message, opaque)
  local calls = get(message, "tool_calls")
  if not calls or #calls == 0 then return nil end
  local found = json.list()
  for i, call in ipairs(calls) do
    local inner = get(call, "function") or {}
    local index = get(call, "index")
    found[i] = { index = index, id = get(call, "id"), name = get(inner, "name"), arguments = get(inner, "arguments") }
    if get(call, "extra_content") then opaque["extra_content " .. (index or i - 1) + 1] = call.extra_content end
  end
  return found
end

local function in_message(message, choice, body)
  local opaque = { reasoning_details = get(message, "reasoning_details") }
  local piece = {
    content = in_content(message), reasoning = get(message, "reasoning_content") or get(message, "reasoning"),
    tool_calls = in_tool_calls(message, opaque), finish_reason = get(choice, "finish_reason"),
    usage = in_usage(get(body, "usage") or get(choice, "usage")),
  }
  if next(opaque) then piece.opaque = opaque end
  return piece
end

function adapter.transform_response(body)
  local problem = get(body, "error")
  if problem then return { error = in_error(problem) } end
  local choice = get(body, "choices", 1)
  return in_message(get(choice, "message"), choice, body)
end

function adapter.transform_stream_chunk(event)
  local problem = get(event, "error")
  if problem then return { error = in_error(problem) } end
  local choice = get(event, "choices", 1)
  return in_message(get(choice, "delta") or get(choice, "message"), choice, event)
end

-- Errors -------------------------------------------------------------------------------------------------------------

local KIND_OF_CODE = {
  context_length_exceeded = "context", string_above_max_length = "context", request_too_large = "context",
  exceed_context_size_error = "context", -- llama.cpp
  invalid_api_key = "key", authentication_error = "key", account_deactivated = "key",
  model_not_found = "model", model_not_available = "model", permission_error = "model",
  rate_limit_exceeded = "rate", insufficient_quota = "other", billing_hard_limit_reached = "other",
}

-- Some servers (vLLM, older gateways) send no code for a full context, only these words.
local CONTEXT_WORDS = { "maximum context length", "context length exceeded", "exceeds the context window",
  "maximum prompt length", "input is too long" }

local function words_mean_context(message)
  local lower = string.lower(string.sub(message, 1, 2000))
  for _, words in ipairs(CONTEXT_WORDS) do
    if string.find(lower, words, 1, true) then return true end
  end
  return false
end

function adapter.transform_error(status, body)
  local problem = get(body, "error") or body
  if type(problem) == "string" then problem = { message = problem } end
  local code, kind_of = get(problem, "code"), nil
  for _, value in ipairs({ tostring(code), tostring(get(problem, "type")) }) do
    kind_of = kind_of or KIND_OF_CODE[value]
  end
  local message = get(problem, "message") or get(body, "message") or get(body, "detail")
  message = type(message) == "string" and message or nil
  if not kind_of and (status == 400 or status == 413 or status == 422) and message and words_mean_context(message) then
    kind_of = "context"
  end
  return { status = status, kind = kind_of, code = code and tostring(code), message = message }
end

return adapter
