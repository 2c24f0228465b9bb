"""Two processes that train together share the sentences of each epoch, and of each validation, between them."""

import json

import pytest
import torch
from pytorch_lightning import LightningModule, Trainer

from lipformer.data import IGNORE
from lipformer.data.datamodule import CharDataModule


class Numbers:
    """Thirty-one lines, and nine of valid, each a number spelled in a length of its own."""

    name = "numbers"

    def lines(self, split):
        return [str(i) + "x" * (i % 7) for i in range(31 if split == "train" else 9)]

    def source(self, split, index=None):
        return split


class WriteDown(LightningModule):
    """Writes the sentences of each epoch, and then of each validation, to a file of its rank."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.epochs, self.validations = folder, [[], []], [[], []]
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def training_step(self, batch, batch_idx):
        self.epochs[self.current_epoch] += [row[row != IGNORE].tolist() for row in batch.targets]
        return self.weight * batch.inputs.float().mean()

    def validation_step(self, batch, batch_idx):
        self.validations[self.current_epoch] += [row[row != IGNORE].tolist() for row in batch.targets]

    def on_train_end(self):
        (self.folder / f"{self.global_rank}.json").write_text(json.dumps(self.epochs + self.validations))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.slow
def test_two_processes(tmp_path):
    data = CharDataModule(
        Numbers(), context=16, max_length=None, unknown="error", batch_tokens=32, num_workers=0, seed=0
    )
    Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp_fork",
        max_epochs=2,
        default_root_dir=tmp_path,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
    ).fit(WriteDown(tmp_path), datamodule=data)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    data.setup("fit")
    for split, numbers in {"train": (0, 1), "valid": (2, 3)}.items():
        for number in numbers:
            sentences = [data.vocabulary.decode(row) for rank in ranks for row in rank[number]]
            assert sorted(sentences) == sorted(Numbers().lines(split))
            assert all(rank[number] for rank in ranks)
    assert ranks[0][0] != ranks[0][1]
