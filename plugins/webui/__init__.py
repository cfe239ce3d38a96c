"""The chat page, its login, and the OpenAI-compatible API, over HTTP."""
