"""jieba, loaded late and quietly, with its dictionary mapped from a file."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from memory_service.words.dictionary import Dictionary


class Segmenter:
    """Cuts runs of Chinese characters into words.

    The dictionary is loaded by the first cut, or by :meth:`load` beforehand; the first caller waits for it, others
    with it. Any number of threads may cut at once.

    :param cache_dir: where the dictionary lies in the form that is mapped. jieba's own default is the world-writable
        temporary folder, from which it would load whatever somebody else had put there
    """

    def __init__(self, cache_dir: Path) -> None:
        self._cache_dir = cache_dir
        self._lock = threading.Lock()
        self._jieba: Any = None

    @property
    def is_loaded(self) -> bool:
        """Whether the dictionary is in memory."""
        return self._jieba is not None

    def load(self) -> None:
        """Load the dictionary, if that has not happened yet; the first time of all takes some seconds.

        :raises OSError: the cache cannot be written
        """
        with self._lock:
            if self._jieba is None:
                self._jieba = _load(self._cache_dir)

    def cut(self, characters: str) -> Iterable[str]:
        """Return the words of a run, the long ones followed by the words that they contain."""
        self.load()
        words: Iterable[str] = self._jieba.cut_for_search(characters)
        return words


def _load(cache_dir: Path) -> Any:
    with warnings.catch_warnings():
        # jieba 0.42.1 has invalid escape sequences, and imports pkg_resources: both warn, neither can be repaired here.
        warnings.simplefilter("ignore")
        import jieba

    jieba.default_logger.removeHandler(jieba.log_console)
    jieba.setLogLevel(logging.WARNING)
    cache_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    tokenizer = jieba.Tokenizer()
    dictionary = Dictionary.open(cache_dir / "words.dictionary", Path(jieba.__file__).with_name("dict.txt"))
    # What its own `initialize` would set.
    tokenizer.FREQ, tokenizer.total, tokenizer.initialized = dictionary, dictionary.total, True
    return tokenizer
