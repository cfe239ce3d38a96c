"""The mapped dictionary says what jieba's own says, and is made anew when it is not whole."""

from __future__ import annotations

import random
from pathlib import Path

import jieba
import pytest

from memory_service.words.dictionary import Dictionary
from memory_service.words.segmenter import Segmenter

SENTENCES = (
    "我的自行车停在地下车库B2层，奶奶每天早上喝普洱茶。",
    "明天下午三点和张伟在静安寺开会，讨论服务端升级的方案",
    "研究生命的起源，南京市长江大桥，结婚的和尚未结婚的",
    "工信处女干事每月经过下属科室都要亲口交代二十四口交换机等技术性器件的安装工作",
    "繁體字也要能夠正確地切開：電腦軟體、資料庫與網際網路",
)
SOURCE = Path(jieba.__file__).with_name("dict.txt")


@pytest.fixture(scope="module")
def reference() -> jieba.Tokenizer:
    tokenizer = jieba.Tokenizer()
    tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(tokenizer.get_dict_file())
    tokenizer.initialized = True
    return tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("words")


@pytest.fixture(scope="module")
def dictionary(folder: Path) -> Dictionary:
    return Dictionary.open(folder / "words.dictionary", SOURCE)


def test_every_word_and_every_beginning_has_its_frequency(reference: jieba.Tokenizer, dictionary: Dictionary) -> None:
    assert len(dictionary) == len(reference.FREQ)
    assert dictionary.total == reference.total
    for word in random.Random(7).sample(sorted(reference.FREQ), 20_000):
        assert dictionary[word] == reference.FREQ[word]


def test_what_is_no_word_is_not_there(dictionary: Dictionary) -> None:
    for text in ("", "自行车停", "qwertz", "\ud800", "的" * 40):
        assert text not in dictionary
        assert dictionary.get(text) is None
        assert dictionary.get(text, 1) == 1
        with pytest.raises(KeyError):
            dictionary[text]


def test_it_cuts_like_jieba(reference: jieba.Tokenizer, folder: Path) -> None:
    segmenter = Segmenter(folder)
    for sentence in SENTENCES:
        assert list(segmenter.cut(sentence)) == list(reference.cut_for_search(sentence))
    dice = random.Random(11)
    text = "".join(SENTENCES)
    for _ in range(300):
        piece = "".join(dice.choices(text, k=dice.randint(1, 30)))
        assert list(segmenter.cut(piece)) == list(reference.cut_for_search(piece))


@pytest.mark.parametrize("damage", ["cut short", "of another dictionary", "of another program", "empty"])
def test_a_file_that_is_not_whole_is_made_anew(folder: Path, tmp_path: Path, damage: str) -> None:
    source, path = tmp_path / "dict.txt", tmp_path / "words.dictionary"
    source.write_text("自行车 12 n\n车库 7 n\n", encoding="utf-8")
    Dictionary.open(path, source)
    content = path.read_bytes()
    if damage == "of another dictionary":
        source.write_text("自行车 13 n\n车库 7 n\n", encoding="utf-8")
    else:
        path.write_bytes({"cut short": content[:-4], "of another program": b"X" + content[1:], "empty": b""}[damage])
    again = Dictionary.open(path, source)
    assert again["自行车"] == (13 if damage == "of another dictionary" else 12)
    assert (again["自"], again["自行"], again["车库"], again.total) == (0, 0, 7, again["自行车"] + 7)


def test_what_is_remembered_of_lookups_is_bounded(dictionary: Dictionary) -> None:
    for number in range(10_000):
        dictionary.get(f"word{number}")
    assert len(dictionary._remembered) <= 4_096


def test_a_source_that_is_no_dictionary_is_named(tmp_path: Path) -> None:
    source = tmp_path / "dict.txt"
    source.write_text("no frequencies here\n", encoding="utf-8")
    with pytest.raises(OSError, match=r"cannot be made of .*dict\.txt"):
        Dictionary.open(tmp_path / "words.dictionary", source)
    assert not (tmp_path / "words.dictionary").exists()
