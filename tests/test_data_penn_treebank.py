"""Penn Treebank's corpus on made-up text, and, where the files are at hand, on the benchmark itself."""

import hashlib
import os
import sys
from pathlib import Path

import pytest

from lipformer.data import Corpus, PennTreebank, Vocabulary
from lipformer.data.datamodule import CharDataModule
from lipformer.errors import DataError

SPLITS = ("train", "valid", "test")
TEXT = {"train": ["the cat <unk> n 's", "a n"], "valid": ["a cat"], "test": ["the n"]}
ROOT = Path(__file__).parents[1]


def write_words(folder, text=TEXT):
    folder.mkdir(exist_ok=True)
    for split, lines in text.items():
        (folder / f"ptb.{split}.txt").write_text("".join(f" {line} \n" for line in lines))
    return folder


def write_symbols(folder, text=TEXT):
    """The layout of the published character files: each character, the newline too, followed by a space."""
    folder.mkdir(exist_ok=True)
    for split, lines in text.items():
        symbols = "".join(f"{line}\n" for line in lines).replace(" ", "_")
        (folder / f"ptb.char.{split}.txt").write_text("".join(f"{symbol} " for symbol in symbols))
    return folder


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """No variable, no landing folder, no network: the launch folder is empty."""
    monkeypatch.delenv("LIPFORMER_PTB_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def error_of(call) -> str:
    with pytest.raises(DataError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_both_forms_give_the_same_stripped_lines(tmp_path):
    for folder in (write_words(tmp_path / "words"), write_symbols(tmp_path / "symbols")):
        corpus = PennTreebank(dir=str(folder), verify=False)
        assert {split: corpus.lines(split) for split in SPLITS} == TEXT
        assert corpus.name == "ptb (unverified)"
        assert corpus.source("train", 1).startswith(str(folder))
        assert corpus.source("train", 1).endswith("train.txt, line 2")


def test_the_given_folder_is_the_only_place(nowhere, monkeypatch):
    monkeypatch.setenv("LIPFORMER_PTB_DIR", str(write_words(nowhere / "variable")))
    (nowhere / "given").mkdir()
    message = error_of(lambda: PennTreebank(dir="given", verify=False).lines("train"))
    assert message.startswith("data.dir=given holds no ptb.train.txt or ptb.char.train.txt; put ptb.train.txt (sha256")


def test_the_variable_comes_before_the_landing_folder(nowhere, monkeypatch):
    (nowhere / "data").mkdir()
    write_words(nowhere / "data" / "ptb", {"train": ["landed"], "valid": ["landed"]})
    assert PennTreebank(verify=False).lines("train") == ["landed"]
    monkeypatch.setenv("LIPFORMER_PTB_DIR", str(write_words(nowhere / "variable", {"train": ["variable"]})))
    corpus = PennTreebank(verify=False)
    assert corpus.lines("train") == ["variable"]
    assert corpus.lines("valid") == ["landed"]


def test_found_nowhere_is_one_message(nowhere):
    message = error_of(lambda: PennTreebank(download=False).lines("valid"))
    assert message.startswith("ptb valid: no ptb.valid.txt or ptb.char.valid.txt in $LIPFORMER_PTB_DIR (not set) or ")
    assert (
        f"{nowhere}/data/ptb, and none from Hugging Face ptb-text-only/ptb_text_only (data.download=false)" in message
    )
    for file in (
        "ptb.train.txt (sha256 fcea919f...)",
        "ptb.valid.txt (sha256 c9fe6985...)",
        "ptb.test.txt (sha256 dd65",
    ):
        assert file in message
    assert message.endswith("into data/ptb, see data/README.md of lipformer, or set data.dir")


def test_the_hub_is_asked_last_by_its_full_name(nowhere, monkeypatch):
    import datasets

    for split, lines in TEXT.items():
        table = datasets.Dataset.from_dict({"sentence": [f" {line} " for line in lines]})
        table.to_parquet(str(nowhere / f"{split.replace('valid', 'validation')}.parquet"))
    load_parquet = datasets.load_dataset
    asked = []

    def load_dataset(name, *, revision, split):
        asked.append((name, revision, split))
        files = {split: str(nowhere / f"{split}.parquet")}
        return load_parquet("parquet", data_files=files, split=split, cache_dir=str(nowhere / "cache"))

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda self, name, **_: asked.append(name))
    corpus = PennTreebank(verify=False)
    assert {split: corpus.lines(split) for split in SPLITS} == TEXT
    name, revision = "ptb-text-only/ptb_text_only", "refs/convert/parquet"
    assert asked[:2] == [name, (name, revision, "train")]
    assert [question[2] for question in asked[1::2]] == ["train", "validation", "test"]
    assert corpus.source("valid", 0) == f"Hugging Face {name} (validation), line 1"
    assert "is not the benchmark's text" in error_of(lambda: PennTreebank().lines("valid"))


def test_a_hub_out_of_reach_is_part_of_the_one_message(nowhere, monkeypatch):
    def dataset_info(self, name, **_):
        raise ConnectionError("name not known\nand more")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", dataset_info)
    assert "none from Hugging Face ptb-text-only/ptb_text_only (name not known); put ptb.train.txt" in error_of(
        lambda: PennTreebank().lines("test")
    )


def test_datasets_not_installed(nowhere, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "datasets" in error_of(lambda: PennTreebank().lines("test"))


def test_another_text_is_refused_and_told_by_its_figures(tmp_path):
    message = error_of(lambda: PennTreebank(dir=str(write_words(tmp_path))).lines("valid"))
    digest = hashlib.sha256(b" a cat \n").hexdigest()[:8]
    assert (
        f"ptb.valid.txt is not the benchmark's text: it has 1 lines, 6 tokens, sha256 {digest}... as words" in message
    )
    assert "the benchmark 3,370 lines, 393,042 tokens, sha256 c9fe6985... as words" in message
    assert message.endswith("set data.verify=false to use it under another name")


def test_words_under_the_name_of_the_character_form(tmp_path):
    (tmp_path / "ptb.char.train.txt").write_text(" a n \n the cat \n")
    message = error_of(lambda: PennTreebank(dir=str(tmp_path), verify=False).lines("train"))
    assert "ptb.char.train.txt, line 2: 'the' is no single character" in message


def test_empty_and_non_utf8_files(tmp_path):
    (tmp_path / "ptb.train.txt").write_bytes(b"")
    (tmp_path / "ptb.valid.txt").write_bytes(b" a \n \xff \n")
    corpus = PennTreebank(dir=str(tmp_path))
    assert "ptb.train.txt is empty" in error_of(lambda: corpus.lines("train"))
    assert "is not UTF-8: byte 0xFF at offset 5 (line 2)" in error_of(lambda: corpus.lines("valid"))


def test_is_a_corpus_and_constructing_reads_nothing(nowhere):
    assert isinstance(PennTreebank(dir="not there"), Corpus)
    assert PennTreebank().name == "ptb"
    assert PennTreebank().source("valid") == "ptb valid"


def test_the_checksum_file_agrees_with_the_code(nowhere):
    sums = dict(line.split()[::-1] for line in (ROOT / "data/SHA256SUMS").read_text().splitlines())
    assert sorted(sums) == sorted(f"ptb.{form}{split}.txt" for form in ("", "char.") for split in SPLITS)
    message = error_of(lambda: PennTreebank(download=False).lines("valid"))
    readme = (ROOT / "data/README.md").read_text()
    for split in SPLITS:
        assert f"(sha256 {sums[f'ptb.{split}.txt'][:8]}...)" in message
    assert all(f"{digest}" in readme and name in readme for name, digest in sums.items())


# From here on the benchmark itself.


@pytest.fixture(scope="module")
def benchmark_lines(ptb_dir):
    corpus = PennTreebank(dir=str(ptb_dir))
    return {split: corpus.lines(split) for split in SPLITS}


def options(**changes):
    return {"max_length": None, "unknown": "error", "batch_tokens": 4096, "num_workers": 0, "seed": 0} | changes


@pytest.mark.ptb
def test_lines_tokens_and_characters(benchmark_lines):
    figures = {split: (len(lines), sum(map(len, lines)) + len(lines)) for split, lines in benchmark_lines.items()}
    assert figures == {"train": (42_068, 5_017_482), "valid": (3_370, 393_042), "test": (3_761, 442_423)}
    assert [max(map(len, benchmark_lines[split])) for split in SPLITS] == [518, 390, 491]
    vocabulary = Vocabulary.from_lines(benchmark_lines["train"])
    assert (len(vocabulary.characters), len(vocabulary)) == (49, 50)
    assert not any(vocabulary.count_unknown(line) for split in SPLITS for line in benchmark_lines[split])
    assert sum(line.count("<unk>") for line in benchmark_lines["test"]) > 1000  # spelled out, not one symbol


@pytest.mark.ptb
def test_the_character_form_has_the_same_sums_and_ids(benchmark_lines, tmp_path):
    sums = dict(line.split()[::-1] for line in (ROOT / "data/SHA256SUMS").read_text().splitlines())
    write_symbols(tmp_path, benchmark_lines)
    corpus = PennTreebank(dir=str(tmp_path))
    vocabulary = Vocabulary.from_lines(benchmark_lines["train"])
    for split, lines in benchmark_lines.items():
        name = f"ptb.char.{split}.txt"
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == sums[name]
        assert corpus.lines(split) == lines
        assert corpus.source(split).endswith(name)
    ids = [vocabulary.encode(line) for line in corpus.lines("test")]
    assert ids == [vocabulary.encode(line) for line in benchmark_lines["test"]]


@pytest.mark.ptb
@pytest.mark.parametrize("split", ["valid", "test"])
def test_the_published_character_form(benchmark_lines, ptb_dir, tmp_path, split):
    name = f"ptb.char.{split}.txt"
    if not (ptb_dir / name).is_file():
        pytest.skip(f"{name} is not in LIPFORMER_PTB_DIR")
    os.symlink(ptb_dir / name, tmp_path / name)
    assert PennTreebank(dir=str(tmp_path)).lines(split) == benchmark_lines[split]


@pytest.mark.ptb
@pytest.mark.parametrize("edit", ["letter", "cut", "blank"])
def test_an_edited_benchmark_file(ptb_dir, tmp_path, edit):
    text = (ptb_dir / "ptb.valid.txt").read_text()
    edited = {"letter": text.replace("e", "f", 1), "cut": text[: len(text) // 2], "blank": text + "\n \r\n"}[edit]
    (tmp_path / "ptb.valid.txt").write_text(edited)
    corpus = PennTreebank(dir=str(tmp_path))
    if edit == "blank":  # the same lines all the same
        assert len(corpus.lines("valid")) == 3_370
    else:
        assert "is not the benchmark's text" in error_of(lambda: corpus.lines("valid"))


@pytest.mark.ptb
def test_protocols_and_padding(ptb_dir):
    whole = CharDataModule(PennTreebank(dir=str(ptb_dir)), context=519, **options())
    filtered = CharDataModule(PennTreebank(dir=str(ptb_dir)), context=288, **options(max_length=288))
    assert whole.protocol("test") == "ptb test, all lines (3,761 lines, 442,423 tokens)"
    at_most = "lines of at most 288 characters, end symbol counted"
    assert [filtered.protocol(split) for split in SPLITS] == [
        f"ptb train, {at_most} (41,733 of 42,068 lines, 4,908,171 tokens)",
        f"ptb valid, {at_most} (3,356 of 3,370 lines, 388,438 tokens)",
        f"ptb test, {at_most} (3,735 of 3,761 lines, 434,106 tokens)",
    ]
    loader = filtered.train_dataloader()
    assert len(loader) == filtered.batches_per_epoch == 1221
    assert loader.batch_sampler.padding_fraction < 0.03
    for split_loader in (filtered.val_dataloader(), filtered.test_dataloader()):
        batches = list(split_loader)
        padded = sum(batch.inputs.numel() for batch in batches)
        assert 1 - sum(batch.lengths.sum().item() for batch in batches) / padded < 0.03
        assert max(batch.inputs.numel() for batch in batches) <= 4096


@pytest.mark.ptb
def test_lines_longer_than_the_context(ptb_dir):
    data = CharDataModule(PennTreebank(dir=str(ptb_dir)), context=288, **options())
    message = error_of(lambda: data.setup("test"))
    assert "ptb.test.txt, line 109: 314 tokens, end symbol counted, do not fit into context=288" in message
    assert "(26 such lines in test); drop them by data.max_length=288, or train with context=492 or more" in message
