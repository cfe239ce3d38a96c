"""What the model can do with the memory by itself: tools that the service registers with the kernel."""

from memory_service.tools.registry import Asking, MemoryTool, ToolRegistry

__all__ = ["Asking", "MemoryTool", "ToolRegistry"]
