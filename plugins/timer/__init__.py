"""Timers and reminders, kept on disk until the agent has accepted them."""
