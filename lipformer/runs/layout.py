"""The names of what stands in a run folder: the one place that spells them."""

import re
from pathlib import Path

CONFIG = "config.yaml"
"""The configuration that was run, every value resolved."""
OVERRIDES = "overrides.yaml"
"""In the folder of a sweep's job: its overrides, as they were typed."""
SWEEP = "multirun.yaml"
"""The configuration of a sweep, in its folder, above those of its jobs."""
SWEEP_PLAN = "sweep.json"
"""In the folder of a sweep: how it was started, and its jobs."""
SEARCH = "search.json"
"""In the folder of a sweep that is a search: how its jobs find their trials."""
STUDY = "study.db"
"""The same folder: the SQLite file of Optuna's study, unless that is elsewhere."""
ENVIRONMENT = "environment.json"
"""What ran it: code, versions, machine, threads and text; one entry for each time that a process began."""
SWEEP_STOP = "sweep.stop"
"""In the folder of a sweep that was asked to end: the names of the signals, which its jobs read, wherever they run."""
SUBMITIT = ".submitit"
"""In the folder of a sweep: what submitit keeps of its jobs, their output among it."""
STATUS = "status.json"
"""How the run ended, or that it is running."""
LOCK = "run.lock"
"""Which process the run is, until it ends."""
METRICS_CSV = "metrics.csv"
"""Metrics over the training, a row for each time they were logged."""
METRICS_JSON = "metrics.json"
"""The last and best metrics, one value each."""
SAMPLES = "samples.json"
"""Sentences that the model wrote."""
CERTIFICATE = "certificate.json"
"""Upper bounds on the Lipschitz constants of the model and of each layer."""
CLAIMS = "claims.json"
"""The claims that a study tested, with their verdicts."""
CLAIMS_PAGE = "claims.html"
"""The same as a page; in the folder of a sweep, those of all its jobs."""
WORKSPACE = "workspace.json"
"""Where the dashboard in wandb is."""
WANDB_RUN = "wandb.json"
"""Id and address of the run in wandb, if it is online."""
WANDB, TENSORBOARD = "wandb", "tensorboard"
"""Folders of the loggers' own files."""
REPORT = "report.html"
"""The run to look at."""
FIGURES = "figures"
"""Folder of the figures, as PNG and PDF."""
SWEEP_CSV, SWEEP_PAGE = "sweep.csv", "sweep.html"
"""In the folder of a sweep: its jobs as a table, and as a page to look at."""
SWEEP_MAP, SWEEP_CURVES = "sweep_map", "sweep_curves"
"""The figures of a sweep: their files without suffix."""
LEARNING, STABILITY, LAYERS = "learning", "stability", "layers"
"""The figures of a run, and of several: their files without suffix."""
BAD_BATCH = "diverged.pt"
"""The batch on which the training diverged."""

CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints."""
BEST, LAST, PREVIOUS = "best.ckpt", "last.ckpt", "previous.ckpt"
"""The checkpoints; the ``last.ckpt`` that is replaced becomes ``previous.ckpt``."""

EXPORTED_WEIGHTS, EXPORTED_MODEL = "model.safetensors", "model.json"
"""The two files of an exported model, in a folder of their own."""

TRAIN, EVALUATE = "train", "evaluate"
"""The programs, as they name their logs."""


def log_file(program: str, rank: int = 0) -> str:
    """Return the name of a program's log.

    Args:
        program: `TRAIN` or `EVALUATE`.
        rank: number of the process among those that train together; each keeps a log of its own.
    """
    return f"{program}.log" if rank == 0 else f"{program}_rank{rank}.log"


def is_log_of_another_rank(name: str) -> bool:
    """Return whether a file is the log of a process other than the first of those that train together."""
    return re.fullmatch(r"\w+_rank[1-9]\d*\.log", name) is not None


def bad_batch_file(rank: int) -> str:
    """Return the name of the file of the batch on which the training diverged, of a process's share of it."""
    return BAD_BATCH if rank == 0 else BAD_BATCH.replace(".", f"_rank{rank}.")


def run_folder_of(checkpoint: Path) -> Path:
    """Return the run folder that a checkpoint lies in."""
    return checkpoint.absolute().parent.parent
