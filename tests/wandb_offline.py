"""A wandb run without a server, for tests of what it holds."""

import logging

from lipformer.training.loggers.choices import wandb_logger

CONFIG = {"name": "tiny", "depth": 1, "attention": {"p": "mixed"}, "resume": None}


def offline_logger(folder, **changes):
    options = {"project": "tests", "entity": None, "mode": "offline", "init_timeout": 5, "finish_timeout": 5}
    return wandb_logger(folder=folder, config=CONFIG, **(options | changes))


def warnings_of(caplog):
    return [r.message for r in caplog.records if r.levelno >= logging.WARNING and r.name.startswith("lipformer")]


def end_with(error):
    if error is not None:
        raise error
