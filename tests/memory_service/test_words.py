"""How text becomes words, on both sides of the index."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memory_service.words.days import day_of, days
from memory_service.words.question import MAX_TERMS, terms
from memory_service.words.scan import fold, pieces
from memory_service.words.segmenter import Segmenter
from memory_service.words.stem import stem
from memory_service.words.tokenizer import FTS5, match_phrase, written


def tokens(text: str) -> set[str]:
    return set(written(text).split(" ")) - {""}


def asked(text: str, segmenter: Segmenter) -> list[str]:
    return [term.text for term in terms(text, segmenter) if term.is_word]


def test_glued_scripts_fall_apart() -> None:
    assert [piece.text for piece in pieces("修改youer服务端")] == ["修改", "youer", "服务端"]


def test_full_width_and_upper_case_are_folded() -> None:
    assert [piece.text for piece in pieces("ＡＢＣ Hello")] == ["abc", "hello"]


@pytest.mark.parametrize(
    ("text", "symbol"),
    [
        ("at 192.168.1.77.", "192.168.1.77"),
        ("use v2.3.1!", "v2.3.1"),
        ("use v2.3.1!", "2.3.1"),
        ("see /etc/hosts, please", "etc/hosts"),
        ("修改/etc/hosts文件", "etc/hosts"),
        ("port 13010", "13010"),
        ("it cost 1,200 euros", "1200"),
        ("mail me@example.com", "me@example.com"),
        ("https://example.com:8080/a", "https://example.com:8080/a"),
        ("on 2023-12-25", "2023-12-25"),
        ("my iPhone15", "iphone15"),
        ("call do_this()", "do_this"),
    ],
)
def test_symbols_stay_whole_in_the_index(text: str, symbol: str) -> None:
    assert symbol in tokens(text)


def test_parts_of_a_symbol_are_words_too() -> None:
    assert {"etc", "host"} <= tokens("/etc/hosts")
    assert {"iphon", "15"} <= tokens("iPhone15")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("painting", "painted"),
        ("went", "go"),
        ("families", "family"),
        ("stopped", "stop"),
        ("bake", "baking"),
        ("Caroline's", "Caroline"),
        ("children", "child"),
        ("boxes", "box"),
    ],
)
def test_forms_of_an_english_word_are_one_token(one: str, other: str) -> None:
    assert tokens(one) == tokens(other)


@pytest.mark.parametrize("word", ["bus", "this", "glass", "sing", "red", "naïve", "été"])
def test_what_only_looks_like_an_ending_stays(word: str) -> None:
    assert stem(word) == word


def test_characters_are_written_as_their_pairs_and_then_alone() -> None:
    assert written("张伟吃 hi 茶") == "张伟 伟吃 张 伟 吃 hi 茶"


def test_a_symbol_is_written_whole_and_then_in_parts() -> None:
    assert written("see /etc/hosts at v2.3.1") == "see etc/hosts etc host at v2.3.1 2.3.1 v 2 3 1"


@pytest.mark.parametrize("text", ["5月2日见面", "on May 2nd", "2 May", "2023-05-02", "２０２３年５月２号"])
def test_a_day_that_a_text_names_is_written_as_questions_ask_for_it(text: str) -> None:
    assert "05-02" in tokens(text)


def test_a_word_of_a_question_is_its_pairs_in_a_row(segmenter: Segmenter) -> None:
    by_text = {term.text: term.tokens for term in terms("静安寺", segmenter)}
    assert by_text["静安寺"] == ("静安", "安寺")


def test_a_single_character_is_looked_up_as_itself(segmenter: Segmenter) -> None:
    assert terms("茶", segmenter)[0].tokens == ("茶",)


def test_empty_words_are_left_out_in_both_languages(segmenter: Segmenter) -> None:
    assert asked("When did Caroline go to the zoo?", segmenter) == ["caroline", "go", "zoo"]
    assert asked("我们什么时候去的静安寺呢？", segmenter) == ["静安", "安寺", "静安寺"]


def test_a_question_of_empty_words_keeps_them(segmenter: Segmenter) -> None:
    assert asked("who are you", segmenter) == ["who", "are", "you"]


def test_nothing_but_punctuation_asks_for_nothing(segmenter: Segmenter) -> None:
    assert terms("?! … 。", segmenter) == []


def test_pairs_beside_the_words_find_what_was_cut_wrongly(segmenter: Segmenter) -> None:
    assert "张伟" in {token for term in terms("张伟刚才来过", segmenter) for token in term.tokens}


def test_a_symbol_is_asked_for_exactly(segmenter: Segmenter) -> None:
    found = {term.text: term for term in terms("is 192.168.1.77 up?", segmenter)}
    assert found["192.168.1.77"].is_symbol
    assert "77" not in found


def test_a_very_long_question_is_cut(segmenter: Segmenter) -> None:
    assert len(terms(" ".join(f"word{n}" for n in range(3 * MAX_TERMS)), segmenter)) == MAX_TERMS


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("5月2日我们聊了什么", "05-02"),
        ("5月2号", "05-02"),
        ("２０２３年５月２日", "2023-05-02"),
        ("on 2023-05-02", "2023-05-02"),
        ("on 2023/5/2", "2023-05-02"),
        ("on May 2nd", "05-02"),
        ("on May 2, 2023", "2023-05-02"),
        ("the 2nd of May 2023", "2023-05-02"),
        ("2 September", "09-02"),
    ],
)
def test_days_have_one_spelling(text: str, day: str) -> None:
    assert [named.day for named in days(fold(text))] == [day]


@pytest.mark.parametrize("text", ["13月40日", "may I come at 10:30", "version 1.2.3", "2 maybe"])
def test_what_is_no_day_is_none(text: str) -> None:
    assert list(days(fold(text))) == []


def test_a_day_in_a_question_is_one_term_and_not_its_numbers(segmenter: Segmenter) -> None:
    tokens = [term.tokens for term in terms("5月2日的会议", segmenter)]
    assert tokens[0] == ("05-02",)
    assert ("2",) not in tokens
    assert ("5",) not in tokens


def test_the_day_of_an_event_has_both_spellings_and_its_year() -> None:
    assert day_of(1_683_000_000.0) in ("2023-05-02 05-02 2023", "2023-05-01 05-01 2023")


@pytest.fixture(scope="module")
def split() -> Callable[[str], list[str]]:
    """How FTS5 splits what is written into an index."""
    connection = apsw.Connection(":memory:")
    connection.execute(f'CREATE VIRTUAL TABLE words USING fts5 (text, tokenize = "{FTS5}")')
    connection.execute("CREATE VIRTUAL TABLE vocabulary USING fts5vocab (words, instance)")

    def split(text: str) -> list[str]:
        connection.execute("DELETE FROM words")
        connection.execute("INSERT INTO words VALUES (?)", (text,))
        return [term for (term,) in connection.execute('SELECT term FROM vocabulary ORDER BY "offset"')]

    return split


@given(text=st.text())
@example("12:30 a_b c@d e\\f o'neil Ⅷ ß ŉ ﬁ ﷺ İ Σς \u0345 ͅa \u1680 \u180e ไทย हिन्दी \U000e0100")
def test_the_index_keeps_every_token_as_it_is(split: Callable[[str], list[str]], text: str) -> None:
    assert split(written(text)) == written(text).split()


@pytest.mark.parametrize("first", range(0, 0x110000, 0x8000))
def test_the_index_keeps_every_character_of_a_token(split: Callable[[str], list[str]], first: int) -> None:
    found = [
        token
        for code in range(first, first + 0x8000)
        if not 0xD800 <= code < 0xE000
        for token in written(f"a{chr(code)}b").split()
    ]
    assert split(" ".join(found)) == found


@given(st.text(alphabet=st.characters(exclude_characters="\x00", exclude_categories=["Cs"])))
def test_a_phrase_is_always_quoted_whole(text: str) -> None:
    phrase = match_phrase((text,))
    assert phrase.startswith('"') and phrase.endswith('"')
    assert phrase[1:-1].replace('""', "").count('"') == 0


def test_english_alone_never_loads_the_dictionary(tmp_path: Path) -> None:
    segmenter = Segmenter(tmp_path)
    terms("When did Caroline go to 192.168.1.77?", segmenter)
    assert not segmenter.is_loaded


def test_the_dictionary_loads_silently_into_its_own_folder(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib; from memory_service.words.segmenter import Segmenter;"
        "s = Segmenter(pathlib.Path(sys.argv[1]) / 'cache'); print(*s.cut('我喜欢静安寺'))"
    )
    command = [sys.executable, "-W", "error", "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == ""
    assert done.stdout.split() == ["我", "喜欢", "静安", "安寺", "静安寺"]
    assert [file.name for file in (tmp_path / "cache").iterdir()] == ["words.dictionary"]
