"""The settings of the agent itself, ``core.*``; plugins define their own, ``plugin.<name>.*``, when they start."""

from __future__ import annotations

from kernel.config.definitions import Definition

SOURCES_PREFIX = "core.llm.sources."
SEED_VERSION_KEY = "core.internal.seed_version"

_NAME_PATTERN = r"[A-Za-z0-9_-]{1,64}"
_URL_PATTERN = r"https?://[^\s/@]+(/\S*)?"

PERSONA = "You are warm, precise and brief, as one who belongs to the household."

_LLM = (
    Definition(
        "core.llm.temperature",
        "float",
        0.7,
        {
            "en": "How freely the model chooses its words: 0 always the likeliest, 2 very freely",
            "zh": "模型措辞的随机程度：0 总取最可能的词，2 非常随机",
        },
        minimum=0,
        maximum=2,
    ),
    Definition(
        "core.llm.max_tokens",
        "int",
        4096,
        {"en": "Longest answer of a model, in tokens", "zh": "模型单次回答的最大长度（token）"},
        minimum=1,
        maximum=1_000_000,
    ),
)

_SOURCES = (
    Definition(
        f"{SOURCES_PREFIX}<name>.base_url",
        "string",
        "",
        {
            "en": "Address of the model API, such as https://api.deepseek.com/v1; a source without one is not used",
            "zh": "模型 API 的地址，例如 https://api.deepseek.com/v1；没有地址的来源不会被使用",
        },
        pattern=_URL_PATTERN,
        expected="an address that begins with http:// or https:// and has no user name in it",
    ),
    Definition(
        f"{SOURCES_PREFIX}<name>.model",
        "string",
        "",
        {"en": "Name of the model, as its API knows it", "zh": "模型名称，与其 API 中的名称一致"},
    ),
    Definition(
        f"{SOURCES_PREFIX}<name>.adapter",
        "string",
        "openai",
        {
            "en": "Adapter that speaks the API: the name of a file adapters/<adapter>.lua",
            "zh": "与该 API 对话的适配器：文件 adapters/<适配器>.lua 的名称",
        },
        pattern=_NAME_PATTERN,
        expected="a name of letters, digits, _ and -",
    ),
    Definition(
        f"{SOURCES_PREFIX}<name>.context_window",
        "int",
        0,
        {
            "en": "Tokens that the model can read at once; 0 means 32768",
            "zh": "模型一次能读入的 token 数；0 表示 32768",
        },
        minimum=0,
        maximum=100_000_000,
    ),
    Definition(
        f"{SOURCES_PREFIX}<name>.max_concurrent",
        "int",
        8,
        {"en": "Requests to this source at the same time", "zh": "同时发往该来源的请求数"},
        minimum=1,
        maximum=1000,
    ),
    Definition(
        f"{SOURCES_PREFIX}<name>.priority",
        "int",
        0,
        {
            "en": "Place in the order of fallback: the higher is asked first; equal ones by name",
            "zh": "后备顺序：数值大的先被请求，相同则按名称",
        },
        minimum=-1000,
        maximum=1000,
    ),
    Definition(
        f"{SOURCES_PREFIX}<name>.vision",
        "bool",
        False,
        {"en": "Whether the model sees pictures", "zh": "模型能否看图片"},
    ),
    Definition(
        f"{SOURCES_PREFIX}<name>.audio",
        "bool",
        False,
        {"en": "Whether the model hears sound", "zh": "模型能否听声音"},
    ),
    Definition(
        f"{SOURCES_PREFIX}<name>.thinking_enabled",
        "bool",
        False,
        {
            "en": "Whether the model is asked to think before it answers, where the API lets one choose",
            "zh": "是否让模型先思考再回答（API 支持选择时）",
        },
    ),
    Definition(
        f"{SOURCES_PREFIX}<name>.tools",
        "bool",
        True,
        {"en": "Whether the model can call tools", "zh": "模型能否调用工具"},
    ),
)

_AGENT = (
    Definition(
        "core.agent.max_tool_turns",
        "int",
        10,
        {
            "en": "How often a turn may ask the model again after tool calls; 0 means without limit",
            "zh": "一轮对话中工具调用后最多再请求模型的次数；0 表示不限",
        },
        minimum=0,
        maximum=10_000,
    ),
    Definition(
        "core.agent.max_concurrent_turns",
        "int",
        4,
        {
            "en": "Turns of different conversations at the same time; 1 answers strictly one after another",
            "zh": "不同会话可同时进行的轮数；1 表示严格逐个回答",
        },
        minimum=1,
        maximum=256,
    ),
    Definition(
        "core.agent.queue_limit",
        "int",
        64,
        {
            "en": "Inputs that may wait; beyond that a new one is refused with 'queue full'",
            "zh": "可排队等待的输入数；超过后新输入会被拒绝并提示队列已满",
        },
        minimum=1,
        maximum=10_000,
    ),
    Definition(
        "core.agent.tool_timeout",
        "duration",
        "1m",
        {
            "en": "How long a tool may take if it does not say itself",
            "zh": "工具未自行声明时的最长执行时间",
        },
        minimum=1,
        maximum=86_400,
    ),
    Definition(
        "core.agent.max_context_size",
        "int",
        30,
        {
            "en": "Most turns of a conversation that the model is shown, within its token budget",
            "zh": "在 token 预算内，展示给模型的会话轮数上限",
        },
        minimum=1,
        maximum=10_000,
    ),
    Definition(
        "core.agent.context.utilization_percent",
        "int",
        80,
        {
            "en": "Part of a model's context window that a prompt may fill, in percent",
            "zh": "提示词最多占用模型上下文窗口的百分比",
        },
        minimum=10,
        maximum=95,
    ),
    Definition(
        "core.agent.context.max_target_tokens",
        "int",
        600_000,
        {
            "en": "Longest prompt in tokens, however large the window is; -1 means without limit",
            "zh": "提示词的最大长度（token），无论窗口多大；-1 表示不限",
        },
        minimum=-1,
        maximum=100_000_000,
    ),
    Definition(
        "core.agent.context.memory_ratio_percent",
        "int",
        0,
        {
            "en": "Part of the prompt for memories, in percent; 0 means one third",
            "zh": "提示词中留给记忆的百分比；0 表示三分之一",
        },
        minimum=0,
        maximum=90,
    ),
    Definition(
        "core.agent.context.protected_count",
        "int",
        10,
        {
            "en": "The last turns of a conversation that always stay in the prompt, as far as they fit",
            "zh": "会话中始终保留在提示词里的最近轮数（放得下时）",
        },
        minimum=1,
        maximum=1000,
    ),
    Definition(
        "core.agent.system_prompt",
        "text",
        "",
        {
            "en": "Replaces the built-in instructions to the model; empty keeps them",
            "zh": "替换内置的模型指令；留空则使用内置指令",
        },
    ),
    Definition(
        "core.agent.personal_prompt",
        "text",
        PERSONA,
        {
            "en": "Who the agent is and how it speaks, as long as `homeagent persona` has nothing else; empty: nothing",
            "zh": "智能体的身份和说话方式，未用 `homeagent persona` 另行设定时生效；留空则不作规定",
        },
    ),
)

_REST = (
    Definition(
        "core.log.level",
        "select",
        "info",
        {"en": "Least important messages that are logged", "zh": "记录日志的最低级别"},
        options=("debug", "info", "warning", "error"),
    ),
    Definition(
        "core.plugin.restart_limit",
        "int",
        3,
        {
            "en": "How often a plugin that crashes is started again within the window; then a person must start it",
            "zh": "窗口时间内插件崩溃后自动重启的次数；超过后需人工启动",
        },
        minimum=0,
        maximum=1_000_000,
    ),
    Definition(
        "core.plugin.restart_window",
        "duration",
        "5m",
        {"en": "Time over which the crashes of a plugin are counted", "zh": "统计插件崩溃次数的时间窗口"},
        minimum=1,
    ),
    Definition(
        "core.journal.keep",
        "duration",
        "30d",
        {
            "en": "How long finished turns are kept; the last ones of every conversation stay longer",
            "zh": "已完成轮次的保留时间；每个会话的最后几轮会保留更久",
        },
        minimum=3600,
    ),
)

_MEMORY = (
    Definition(
        "core.memory.conversation_log",
        "bool",
        True,
        {
            "en": "Whether every turn is also written to a readable file, memory/conversations/<day>.jsonl",
            "zh": "是否把每一轮对话也写入可读的文件 memory/conversations/<日期>.jsonl",
        },
    ),
)

CORE_SETTINGS: tuple[Definition, ...] = (*_LLM, *_SOURCES, *_AGENT, *_MEMORY, *_REST)
