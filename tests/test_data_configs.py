"""The shipped data configurations fit the classes they name."""

import pytest
from hydra import compose, initialize_config_dir

from lipformer.assembly.build import LOADER_KEYS, build_corpus
from lipformer.config import conf_dir, register, to_plain
from lipformer.data import Corpus
from lipformer.data.datamodule import CharDataModule


@pytest.mark.parametrize("name", ["ptb", "text_files", "builtin"])
def test_builds_a_corpus_and_its_loader(name):
    register()
    needed = ["data.train=somewhere.txt"] if name == "text_files" else []
    with initialize_config_dir(str(conf_dir().resolve()), version_base="1.3"):
        options = to_plain(compose("train", [f"data={name}", "context=256", *needed]))["data"]
    corpus = build_corpus(options)
    assert isinstance(corpus, Corpus)
    loader = {key: options[key] for key in LOADER_KEYS}
    CharDataModule(corpus, context=256, seed=0, **loader)
    assert loader.pop("batch_tokens") >= 1024
    assert loader == {"max_length": 256, "unknown": "error", "num_workers": 0}
