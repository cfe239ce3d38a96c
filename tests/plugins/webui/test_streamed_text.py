from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugins.webui.streamed_text import StreamedText


def play(*steps: str | None, final: str) -> str:
    """Play deltas, ``"<tool>"`` and ``"<reset>"``; return what a client then has."""
    text = StreamedText("[again]")
    got = ""
    for step in steps:
        if step == "<tool>":
            text.tool()
        elif step == "<reset>":
            text.reset()
        else:
            got += text.delta(str(step))
    got += text.finish(final)
    assert got == text.sent
    return got


@pytest.mark.parametrize(
    ("steps", "final", "expected"),
    [
        (["Hel", "lo"], "Hello", "Hello"),
        ([], "Hello", "Hello"),
        (["Hel"], "Hello", "Hello"),
        (["Hello \n"], "Hello", "Hello \n"),
        (["\n\nHel"], "Hello", "\n\nHello"),
        (["Hello"], "", "Hello"),
        (["Let me see.", "<tool>", "It is 5."], "It is 5.", "Let me see.\n\nIt is 5."),
        (["Let me see.", "<tool>", "It is 5."], "Let me see.It is 5.", "Let me see.\n\nIt is 5."),
        (["Let me see.", "<tool>"], "It is 5.", "Let me see.\n\nIt is 5."),
        (["<tool>", "It is 5."], "It is 5.", "It is 5."),
        (["The answ", "<reset>", "The", " answer"], "The answer", "The answer"),
        (["The answ", "<reset>"], "The answer", "The answer"),
        (["<reset>", "Hi"], "Hi", "Hi"),
        (["Yes", "<reset>", "No"], "No", "Yes\n\n[again]\n\nNo"),
        (["Yes", "<reset>"], "No", "Yes\n\n[again]\n\nNo"),
        (["It is 15", "<reset>"], "5", "It is 15\n\n[again]\n\n5"),
        (["Yes", "<reset>", "No", "<reset>", "No!"], "No!", "Yes\n\n[again]\n\nNo!"),
        (["Let me see.", "<tool>", "It is", "<reset>", "It is 5."], "It is 5.", "Let me see.\n\nIt is 5."),
        (["Let me see.", "<tool>", "It is", "<reset>", "Let me see.", "<tool>", "It is 5."], "It is 5.", None),
        (["One.", "<tool>", "Two", "<reset>", "One.Two. Three"], "Two. Three", "One.\n\nTwo. Three"),
        (["a b", "<reset>", "a  bc"], "a  bc", "a bc"),
        (["secret"], "[removed]", "secret\n\n[again]\n\n[removed]"),
    ],
)
def test_the_client_ends_with_the_final_text(steps: list[str], final: str, expected: str | None) -> None:
    assert play(*steps, final=final) == (expected or "Let me see.\n\nIt is 5.")


words = st.sampled_from(["a", "b", "ab", "ba", " ", "<tool>", "<reset>"])


@given(steps=st.lists(words, max_size=12), final=st.text("ab ", min_size=1, max_size=8))
def test_whatever_happens_the_final_text_is_the_end_and_nothing_is_taken_back(steps: list[str], final: str) -> None:
    got = play(*steps, final=final)
    assert "".join(got.split()).endswith("".join(final.split()))
