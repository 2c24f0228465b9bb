"""Options of a search, ``-m sweep=optuna``."""

from dataclasses import dataclass
from typing import Any

from lipformer.options.checks import number, one_of, or_null
from lipformer.options.option import option
from lipformer.options.sweep import SweepOptions


@dataclass
class SearchOptions(SweepOptions):
    """Options of `optuna`."""

    schema = "sweep/search"

    trials: int = option(20, "trials of the search in all, also of a resumed one; each is a job", number(at_least=1))
    params: dict[str, Any] = option(
        {}, "what is searched, besides the command line: key -> values in the same grammar, in a YAML"
    )
    sampler: str = option(
        "tpe",
        "how values are chosen: tpe learns from the trials before (after ten of them), grid takes every combination",
        one_of("tpe", "random", "grid"),
    )
    seed: int = option(0, "seed of the sampler", number(at_least=0))
    jobs: int | None = option(
        None, "jobs that are started together", or_null(number(at_least=1), "for as many as the launcher runs at once")
    )
    pruner: str = option(
        "median",
        "trainings that are stopped early: those worse than the median, the worse two thirds at a few steps, or none",
        one_of("median", "hyperband", "none"),
    )
    prune_after_trials: int = option(5, "complete trials before the median stops any", number(at_least=1))
    prune_after_steps: int | None = option(
        None,
        "optimizer steps before which no training is stopped",
        or_null(number(at_least=0), "for a quarter of trainer.max_steps with median, else for the first validation"),
    )
    storage: str | None = option(
        None, "database of the study: a path of an SQLite file, or a URL; null: study.db in the sweep folder"
    )
    study: str | None = option(None, "name of the study in sweep.storage; sweeps that give the same one share it")
    max_failures: int | None = option(
        3, "failures in a row for the same reason that end the search", or_null(number(at_least=1), "for no limit")
    )
