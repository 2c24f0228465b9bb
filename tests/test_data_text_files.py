import os
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipformer.data import TextFiles
from lipformer.errors import DataError


@pytest.fixture
def write(tmp_path):
    def write(content, name="text.txt"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


def error_of(call) -> str:
    with pytest.raises(DataError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_three_files(write):
    corpus = TextFiles(write("a\n b \n", "one"), write("c\n", "two"), write("d", "three"))
    assert [corpus.lines(split) for split in ("train", "valid", "test")] == [["a", "b"], ["c"], ["d"]]
    assert corpus.name == "text_files (one)"
    assert corpus.source("valid").endswith("two")


def test_only_real_line_ends_end_a_line(write):
    text = "one\ntwo\r\nthree\rfo\x0cur\nfi\u2028ve\nsi\x1cx\u0085\n"
    corpus = TextFiles(write(text), split=[1, 0, 0])
    assert corpus.lines("train") == ["one", "two", "three", "fo\x0cur", "fi\u2028ve", "si\x1cx"]


@given(
    st.lists(st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]))),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_lines_are_those_written(tmp_path_factory, lines, end):
    wanted = [line.strip() for line in lines if line.strip()]
    path = tmp_path_factory.mktemp("lines") / "text.txt"
    path.write_bytes(end.join(lines).encode())
    corpus = TextFiles(str(path), split=(1, 0, 0))
    if wanted and not lines[0].startswith("\ufeff"):
        assert corpus.lines("train") == wanted


def test_byte_order_mark_is_no_character(write):
    assert TextFiles(write(b"\xef\xbb\xbfab\n"), split=(1, 0, 0)).lines("train") == ["ab"]


def test_blank_lines_are_dropped_counted_and_keep_the_numbers_of_the_others(write):
    corpus = TextFiles(write("a\n\n  \nb\n\n"), split=(1, 0, 0))
    assert corpus.lines("train") == ["a", "b"]
    assert corpus.source("train").endswith("text.txt (3 blank lines left out)")
    assert corpus.source("train", 1).endswith("text.txt, line 4")


def test_one_file_is_cut_in_its_order(write):
    corpus = TextFiles(write("".join(f"{i}\n" for i in range(20))), split=[0.8, 0.1, 0.1])
    parts = [corpus.lines(split) for split in ("train", "valid", "test")]
    assert [len(part) for part in parts] == [16, 2, 2]
    assert [*chain(*parts)] == [str(i) for i in range(20)]
    assert corpus.source("valid", 1).endswith("line 18")
    assert corpus.name == "text_files (text.txt 0.8/0.1/0.1)"


@given(st.integers(50, 300), st.lists(st.floats(0.05, 1), min_size=3, max_size=3))
def test_shares_lose_and_repeat_no_line(tmp_path_factory, count, weights):
    path = tmp_path_factory.mktemp("shares") / "text.txt"
    path.write_text("".join(f"{i}\n" for i in range(count)))
    corpus = TextFiles(str(path), split=[weight / sum(weights) for weight in weights])
    parts = [corpus.lines(split) for split in ("train", "valid", "test")]
    assert [*chain(*parts)] == [str(i) for i in range(count)]


def test_share_without_a_line(write):
    corpus = TextFiles(write("a\nb\n"))
    assert corpus.lines("train") == ["a", "b"]
    assert "the share 0.05 of its 2 lines leaves none for valid; raise it in data.split" in error_of(
        lambda: corpus.lines("valid")
    )


@pytest.mark.parametrize("split", [(0.5, 0.5), (0.9, 0.2, 0.1), (1.2, -0.1, -0.1), ("a", "b", "c"), None])
def test_shares_that_are_none(split):
    assert "it must be three shares (train, valid, test) that add up to 1" in error_of(
        lambda: TextFiles("a", split=split)
    )


def test_constructing_reads_nothing_and_a_missing_split_is_told_when_needed(write):
    corpus = TextFiles(write("a\n"), valid="not there")
    assert corpus.lines("train") == ["a"]
    assert error_of(lambda: corpus.lines("valid")).startswith("data.valid=not there does not exist (looked for /")
    assert error_of(lambda: corpus.lines("test")).startswith("data.test is missing: name a text file for it")


def test_relative_paths_count_from_the_launch_folder(write, tmp_path, monkeypatch):
    write("a\n")
    monkeypatch.chdir(tmp_path)
    assert TextFiles("text.txt", split=(1, 0, 0)).lines("train") == ["a"]


def test_folder_instead_of_a_file(tmp_path):
    assert error_of(lambda: TextFiles(str(tmp_path)).lines("train")) == (
        f"data.train={tmp_path} is a folder: name a text file in it"
    )


@pytest.mark.parametrize("content", [b"", b"\n\n", b"  \r\n\t", b"\xef\xbb\xbf"])
def test_empty_file(write, content):
    assert "is empty: it needs at least one line" in error_of(lambda: TextFiles(write(content)).lines("train"))


@pytest.mark.parametrize(
    ("content", "offset", "line"),
    [(b"ab\r\ncd\ne\xe9\n", 8, 3), (b"\xef\xbb\xbfab\n\xff", 6, 2), ("text".encode("utf-16"), 0, 1)],
)
def test_not_utf8_names_byte_offset_and_line(write, content, offset, line):
    message = error_of(lambda: TextFiles(write(content)).lines("train"))
    assert f"is not UTF-8: byte 0x{content[offset]:02X} at offset {offset} (line {line})" in message


def test_nul_byte(write):
    message = error_of(lambda: TextFiles(write("a\nb".encode("utf-16-le"))).lines("train"))
    assert "is not plain text: NUL byte at offset 1 (line 1)" in message


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="permissions do not bind this user")
def test_unreadable_file(write, tmp_path):
    path = write("a\n")
    os.chmod(path, 0)
    assert "cannot be read: Permission denied" in error_of(lambda: TextFiles(path).lines("train"))
