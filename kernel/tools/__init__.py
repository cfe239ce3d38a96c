"""The tools that the model may call: which there are, what they may be called with, and in which order."""

from kernel.tools.arguments import ArgumentProblem, ArgumentsRefused, parse_arguments
from kernel.tools.batch import plan
from kernel.tools.loop_breaker import LoopBreaker
from kernel.tools.offer import GET_PLUGIN_TOOLS, Offer
from kernel.tools.registry import ToolRegistry
from kernel.tools.tool import KERNEL, MEMORY, OUTPUT_PREFIX, SERVICES, Tool, ToolFlags
from kernel.tools.validation import check_arguments

__all__ = [
    "GET_PLUGIN_TOOLS",
    "KERNEL",
    "MEMORY",
    "OUTPUT_PREFIX",
    "SERVICES",
    "ArgumentProblem",
    "ArgumentsRefused",
    "LoopBreaker",
    "Offer",
    "Tool",
    "ToolFlags",
    "ToolRegistry",
    "check_arguments",
    "parse_arguments",
    "plan",
]
