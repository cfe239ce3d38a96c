"""Everything that people read, in English and Chinese: one pair of JSON files for each part of the system."""

from homeagent_sdk.catalogue._loader import LANGUAGES, language, parts, text, texts

__all__ = ["LANGUAGES", "language", "parts", "text", "texts"]
