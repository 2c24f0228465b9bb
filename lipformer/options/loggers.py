"""Options of the loggers."""

from dataclasses import dataclass

from lipformer.options.checks import number, one_of
from lipformer.options.option import PartOptions, option


@dataclass
class WandbOptions(PartOptions):
    """Options of `wandb`."""

    schema = "logger/wandb"

    project: str = option("lipformer", "wandb project that lists the run")
    entity: str | None = option(None, "user or team that the project belongs to; null: the account's default")
    mode: str = option(
        "auto",
        "auto: $WANDB_MODE, else online with an API key and offline without",
        one_of("auto", "online", "offline", "disabled"),
    )
    init_timeout: float = option(30, "seconds to wait for the server before the run goes on offline", number(above=0))
    finish_timeout: float = option(
        300, "seconds to wait for the last uploads; `wandb sync` sends what remains", number(above=0)
    )
