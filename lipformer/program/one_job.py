"""The process of one job of a sweep: ``python -m lipformer.program.one_job``.

Its standard input gives it the job, and then tells it by its end that the process that started it is gone.
"""

import signal

signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # which a worker of Ray blocks
ON_INTERRUPT = signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback while modules are imported

import contextlib  # noqa: E402
import os  # noqa: E402
import pickle  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402
from typing import Any, cast  # noqa: E402

from hydra import version  # noqa: E402
from hydra._internal.callbacks import Callbacks  # noqa: E402
from hydra.core.hydra_config import HydraConfig  # noqa: E402
from hydra.core.utils import JobRuntime, run_job, setup_globals  # noqa: E402
from hydra.types import HydraContext  # noqa: E402

from lipformer.config import register  # noqa: E402
from lipformer.program.cli import attempt, leave  # noqa: E402
from lipformer.program.hydra_plugins import make_known  # noqa: E402
from lipformer.program.job_process import SIZE, Job  # noqa: E402
from lipformer.runs.outcome import Outcome  # noqa: E402


def main() -> None:
    """Run the job, and exit with the code of its outcome."""
    register()
    make_known()  # the configuration names classes of plugins
    setup_globals()
    version.setbase("1.3")
    job = _receive()
    if job.deaf:
        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGINT, ON_INTERRUPT)
    threading.Thread(target=_end_with_parent, args=(job,), name="parent", daemon=True).start()
    outcomes: list[Outcome] = []

    def task(config: Any) -> float:
        outcomes.append(attempt(job.program, config, job.folder, job.full_error))
        return outcomes[-1].objective

    config = pickle.loads(job.config)
    JobRuntime.instance().set("name", config.hydra.job.name)
    HydraConfig.instance().set_config(config)
    run_job(
        task_function=task,
        config=config,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
        hydra_context=HydraContext(cast(Any, None), Callbacks()),  # callbacks are called where the jobs are launched
    )
    leave(outcomes[-1])


def _receive() -> Job:
    """Read the job from standard input, and no further, as that stays open."""
    told = b""
    while len(told) < SIZE or len(told) < SIZE + int.from_bytes(told[:SIZE]):
        part = os.read(sys.stdin.fileno(), 1 << 16)
        if not part:
            sys.exit("one_job is started by a sweep, which tells it the job: type python train.py -m ...")
        told += part
    job: Job = pickle.loads(told[SIZE:])
    return job


def _end_with_parent(job: Job) -> None:
    """Wait for the end of standard input, and let the job save and end: nobody would see how it goes on."""
    with contextlib.suppress(OSError):
        while os.read(sys.stdin.fileno(), 1):
            pass
    os.kill(os.getpid(), signal.SIGUSR1 if job.deaf else signal.SIGTERM)


if __name__ == "__main__":
    main()
