"""One training run, from a validated configuration to the figures in its folder."""

import logging
import math
import signal
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from omegaconf import OmegaConf
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.plugins.environments import LightningEnvironment

from lipformer.config import TrainConfig
from lipformer.data.datamodule import CharDataModule
from lipformer.errors import UsageError
from lipformer.run_folder import Outcome, local_rank, sigterm_handler, write_metrics
from lipformer.training.build import LOADER_KEYS, build_callbacks, build_corpus, build_model, factory
from lipformer.training.callbacks.checkpoints import BestCheckpoint, LastCheckpoint
from lipformer.training.callbacks.progress import progress_callbacks
from lipformer.training.callbacks.stability import StabilityMonitor
from lipformer.training.callbacks.stopping import CleanStop
from lipformer.training.checkpoint import checkpoint_extras, find_checkpoint, read_checkpoint
from lipformer.training.loggers import finished
from lipformer.training.metrics import bits
from lipformer.training.module import LanguageModule
from lipformer.training.publish import publish_figures
from lipformer.training.resume import prepend_metrics
from lipformer.training.summary import print_summary

log = logging.getLogger(__name__)

DEFAULT_THREADS = torch.get_num_threads()  # before a job changes it: the next job of a sweep shares the process


def run_training(settings: TrainConfig, config: dict[str, Any], folder: Path, outcome: Outcome) -> float | None:
    """Train, and leave checkpoints and figures in `folder`.

    Args:
        settings: the validated configuration.
        config: the same as plain containers: what is stored and logged.
        folder: the run folder, claimed and empty but for the log.
        outcome: its `best` is kept up to date, so that an interrupted run reports it too.

    Returns:
        The best ``val/nats_per_char``, in nats; None where no validation was reached.

    Raises:
        LipformerError: data, model or trainer refuse the configuration, or training diverged.
    """
    if local_rank() == 0:
        (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(config)))
    options = config["trainer"]
    torch.set_num_threads(options["threads"] or DEFAULT_THREADS)
    resume_from, first_step, earlier_vocabulary = None, 0, None
    if settings.resume is not None:
        resume_from = find_checkpoint(settings.resume, "last")
        checkpoint = read_checkpoint(resume_from)
        _check_room_to_train(checkpoint, options, resume_from)
        first_step, earlier_vocabulary = checkpoint["global_step"], checkpoint["lipformer"]["vocabulary"]

    best = BestCheckpoint(folder, resume_from)
    last = LastCheckpoint(folder)
    throughput, shown = progress_callbacks(options["progress"])
    watching = build_callbacks(config["callbacks"])
    further = factory(config["logger"], "logger")(folder=folder, config=config)
    # The configured ones stand before those that save: what they raise keeps a bad state from being saved.
    stop = CleanStop()
    callbacks = [stop, *watching, best, last, *shown]
    trainer = build_trainer(options, folder, callbacks, [further] if further else [])

    data = CharDataModule(
        build_corpus(config["data"]),
        context=settings.context,
        seed=settings.seed,
        **{key: config["data"][key] for key in LOADER_KEYS},
    )
    data.setup("fit")
    assert data.vocabulary is not None  # made while the training split was read
    if earlier_vocabulary not in (None, data.vocabulary.to_plain()):
        raise UsageError(
            f"resume={settings.resume}: {data.corpus.source('train')} has other characters than the text that run was "
            "trained on; continue it with that text"
        )
    for line in data.report():
        log.info(line)

    pl.seed_everything(settings.seed, workers=True, verbose=False)
    model = build_model(config, len(data.vocabulary))
    if options["compile"]:
        model.compile(dynamic=True)  # in place, which leaves the names of the weights; batches differ in length
    parameters = sum(p.numel() for p in model.parameters())
    log.info("model: %s parameters; run folder: %s", f"{parameters:,}", folder)
    module = LanguageModule(
        model,
        optimizer=factory(config["optimizer"], "optimizer"),
        schedule=factory(config["schedule"], "schedule"),
        regularizer=factory(config["regularizer"], "regularizer"),
        checkpoint_extras=checkpoint_extras(config, data.vocabulary),
        seed=settings.seed,
        log_every_steps=options["log_every_steps"],
    )
    ended = Outcome()
    with finished(further):
        try:
            _fit(trainer, module, data, resume_from)
            if stop.asked:  # all is saved by now, but a sweep must not go on
                raise KeyboardInterrupt
        except BaseException as error:
            ended.end_by(error)
            raise
        finally:
            outcome.best = ended.best = _finite(best.best_model_score)
            monitor = next((callback for callback in watching if isinstance(callback, StabilityMonitor)), None)
            latest = monitor.latest if monitor else {}
            metrics = {
                "best/val/nats_per_char": outcome.best,
                "best/val/bits_per_char": None if outcome.best is None else bits(outcome.best),
                **latest,
                **{name: float(value) for name, value in trainer.callback_metrics.items()},
                **({"stability/seconds": monitor.seconds} if monitor else {}),
                "parameters": parameters,
                "steps": trainer.global_step,
                "tokens": module.tokens_seen,
                "seconds": throughput.seconds(),
                "tokens_per_second": throughput.tokens_per_second(module.tokens_seen),
            }
            write_metrics(folder, metrics)
            if resume_from is not None and local_rank() == 0:
                prepend_metrics(folder, resume_from, first_step)
            print_summary(metrics, latest, options["progress"], ended.status)
            if options["report"]:
                try:
                    publish_figures(folder, trainer.loggers)
                except KeyboardInterrupt:
                    if ended.status == "finished":
                        raise
                    log.warning("the figures were left out: interrupted")  # how the training ended stands
    if outcome.best is not None:
        log.info("best valid: %.4f nats/char, %.4f bits/char", outcome.best, bits(outcome.best))
    log.info("test it with: python evaluate.py checkpoint=%s", folder)
    if options["report"]:
        log.info("look at it in: %s", folder / "report.html")
    return outcome.best


def build_trainer(
    options: dict[str, Any], folder: Path, callbacks: list[pl.Callback], loggers: list[Any]
) -> pl.Trainer:
    """Build the trainer of a run.

    Raises:
        UsageError: the machine lacks the accelerator or the devices, or the CPU is to compute in float16.
    """
    # Lightning's auto and gpu also mean Apple's GPU, which has no float64 for the sums of nats.
    accelerators = {"cpu": "cpu", "gpu": "cuda", "auto": "cuda" if torch.cuda.is_available() else "cpu"}
    accelerator = accelerators[options["accelerator"]]
    if accelerator == "cpu" and options["precision"] == "16-mixed":  # Lightning would take bfloat16 without a word
        raise UsageError("trainer.precision=16-mixed: the CPU does not train in float16; take bf16-mixed")
    try:
        return pl.Trainer(
            accelerator=accelerator,
            devices=options["devices"],
            precision=options["precision"],
            max_steps=options["max_steps"],
            max_epochs=options["max_epochs"],
            min_epochs=0,  # lets the last step be the middle of an epoch
            gradient_clip_val=options["gradient_clip"],
            val_check_interval=options["val_every_steps"],
            check_val_every_n_epoch=None,
            log_every_n_steps=options["log_every_steps"],
            deterministic=options["deterministic"],
            logger=[CSVLogger(folder, name="", version=""), *loggers],
            callbacks=callbacks,
            default_root_dir=folder,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,  # the batch sampler knows its rank; Lightning would undo the buckets
            enable_model_summary=False,
            enable_progress_bar=False,  # callbacks/progress.py shows it
            plugins=[LightningEnvironment()] if options["devices"] == 1 else None,
        )
    except (pl.utilities.exceptions.MisconfigurationException, ValueError) as error:
        raise UsageError(f"trainer: {str(error).splitlines()[0]}") from error


def _fit(trainer: pl.Trainer, module: LanguageModule, data: CharDataModule, resume_from: Path | None) -> None:
    try:
        with sigterm_handler(signal.SIG_DFL):  # Lightning installs its own, which waits for the end of the step
            trainer.fit(module, data, ckpt_path=resume_from, weights_only=True)
    except SystemExit:
        if trainer.interrupted and not trainer.received_sigterm:  # Lightning turns Ctrl-C into exit code 1
            signal.signal(signal.SIGINT, signal.default_int_handler)  # and leaves it ignored, in last uploads too
            raise KeyboardInterrupt from None
        raise


def _check_room_to_train(checkpoint: dict[str, Any], options: dict[str, Any], path: Path) -> None:
    epoch = checkpoint.get("CharDataModule", {}).get("epoch", 0)
    for key, done in (("step", checkpoint["global_step"]), ("epoch", epoch)):
        limit = options[f"max_{key}s"]
        if limit != -1 and done >= limit:
            raise UsageError(f"resume={path}: it stands at {key} {done} and trainer.max_{key}s={limit}; raise that")


def _finite(score: torch.Tensor | None) -> float | None:
    return float(score) if score is not None and math.isfinite(score) else None
