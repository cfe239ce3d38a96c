"""The memory service: keeps every event, and finds again what belongs to a question.

A message's way: :mod:`.service` (bus) → :mod:`.requests` (what was asked) → :mod:`.recall` (which events, in what
order) → :mod:`.store` (where they lie). :mod:`.words` knows how Chinese and English text becomes searchable words.
"""
