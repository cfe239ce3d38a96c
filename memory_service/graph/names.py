"""What may be a name or a relation in the graph, and when two names are one."""

from __future__ import annotations

import re
import unicodedata

from memory_service.words.scan import fold
from memory_service.words.stop_words import CHINESE, ENGLISH

MAX_NAME_CHARACTERS = 100
MAX_TYPE_CHARACTERS = 50
MAX_SENTENCE_CHARACTERS = 2_000

GENERIC = frozenset(
    """
    port service version server address number name user system file data type config status time date host value
    info information 端口 服务 版本 服务器 地址 号码 名称 名字 用户 系统 文件 数据 类型 配置 状态 时间 日期 主机 值 信息
    """.split()
)
"""Words that so many names share that they say nothing about which one is meant."""

_TEMPLATE = re.compile(r"\d+ events (?:of|from) \d{4}-\d{2}-\d{2}|context_archived|doc-[0-9a-f]{32}")


def clean(text: str) -> str:
    """Return a name as it is shown: without spaces around it, and one between its words."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def key_of(name: str) -> str:
    """Return what two spellings of one name have in common: half width, lower case, single spaces."""
    return " ".join(fold(name).split())


def problem_with_name(name: str) -> str | None:
    """Say why a text cannot be the name of an entity; None if it can. A number is a name like any other."""
    text = clean(name)
    if not text:
        return "is empty"
    if len(text) > MAX_NAME_CHARACTERS:
        return (
            f"has {len(text)} characters, at most {MAX_NAME_CHARACTERS} are allowed; longer text goes to the sentence"
        )
    if not any(character.isalnum() or character in "-_" for character in text):
        return "has neither a letter nor a digit"
    if len(text) == 1 and text.isascii() and not text.isdigit():
        return "is a single letter"
    return _unprintable(text)


def problem_with_type(type: str) -> str | None:
    """Say why a text cannot be the type of a relation; None if it can."""
    text = clean(type)
    if not text:
        return "is empty"
    if len(text) > MAX_TYPE_CHARACTERS:
        return f"has {len(text)} characters, at most {MAX_TYPE_CHARACTERS} are allowed"
    if not any(character.isalnum() for character in text):
        return "has neither a letter nor a digit"
    return _unprintable(text)


def problem_with_sentence(sentence: str) -> str | None:
    """Say why a text cannot stand as the sentence that a fact came from; None if it can."""
    if len(sentence) > MAX_SENTENCE_CHARACTERS:
        return f"has {len(sentence)} characters, at most {MAX_SENTENCE_CHARACTERS} are allowed"
    return None


def is_noise(name: str) -> bool:
    """Whether a name found by a rule says nothing: an empty word, or the template of a summary."""
    key = key_of(name)
    return key in ENGLISH or key in CHINESE or _TEMPLATE.match(key) is not None


def specific(keys: list[str]) -> list[str]:
    """Return the keys that are not generic; all of them if there is nothing else."""
    return [key for key in keys if key not in GENERIC] or keys


def _unprintable(text: str) -> str | None:
    return None if text.isprintable() else "has characters that cannot be printed"
