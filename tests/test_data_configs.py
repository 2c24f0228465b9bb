"""The shipped data configurations fit the classes they name."""

from pathlib import Path

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from lipformer.data import Corpus
from lipformer.data.datamodule import CharDataModule

FOLDER = Path(__file__).parents[1] / "conf" / "data"
LOADER = ("max_length", "unknown", "batch_tokens", "num_workers")


@pytest.mark.parametrize("name", ["ptb", "text_files", "builtin"])
def test_instantiates_and_comments_each_key(name):
    text = (FOLDER / f"{name}.yaml").read_text()
    config = OmegaConf.create({"context": 256, "data": OmegaConf.create(text)})
    if name == "text_files":
        config.data.train = "somewhere.txt"
    options = OmegaConf.to_container(config, resolve=True)["data"]
    options.pop("defaults", None)  # the schema's place in Hydra's composition
    loader = {key: options.pop(key) for key in LOADER}
    corpus = instantiate(options)
    assert isinstance(corpus, Corpus)
    CharDataModule(corpus, context=256, seed=0, **loader)
    assert loader.pop("batch_tokens") >= 1024
    assert loader == {"max_length": 256, "unknown": "error", "num_workers": 0}
    keys = [line for line in text.splitlines() if line and not line.startswith(("#", "_", "defaults"))]
    assert all(" # " in line for line in keys)
