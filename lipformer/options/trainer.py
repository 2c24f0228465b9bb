"""Options of the trainer: how long to train, on which device, and how often to validate and log."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lipformer.options.checks import Check, number, one_of, or_null, thread_count
from lipformer.options.option import Fault, Options, option


def _limit() -> Check:
    return Check(lambda limit: limit == -1 or limit >= 1, "at least 1, or -1 for no limit")


def _devices() -> Check:
    """Return the check of the devices: Lightning makes its own only after the text was read, partly as raw errors."""

    def holds(devices: Any) -> bool:
        if isinstance(devices, list):
            whole = all(type(number) is int and number >= 0 for number in devices)  # bool is an int
            return whole and len(set(devices)) == len(devices) > 0
        return devices == "auto" or (type(devices) in (int, str) and (int(devices) >= 1 or int(devices) == -1))

    return Check(holds, "a number of at least 1, -1 or auto for all there are, or a list of device numbers")


@dataclass
class TrainerOptions(Options):
    """Options of `auto`, `cpu` and `gpu`."""

    schema = "trainer/trainer"

    accelerator: str = option("auto", "auto: a GPU where there is one", one_of("auto", "cpu", "gpu"))
    devices: Any = option(1, "number of devices, or the numbers of those to use", _devices())
    num_nodes: int = option(
        1, "machines, each with that many devices; above 1, torchrun starts the processes", number(at_least=1)
    )
    strategy: str = option(
        "auto", "ddp: each device has a copy of the model; auto: ddp for several devices", one_of("auto", "ddp")
    )
    precision: str = option(
        "32-true",
        "precision of the weights (true) or of matrix products only (mixed)",
        one_of("32-true", "bf16-mixed", "16-mixed", "bf16-true", "64-true"),
    )
    threads: int | None = option(
        None, "CPU threads", or_null(thread_count(), "for one for a small model, else one for each core")
    )
    max_steps: int = option(1500, "most optimizer steps", _limit())
    max_epochs: int = option(-1, "most passes over the training split", _limit())
    gradient_clip: float | None = option(
        1.0, "largest norm of the gradient; a larger one is clipped", or_null(number(above=0), "for none")
    )
    val_every_steps: int = option(
        250, "optimizer steps between validations; the last step has one in any case", number(at_least=1)
    )
    log_every_steps: int = option(20, "optimizer steps between rows of training metrics", number(at_least=1))
    deterministic: bool | None = option(
        None, "true: use only operations that give bitwise the same result each time; null: on the CPU alone"
    )
    compile: bool = option(False, "true: torch.compile the model; takes a minute at the start; needs regularizer=none")
    progress: str = option(
        "auto", "auto: rich in a terminal, plain lines elsewhere", one_of("auto", "rich", "plain", "none")
    )
    report: bool = option(True, "write figures and report.html into the run folder when the run ends")

    @classmethod
    def faults(cls, values: Mapping[str, Any]) -> Iterator[Fault]:
        """Check as well that one of the two limits is set, and say why a strategy that splits weights is refused."""
        for fault in super().faults(values):
            if fault.option == "strategy" and "fsdp" in str(fault.value):
                why = "fsdp splits matrices over devices, and their norms, certificates and checkpoints need them whole"
                fault = fault._replace(wanted=f"{fault.wanted}: {why}")
            yield fault
        if values.get("max_steps") == values.get("max_epochs") == -1:
            yield Fault("max_steps", -1, "at least 1 where trainer.max_epochs=-1, or training never ends")
