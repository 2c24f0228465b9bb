"""Options of a sweep, ``-m``."""

from dataclasses import dataclass

from lipformer.options.option import Options, option


@dataclass
class SweepOptions(Options):
    """Options of `grid`."""

    schema = "sweep/sweep"

    resume: str | None = option(
        None, "folder of a sweep to go on with, by the command line that it was started with; null: a new sweep"
    )
    retry_failed: bool = option(False, "with sweep.resume: repeat the jobs that failed, too")
