"""What all launchers share that run each job of a sweep in a process of its own (`lipformer.program.job_process`)."""

import contextlib
import copy
import os
import pickle
import signal
import sys
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from lipformer.errors import UsageError
from lipformer.options.launcher import LauncherOptions
from lipformer.program.job_process import Job
from lipformer.runs import layout
from lipformer.runs.outcome import Outcome
from lipformer.runs.plain_files import read_overrides
from lipformer.runs.sweep import RETRY_FAILED, settled, without_sweep_keys
from lipformer.system import openmp
from lipformer.system.signals import ENDING, EXIT_CODES


class ProcessLauncher(Launcher):
    """Base of the launchers; each says how its engine calls `run_job` for all jobs.

    Args:
        values: the options, as in `options`.

    Attributes:
        options: their class.
        choice: what is typed after ``hydra/launcher=``.
        package: the Python package of the engine.
        extra: the extra of lipformer that installs it.
    """

    options: ClassVar[type[LauncherOptions]]
    choice: ClassVar[str]
    package: ClassVar[str]
    extra: ClassVar[str]

    def __init_subclass__(cls) -> None:
        if "choice" in vars(cls):
            node = cls.options(_target_=f"{cls.__module__}.{cls.__qualname__}")
            ConfigStore.instance().store(group="hydra/launcher", name=cls.choice, node=node, provider="lipformer")

    def __init__(self, **values: Any):
        self.values: dict[str, Any] = {
            name: OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
            for name, value in values.items()
        }

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Check the options, and that the engine is installed.

        Raises:
            UsageError: one of them is out of its range, or it is not installed.
        """
        for name, value, wanted in self.options.faults(self.values):
            raise UsageError(f"hydra.launcher.{name}={value}: it must be {wanted}")
        try:
            __import__(self.package)
        except ModuleNotFoundError as error:
            raise UsageError(
                f"hydra/launcher={self.choice}: {self.package} is not installed; pip install 'lipformer[{self.extra}]'"
            ) from error
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run the jobs, and return their results in order.

        Args:
            job_overrides: the overrides of each job.
            initial_job_idx: the number of the first one.

        Raises:
            SystemExit: the sweep was asked to end; the jobs that had begun have saved by then.
        """
        setup_globals()
        configs = {
            number: self._compose(number, overrides)
            for number, overrides in enumerate(job_overrides, start=initial_job_idx)
        }
        callbacks = self.hydra_context.callbacks
        for config in configs.values():
            callbacks.on_job_start(config=config, task_function=self.task_function)
        results = {}
        with StopRequests(Path(self.config.hydra.sweep.dir)) as requests:
            for number, outcome in self._run_unsettled(configs):
                results[number] = _result(configs[number], outcome)
                callbacks.on_job_end(config=configs[number], job_return=results[number])
        if requests.exit_code:
            raise SystemExit(requests.exit_code)
        return [results[number] for number in configs]

    @abstractmethod
    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Outcome]]:
        """Run the jobs by the engine, and yield the number and the outcome of each when it has ended."""

    def _run_unsettled(self, configs: Mapping[int, DictConfig]) -> Iterator[tuple[int, Outcome]]:
        """Yield the jobs that need no process, such as those that ended before a sweep was resumed; run the others."""
        jobs = []
        for number, config in configs.items():
            job = self._job(number, config)
            done = settled(job.folder, retry_failed=bool(OmegaConf.select(config, RETRY_FAILED)))
            if done is not None and read_overrides(job.folder / layout.OVERRIDES) == without_sweep_keys(_typed(config)):
                yield number, done
            else:
                jobs.append(job)
        if jobs:
            yield from self.run(jobs)

    def _compose(self, number: int, overrides: Sequence[str]) -> DictConfig:
        config = self.hydra_context.config_loader.load_sweep_config(self.config, list(overrides))
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = number
        before = HydraConfig.instance().cfg
        try:
            HydraConfig.instance().set_config(config)  # ${hydra:...} in the name of the folder reads it there
            folder = Path(config.hydra.sweep.dir).absolute() / str(config.hydra.sweep.subdir)
        finally:
            HydraConfig.instance().cfg = before
        with read_write(config.hydra.runtime), open_dict(config.hydra.runtime):
            config.hydra.runtime.output_dir = str(folder)
        return config

    def _job(self, number: int, config: DictConfig) -> Job:
        task: Any = self.task_function  # `lipformer.program.cli` made it
        return Job(
            program=task.program,
            number=number,
            folder=Path(config.hydra.runtime.output_dir),
            sweep=Path(config.hydra.sweep.dir).absolute(),
            config=pickle.dumps(config),
            full_error=task.full_error,
            environment={"HYDRA_FULL_ERROR": str(int(task.full_error))},  # in this process it is set for Hydra's sake
        )


def on_cores(jobs: Sequence[Job], cores: int) -> list[Job]:
    """Return the jobs, each with so many cores, unless the user has set OMP_NUM_THREADS, which they then take."""
    return [replace(job, environment={**job.environment, **openmp.on_cores(cores)}) for job in jobs]


def _typed(config: DictConfig) -> list[str]:
    return [str(override) for override in config.hydra.overrides.task]


def _result(config: DictConfig, outcome: Outcome) -> JobReturn:
    result = JobReturn(overrides=_typed(config), working_dir=os.getcwd(), task_name=config.hydra.job.name)
    result.hydra_cfg = OmegaConf.create({"hydra": config.hydra})
    result.cfg = copy.deepcopy(config)
    with read_write(result.cfg), open_dict(result.cfg):
        del result.cfg["hydra"]
    result.status, result.return_value = JobStatus.COMPLETED, outcome.objective
    return result


class StopRequests:
    """Context in which Ctrl-C and the signals of `ENDING` ask the jobs of a sweep to end, wherever they run.

    The first Ctrl-C lets them save, the second ends them in the middle of a step, the third kills them. Of the other
    signals only the first is passed on. A handler other than the default one is kept.

    Args:
        sweep: the folder of the sweep, in which the requests are written for the jobs to read.
    """

    def __init__(self, sweep: Path):
        self._file = sweep / layout.SWEEP_STOP
        self._received: list[str] = []
        self._before: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """The exit code of the process for the first request; 0 if there was none."""
        return 0 if not self._received else EXIT_CODES.get(self._received[0], 130)

    def __enter__(self) -> "StopRequests":
        self._file.unlink(missing_ok=True)
        for number in (signal.SIGINT, *ENDING):
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._file.unlink(missing_ok=True)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        interrupts = self._received.count("SIGINT")
        if number != signal.SIGINT and self._received:
            return
        self._received.append(signal.Signals(number).name)
        name = self._received[-1] if interrupts < 2 else "SIGKILL"
        with self._file.open("a") as stream:
            stream.write(f"{name}\n")
        once_more = "; once more to stop at once" if name == "SIGINT" and not interrupts else ""
        with contextlib.suppress(OSError):
            print(f"{name}: the jobs that run are stopping, no other begins{once_more}", file=sys.stderr, flush=True)
