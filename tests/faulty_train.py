"""train.py in a process that tells what it is doing, and that a fault strikes at a moment that can be chosen.

A run writes a line to the pipe that ``$TOLD`` names whenever it begins with something else: what it is, and the number
of optimizer steps before it. ``$FAULT`` is what happens when a line is written, and that line, such as
``SIGKILL saving 6``: the name of a signal, or one of `FAULTS`.

To import the program takes longer than a tiny training. So this process only imports it, and forks another one for each
run that is asked for: a line of JSON on stdin each (`Asked`); it answers with two lines, process id and exit code.
"""

import importlib
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

TOLD, FAULT = "TOLD", "FAULT"


class Asked(TypedDict):
    """A run that is asked for: arguments of train.py, working directory, variables of the environment."""

    arguments: list[str]
    folder: str
    environment: dict[str, str]


ROOM = 16_384
"""Bytes that a full disk has left, for lines of the log."""


def no_number_in_the_loss(module: Any) -> None:
    original = module.sums
    module.sums = lambda outputs, batch: tuple(part * float("nan") for part in original(outputs, batch))


def no_number_in_a_gradient(module: Any) -> None:
    module.model.unembedding.weight.register_hook(lambda gradient: gradient * float("nan"))


def no_number_in_an_activation(module: Any) -> None:
    module.model.blocks[0].register_forward_hook(lambda block, inputs, outputs: outputs * float("nan"))


def no_number_in_a_weight(module: Any) -> None:
    module.model.unembedding.bias.data[0] = float("nan")


def full_disk(module: Any) -> None:
    fill(Path(module.trainer.default_root_dir).parent, but=ROOM)


def read_only(module: Any) -> None:
    """Make the folder of the checkpoints read-only, which binds root too."""
    folder = str(Path(module.trainer.default_root_dir) / "checkpoints")
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)


FAULTS = {
    "nan-loss": no_number_in_the_loss,
    "nan-gradient": no_number_in_a_gradient,
    "nan-activation": no_number_in_an_activation,
    "nan-weight": no_number_in_a_weight,
    "full-disk": full_disk,
    "read-only": read_only,
}


def fill(disk: Path, but: int) -> None:
    """Leave `but` bytes of room on a disk, by a file named ``filler``."""
    filler = os.open(disk / "filler", os.O_CREAT | os.O_WRONLY)
    try:
        while os.write(filler, bytes(4096)):
            pass
    except OSError:
        os.truncate(filler, os.fstat(filler).st_size - but)
    os.close(filler)


def tell(phase: str, step: int, module: Any = None) -> None:
    """Say that the run begins with `phase` after `step` optimizer steps; the fault strikes if it is due here."""
    line = f"{phase} {step}"
    if TOLD in os.environ:
        os.write(int(os.environ[TOLD]), f"{line}\n".encode())
    fault, _, where = os.environ.get(FAULT, "").partition(" ")
    if where != line:
        return
    if fault in FAULTS:
        FAULTS[fault](module)
    else:
        os.kill(os.getpid(), getattr(signal, fault))


def tell_all() -> None:
    """Let each part of a training be told before it begins."""
    from lipformer.training import run
    from lipformer.training.callbacks.stopping import CleanStop
    from lipformer.training.checkpoint_io import AtomicCheckpointIO
    from lipformer.training.language import LanguageModule

    def before(owner: Any, name: str, say: Callable[..., None]) -> None:
        original = getattr(owner, name)

        def told(*arguments: Any, **options: Any) -> Any:
            say(*arguments)
            return original(*arguments, **options)

        setattr(owner, name, told)

    before(LanguageModule, "training_step", lambda module, *_: tell("step", module.global_step, module))
    before(CleanStop, "check", lambda stop, trainer: tell("boundary", trainer.global_step, trainer.lightning_module))
    before(LanguageModule, "validation_step", lambda module, *_: tell("validation", module.global_step, module))
    before(AtomicCheckpointIO, "save_checkpoint", lambda io, state, *_: tell("saving", state["global_step"]))
    before(run, "finish", lambda training, *_: tell("finishing", training.trainer.global_step))


def run(asked: Asked) -> None:
    """Be train.py, in a process that has just been forked."""
    for name in ("SIGTERM", "SIGHUP", "SIGUSR1"):  # nohup ignores HUP
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    os.chdir(asked["folder"])
    os.environ.update(asked["environment"])
    told = os.open(os.environ[TOLD], os.O_WRONLY)
    os.environ[TOLD] = str(told)
    for number, name in ((0, os.devnull), (1, "stdout"), (2, "stderr")):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
    sys.argv = ["train.py", *asked["arguments"]]
    tell("start-up", 0)
    cli.train()


def serve() -> None:
    """Answer each line of stdin with the process id, and with the exit code when the run has ended."""
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            code = 70  # of a mistake here
            try:
                run(json.loads(line))
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
            finally:
                sys.stdout.flush()
                os._exit(code)
        print(process, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


if __name__ == "__main__":
    from lipformer.program import cli  # before torch: it sets how OpenMP's threads wait

    logging.getLogger().addHandler(logging.NullHandler())  # else Lightning adds one of its own when it is imported
    tell_all()
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
    serve()
