"""The fingerprint of a text: the same for the same lines in any file, another for any change."""

import hashlib

import pytest

from lipformer.data.fingerprint import Fingerprint, changed_splits, fingerprint, from_plain, to_plain
from lipformer.data.penn_treebank import PennTreebank
from lipformer.data.text_files import TextFiles

LINES = ["the cat", "ä dog \u2028 ran"]


def test_it_is_the_sum_of_a_clean_file(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    found = fingerprint(LINES)
    assert found == Fingerprint(hashlib.sha256(file.read_bytes()).hexdigest(), 2, 8 + 12)
    untidy = tmp_path / "untidy.txt"
    untidy.write_bytes(b"\xef\xbb\xbf  the cat \r\n\r\n" + LINES[1].encode() + b"  ")
    corpus = TextFiles(str(file), valid=str(untidy))
    assert fingerprint(corpus.lines("train")) == fingerprint(corpus.lines("valid")) == found


@pytest.mark.parametrize(
    "lines", [LINES[::-1], [*LINES, "x"], LINES[:1], ["the cat ", LINES[1]], ["The cat", LINES[1]]]
)
def test_any_change_shows(lines):
    assert fingerprint(lines) != fingerprint(LINES)


def test_text_that_is_no_unicode_has_one_too():
    assert fingerprint(["\ud800"]) != fingerprint(["\ud801"])


def test_both_forms_of_penn_treebank_have_the_same(tmp_path):
    lines = ["aer banknote <unk>", "no it was n't"]
    (tmp_path / "words").mkdir()
    (tmp_path / "chars").mkdir()
    (tmp_path / "words" / "ptb.train.txt").write_text("".join(f" {line} \n" for line in lines))
    spelled = "".join(" ".join("_" if c == " " else c for c in f"{line} ") + " \n" for line in lines)
    (tmp_path / "chars" / "ptb.char.train.txt").write_text(spelled)
    words, chars = (PennTreebank(str(tmp_path / form), verify=False).lines("train") for form in ("words", "chars"))
    assert fingerprint(words) == fingerprint(chars) == fingerprint(lines)


def test_it_is_read_as_it_was_written():
    found = {"train": fingerprint(LINES), "valid": fingerprint(LINES[:1])}
    assert from_plain(to_plain(found)) == found


@pytest.mark.parametrize(
    "told",
    [
        None,
        3,
        {"train": 3},
        {"train": {}},
        {"train": {"sha256": "x" * 64, "lines": 1, "tokens": 1}},
        {"train": {"sha256": "0" * 64, "lines": "1", "tokens": 1}},
        {"train": {"sha256": "0" * 65, "lines": 1, "tokens": 1}},
        {"train": {"sha256": ["0"], "lines": 1, "tokens": 1}},
    ],
)
def test_what_has_another_form_is_left_out(told):
    assert from_plain(told) == {}


def test_changes_are_said_in_words():
    then = {"train": fingerprint(LINES), "valid": fingerprint(LINES)}
    now = {"train": fingerprint(LINES), "valid": fingerprint(LINES[:1]), "test": fingerprint(["x"])}
    assert changed_splits(then, now) == f"valid was {then['valid']}, and is {now['valid']}"
    assert changed_splits({}, now) == changed_splits(then, then) == ""
    assert str(then["train"]).startswith("2 lines, 20 tokens, sha256 ")
