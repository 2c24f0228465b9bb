import os
import re
import subprocess
import sys

import pytest

from lipformer.data import Builtin, Corpus, Vocabulary
from lipformer.errors import DataError


@pytest.fixture(scope="module")
def splits():
    corpus = Builtin()
    return {split: corpus.lines(split) for split in ("train", "valid", "test")}


def test_size(splits):
    sizes = {split: sum(map(len, lines)) for split, lines in splits.items()}
    assert 120_000 < sizes["train"] < 400_000
    assert 10_000 < sizes["valid"] < 50_000
    assert 10_000 < sizes["test"] < 50_000


def test_no_sentence_stands_twice(splits):
    lines = [line for part in splits.values() for line in part]
    assert len(set(lines)) == len(lines)


def test_valid_and_test_need_no_other_character(splits):
    vocabulary = Vocabulary.from_lines(splits["train"])
    assert len(vocabulary) < 80
    lines = [line for part in splits.values() for line in part]
    assert min(sum(character in line for line in lines) for character in vocabulary.characters) > 5
    assert not any(vocabulary.count_unknown(line) for line in splits["valid"] + splits["test"])


def test_lines_are_english_sentences(splits):
    lines = [line for part in splits.values() for line in part]
    assert all(line == line.strip() and 20 <= len(line) <= 255 and line.isascii() for line in lines)
    assert not any(re.search(r"\*\w|::|>>>|  |[=+<>|{}\\]", line) for line in lines)
    letters = sum(character.isalpha() or character == " " for line in lines for character in line)
    assert letters / sum(map(len, lines)) > 0.93
    assert sum(line.split()[0] in ("The", "This", "If", "A", "It") for line in lines) > len(lines) / 4


def test_the_text_is_the_same_in_every_process_and_has_a_fingerprint():
    code = "from lipformer.data import Builtin; print(Builtin().name)"
    names = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert names == {Builtin().name}
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert re.fullmatch(rf"builtin \(Python {re.escape(version)}, [0-9a-f]{{8}}\)", Builtin().name)


def test_source_and_protocol():
    assert Builtin().source("valid", 0) == "pydoc_data.topics, valid, sentence 1"
    assert isinstance(Builtin(), Corpus)


def test_a_python_without_the_documentation(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(DataError, match="installed without the module pydoc_data; give a text of your own"):
        Builtin().lines("train")
