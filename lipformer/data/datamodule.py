"""From a corpus to Lightning's loaders: vocabulary, length limit, batches, and the place to resume from."""

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, cast

from pytorch_lightning import LightningDataModule

from lipformer.data.bucketing import TokenBudgetBatchSampler
from lipformer.data.collate import WHOLE, Share, collate
from lipformer.data.corpus import Corpus, Split
from lipformer.data.fingerprint import Fingerprint, fingerprint
from lipformer.data.resumable_loader import ResumableLoader
from lipformer.data.sentences import Sentences
from lipformer.data.vocabulary import Unknown, Vocabulary
from lipformer.errors import DataError
from lipformer.options.data import DataOptions
from lipformer.system.signals import leave_signals_to_parent

_SPLITS_OF_STAGE: dict[str | None, tuple[Split, ...]] = {
    "fit": ("train", "valid"),
    "validate": ("valid",),
    "test": ("test",),
    "predict": (),
    None: ("train", "valid", "test"),
}


@dataclass(frozen=True)
class _Part:
    """A split, encoded and filtered."""

    sentences: Sentences
    fingerprint: Fingerprint  # of all lines of the corpus, including those that were dropped
    replaced: int  # number of characters outside the vocabulary
    end_id: int  # id of the end symbol in the vocabulary it is encoded with


class CharDataModule(LightningDataModule):
    """Loaders of a corpus for a character model, one sentence a row. Only the splits that are asked for are read.

    Use it with ``Trainer(use_distributed_sampler=False)``: each of several processes takes its share of every batch
    here, so that the batches of an optimizer step are the same for any number of processes.

    Its state in a checkpoint is the place where training stands, so that a resumed run trains on exactly the
    rows an uninterrupted one would have, in the middle of an epoch too, with worker processes, and on another number
    of processes.

    Args:
        corpus: where the lines come from.
        context: most tokens the model can read, the end symbol counted.
        max_length, unknown, batch_tokens, num_workers: as in :class:`~lipformer.options.data.DataOptions`. The limit
            on the length is part of :meth:`protocol`, because results on a filtered split are not those on the whole.
        seed: seed of the order of the training batches.
        vocabulary: the vocabulary of a trained model; None collects it from all training lines.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        context: int,
        max_length: int | None = DataOptions.max_length,
        unknown: str = DataOptions.unknown,
        batch_tokens: int = DataOptions.batch_tokens,
        num_workers: int = DataOptions.num_workers,
        seed: int,
        vocabulary: Vocabulary | None = None,
    ):
        super().__init__()
        DataOptions.check(max_length=max_length, unknown=unknown, batch_tokens=batch_tokens, num_workers=num_workers)
        self.corpus = corpus
        self.context, self.max_length = context, max_length
        self.unknown = cast(Unknown, unknown)
        self.batch_tokens, self.num_workers, self.seed = batch_tokens, num_workers, seed
        self.vocabulary = vocabulary
        self._parts: dict[Split, _Part] = {}
        self._start = _Start()

    def setup(self, stage: str | None = None) -> None:
        """Read the splits of a stage: train and valid to fit, valid to validate, test to test, all for None.

        Raises:
            DataError: a split is missing or faulty, a line is longer than ``context``, a character is
                unknown.
        """
        self._start = _Start()  # a checkpoint's position is loaded after this
        for split in _SPLITS_OF_STAGE[stage]:
            self._part(split)

    def train_dataloader(self) -> ResumableLoader:
        """Return the training batches, in a new order each epoch, from the place where training stands.

        Raises:
            DataError: a checkpoint's place is within an epoch, and an epoch has another number of batches now.
        """
        start = self._start
        if start.batches and start.batches_per_epoch != self.batches_per_epoch:
            raise DataError(
                f"the checkpoint stands at batch {start.batches:,} of an epoch of {start.batches_per_epoch:,}, "
                f"but an epoch has {self.batches_per_epoch:,} batches now: resume with the data settings it was "
                "written with"
            )
        return self._loader("train")

    def val_dataloader(self) -> ResumableLoader:
        """Return the valid batches, in one fixed order."""
        return self._loader("valid")

    def test_dataloader(self) -> ResumableLoader:
        """Return the test batches, in one fixed order."""
        return self._loader("test")

    @property
    def batches_per_epoch(self) -> int:
        """Training batches of an epoch; schedules count with it before any loader is made."""
        return len(self._sampler("train"))

    @property
    def fingerprints(self) -> dict[Split, Fingerprint]:
        """The fingerprints of the splits that were read so far."""
        return {split: part.fingerprint for split, part in self._parts.items()}

    def protocol(self, split: Split) -> str:
        """Return what a result on this split was measured on: corpus, split, length limit, lines and tokens."""
        part = self._part(split)
        kept = len(part.sentences)
        if self.max_length is None:
            which = f"all lines ({kept:,} lines, "
        else:
            limit = f"{self.max_length} characters, end symbol counted"
            which = f"lines of at most {limit} ({kept:,} of {part.fingerprint.lines:,} lines, "
        replaced = f", {part.replaced:,} unknown characters replaced" if part.replaced else ""
        return f"{self.corpus.name} {split}, {which}{part.sentences.tokens:,} tokens){replaced}"

    def report(self) -> list[str]:
        """Return a line on the vocabulary and a line on each split read so far, to be printed at the start."""
        report = []
        if self.vocabulary is not None:
            characters, outputs = len(self.vocabulary.characters), len(self.vocabulary)
            report.append(f"vocabulary: {characters} characters and the end symbol, {outputs} outputs")
        for split, part in self._parts.items():
            sampler = self._sampler(split)
            dropped = part.fingerprint.lines - len(part.sentences)
            report.append(
                f"{self.protocol(split)}; {dropped:,} lines dropped; {len(sampler):,} batches of at "
                f"most {self.batch_tokens:,} tokens, {sampler.padding_fraction:.2%} padding; "
                f"{self.corpus.source(split)}"
            )
        return report

    def state_dict(self) -> dict[str, Any]:
        """Return the place where training stands: the epoch, and the batches of it that were trained on."""
        position = self._position()
        if position is None or "train" not in self._parts:
            return asdict(self._start)
        epoch, batches = position
        return asdict(_Start(epoch, batches, self.batches_per_epoch, self._batches_total()))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the place in a checkpoint; train is not read: Lightning calls this before a test too."""
        self._start = _Start(**state_dict)

    def _position(self) -> tuple[int, int] | None:
        """Return (epoch, batches of it consumed) by the trainer's count of batches, None without a trainer.

        The count of all batches is the clock, not Lightning's count of epochs: that one runs ahead when
        ``max_steps`` ends an epoch early, and a run that goes on from there would never see the rest of the
        epoch.
        """
        if self.trainer is None:
            return None
        start = self._start
        since = self._batches_total() - start.batches_total
        if since <= 0:  # also while Lightning has not yet restored its own count
            return start.epoch, start.batches
        per_epoch = int(self.trainer.num_training_batches)  # less than the sampler's under limit_train_batches
        return divmod(start.epoch * per_epoch + start.batches + since, per_epoch)

    def _batches_total(self) -> int:
        if self.trainer is None:
            return 0
        # `processed`, not `ready` or `completed`: a checkpoint written when a batch fails must repeat that batch,
        # one written at the end of a batch must not.
        total = self.trainer.fit_loop.epoch_loop.batch_progress.total
        return total.processed  # type: ignore[attr-defined]  # declared as its base class

    def _part(self, split: Split) -> _Part:
        if split not in self._parts:
            lines = self.corpus.lines(split)
            if self.vocabulary is None:
                train = lines if split == "train" else self.corpus.lines("train")
                self.vocabulary = Vocabulary.from_lines(train)
            self._parts[split] = self._encode(split, lines, self.vocabulary)
        return self._parts[split]

    def _encode(self, split: Split, lines: list[str], vocabulary: Vocabulary) -> _Part:
        limit = self.max_length
        kept = [(i, line) for i, line in enumerate(lines) if limit is None or len(line) < limit]
        self._check_lengths(split, kept)
        encoded = [
            vocabulary.encode(line, unknown=self.unknown, where=self.corpus.source(split, i)) for i, line in kept
        ]
        replaced = sum(vocabulary.count_unknown(line) for _, line in kept)
        return _Part(Sentences(encoded), fingerprint(lines), replaced, vocabulary.end_id)

    def _check_lengths(self, split: Split, kept: list[tuple[int, str]]) -> None:
        source = self.corpus.source(split)
        if not kept:
            raise DataError(
                f"{source}: none of the lines of {split} has at most data.max_length={self.max_length} tokens, "
                "end symbol counted; raise it"
            )
        too_long = [(i, len(line) + 1) for i, line in kept if len(line) >= self.context]
        if too_long:
            first, tokens = too_long[0]
            longest = max(tokens for _, tokens in too_long)
            raise DataError(
                f"{self.corpus.source(split, first)}: {tokens} tokens, end symbol counted, do not fit into "
                f"context={self.context} ({len(too_long):,} such lines in {split}); drop them by "
                f"data.max_length={self.context}, or train with context={longest} or more"
            )

    def _sampler(self, split: Split) -> TokenBudgetBatchSampler:
        lengths = self._part(split).sentences.lengths
        return TokenBudgetBatchSampler(lengths, self.batch_tokens, seed=self.seed, shuffle=split == "train")

    def _loader(self, split: Split) -> ResumableLoader:
        part, trainer = self._part(split), self.trainer
        on_gpu = trainer is not None and trainer.strategy.root_device.type == "cuda"
        share = Share(trainer.global_rank, trainer.world_size) if trainer else WHOLE
        return ResumableLoader(
            part.sentences,
            batch_sampler=self._sampler(split),
            position=self._position if split == "train" else None,
            collate_fn=partial(collate, end_id=part.end_id, share=share),
            num_workers=self.num_workers,
            worker_init_fn=leave_signals_to_parent,
            pin_memory=on_gpu,
            # Fresh workers each epoch hold no state from the last one; forking them takes milliseconds.
            persistent_workers=False,
        )


@dataclass(frozen=True)
class _Start:
    """Where this fit started: at the beginning, or at the place in a checkpoint."""

    epoch: int = 0
    batches: int = 0
    batches_per_epoch: int = 0
    batches_total: int = 0
