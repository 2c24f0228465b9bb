import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipformer.data import Vocabulary
from lipformer.errors import DataError

texts = st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1).filter(any)


def test_ids_follow_code_points_and_the_end_symbol_is_last():
    vocabulary = Vocabulary.from_lines(["bé a", "Z"])
    assert vocabulary.characters == (" ", "Z", "a", "b", "é")
    assert vocabulary.encode("aé Z") == [2, 4, 0, 1]
    assert vocabulary.end_id == 5
    assert len(vocabulary) == 6


@given(texts)
def test_round_trip(lines):
    vocabulary = Vocabulary.from_lines(lines)
    assert Vocabulary.from_lines(reversed(lines)) == vocabulary
    for line in lines:
        ids = vocabulary.encode(line)
        assert all(0 <= i < vocabulary.end_id for i in ids)
        assert vocabulary.decode(ids) == line
        assert vocabulary.decode([vocabulary.end_id, *ids, vocabulary.end_id]) == line


def test_decode_takes_tensors_and_refuses_padding():
    vocabulary = Vocabulary.from_lines(["ab"])
    assert vocabulary.decode(torch.tensor([0, 1, 2])) == "ab"
    for wrong in (-100, -1, 3):
        with pytest.raises(ValueError, match=rf"id {wrong} is outside the vocabulary's 0\.\.2"):
            vocabulary.decode([0, wrong])


def test_unknown_character_is_named_with_its_place_and_the_remedy():
    vocabulary = Vocabulary.from_lines(["a b"])
    with pytest.raises(DataError) as error:
        vocabulary.encode("ab€", where="valid.txt, line 3")
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith("valid.txt, line 3, column 3: character '€' (U+20AC) does not occur in the training")
    assert message.endswith("set data.unknown=replace to read it as ' '")


def test_replace_keeps_the_size_and_counts():
    vocabulary = Vocabulary.from_lines(["a b"])
    assert vocabulary.decode(vocabulary.encode("a€b€", unknown="replace")) == "a b "
    assert vocabulary.count_unknown("a€b€") == 2
    assert Vocabulary.from_lines(["xyz"]).replacement == "x"  # no space: the first character
    assert len(vocabulary) == 4


def test_mistyped_choice_is_refused_even_without_unknown_characters():
    with pytest.raises(ValueError, match="unknown='drop': expected 'error' or 'replace'"):
        Vocabulary.from_lines(["a"]).encode("a", unknown="drop")


def test_plain_form_goes_through_a_safe_checkpoint(tmp_path):
    vocabulary = Vocabulary.from_lines(["hello, wörld"])
    plain = vocabulary.to_plain()
    assert type(plain) is list
    torch.save({"vocabulary": plain}, tmp_path / "file.ckpt")
    loaded = torch.load(tmp_path / "file.ckpt", weights_only=True)["vocabulary"]
    assert Vocabulary.from_plain(loaded) == vocabulary
    assert Vocabulary.from_plain(plain[1:]) != vocabulary


@pytest.mark.parametrize("damaged", [[], ["b", "a"], ["a", "a"], ["ab"], [""], ["a", 1]])
def test_damaged_plain_form_is_refused(damaged):
    with pytest.raises(DataError, match=f"vocabulary of {len(damaged)} entries"):
        Vocabulary.from_plain(damaged)


def test_no_training_text():
    with pytest.raises(DataError, match="holds no character"):
        Vocabulary.from_lines(["", ""])


def test_corpora_and_vocabulary_are_imported_without_torch_and_lightning():
    code = (
        "import sys, lipformer.data as d; d.PennTreebank(); d.TextFiles('a'); d.Builtin(); d.Vocabulary(('a',)); "
        "print(*[m for m in ('torch', 'pytorch_lightning', 'datasets') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_every_exported_name_exists():
    import lipformer.data

    assert all(getattr(lipformer.data, name) is not None for name in lipformer.data.__all__)
    with pytest.raises(AttributeError, match="nonesuch"):
        lipformer.data.nonesuch
