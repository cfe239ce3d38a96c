"""What a client that cannot take text back has been sent, and what it still has to be sent.

A turn's text may start again: its provider or the kernel died, and the request is made once more. An OpenAI client
keeps what it got, so the new text is compared with it: where it only goes on, just the rest is sent; where it differs,
a line that says so, and the new text in full.
"""

from __future__ import annotations

_BREAK = "\n\n"


class StreamedText:
    """The text of one answer as a client sees it grow. The methods return what to send now, often nothing.

    :param notice: the line between a text that was broken off and its successor
    """

    def __init__(self, notice: str) -> None:
        self._notice = f"{_BREAK}{notice}{_BREAK}"
        self._parts: list[str] = []
        self._length = 0
        self._starts = [0]
        """Where the present attempt began, and where its text after the last tool call began."""
        self._needs_break = False
        self._again: str | None = None
        """The text since a reset, while it does not go beyond what was sent; None outside of that."""

    @property
    def sent(self) -> str:
        """All that was sent."""
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    def delta(self, text: str) -> str:
        """Take more text of the model."""
        if self._again is None:
            return self._send(self._spaced(text))
        if self._needs_break and self._again:
            text = _BREAK + text
        self._needs_break = False
        self._again += text
        return self._catch_up(self._again)

    def tool(self) -> None:
        """Take note of a tool call: what the model says after it is another paragraph."""
        self._needs_break = True

    def reset(self) -> None:
        """Take note that the model begins again."""
        self._again = ""
        self._needs_break = False

    def finish(self, final: str) -> str:
        """Take the final text; afterwards the client's text ends with it, but for white space."""
        wanted = final.strip()
        if not wanted or any(_squeezed(self.sent[start:]) == _squeezed(wanted) for start in self._starts):
            return ""
        self._again = None
        if self._needs_break:
            self._starts.append(self._length)
        for start in self._starts:
            rest = _rest(self.sent[start:], wanted)
            if rest:
                is_paragraph = start == self._length and self._length
                return self._send((_BREAK if is_paragraph else "") + rest)
        return self._start_over(wanted)

    def _spaced(self, text: str) -> str:
        """Return text that follows a tool call as a paragraph of its own."""
        if not self._needs_break:
            return text
        self._needs_break = False
        space = _BREAK if self._length else ""
        self._starts = [self._starts[0], self._length + len(space)]
        return space + text

    def _catch_up(self, again: str) -> str:
        may_still_match = False
        for start in self._starts:
            rest = _rest(self.sent[start:], again)
            if rest == "":
                may_still_match = True
            elif rest is not None and not may_still_match:
                self._again = None
                return self._send(rest)
        if may_still_match:
            return ""
        self._again = None
        return self._start_over(again)

    def _start_over(self, text: str) -> str:
        notice = self._notice if self._length else ""
        self._starts = [self._length + len(notice)]
        return self._send(notice + text)

    def _send(self, text: str) -> str:
        if text:
            self._parts.append(text)
            self._length += len(text)
        return text


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _rest(shown: str, whole: str) -> str | None:
    """Return how ``whole`` goes on after ``shown``, or None if it begins otherwise.

    White space does not count: the paragraphs around tool calls are ours, and a final text may be trimmed.
    """
    known, squeezed = _squeezed(shown), _squeezed(whole)
    if known.startswith(squeezed):
        return ""
    if not squeezed.startswith(known):
        return None
    left = len(known)
    for at, character in enumerate(whole):
        if not left and (not character.isspace() or not shown or not shown[-1].isspace()):
            return whole[at:]
        left -= not character.isspace()
    return ""
