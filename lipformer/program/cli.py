"""The two programs, from the command line to the exit code.

Hydra composes the configuration, and errors in it are reported in one line, before torch and Lightning are imported.
Exit codes: 0 finished, 1 error, 2 usage or configuration, 3 diverged, 130 interrupted; 129, 138 and 143 terminated by
HUP, USR1 and TERM.
"""

import contextlib
import os
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from lipformer.config import conf_dir, refuse_unread, register, to_plain, typed_keys, validate, without_unread
from lipformer.config.renamed import refuse_old_spellings
from lipformer.errors import UsageError
from lipformer.program.hydra_plugins import make_known
from lipformer.program.launch import refuse_launch
from lipformer.program.sweep_plan import FLAGS, expand_resume
from lipformer.program.sweep_report import SweepReport
from lipformer.runs import layout
from lipformer.runs.folder import claim_folder, claim_job_folder, forget_attempt, record_refusal, recorded
from lipformer.runs.outcome import Outcome
from lipformer.runs.search import JobTrial, trial_of_job
from lipformer.runs.sweep import RETRY_FAILED, settled, without_sweep_keys
from lipformer.system.openmp import limit_spinning
from lipformer.system.ranks import rank
from lipformer.system.source import spell_command, typed_command
from lipformer.system.text import print_error

limit_spinning()  # nothing above imports torch, which loads OpenMP

FULL_ERROR = "HYDRA_FULL_ERROR"


def train() -> None:
    """Entry point of ``train.py``: compose, train, and exit with the code of the outcome."""
    _run("train")


def evaluate() -> None:
    """Entry point of ``evaluate.py``: compose, evaluate, and exit with the code of the outcome."""
    _run("evaluate")


def _train(config: DictConfig, folder: Path) -> float | None:
    settings: Any = validate(config) if config.resume is None else None  # a continued run has its own values
    if settings is not None:
        refuse_unread(settings.model, typed_keys(HydraConfig.get()))
    refuse_launch(config.trainer, HydraConfig.get())
    if not _in_sweep():
        claim_folder(folder)
    plain: dict[str, Any] = {}

    def report() -> None:
        if not plain:  # it failed before the training began
            return
        from lipformer.training.publish import publish_report, say_how_to_continue

        if plain["trainer"]["report"]:
            publish_report(folder)
        if outcome.status in ("interrupted", "terminated") and not _in_sweep():
            say_how_to_continue(folder)

    with recorded(folder, layout.TRAIN, report) as outcome:
        resumed = _resumed(config, folder)
        if resumed is not None:
            config = resumed.config
            settings = validate(config)
        from lipformer.training.run import run_training

        plain.update(without_unread(to_plain(config)))
        return run_training(settings, plain, folder, outcome, resumed, trial=_trial(), command=_command())


def _command() -> str:
    """Return the command line as it was typed; of a job of a sweep, the one that would start it alone."""
    return spell_command("train.py", *HydraConfig.get().overrides.task) if _in_sweep() else typed_command()


def _resumed(config: DictConfig, folder: Path) -> Any:
    """Return the run to be continued: that of this folder, if it has begun, else the one that ``resume`` names."""
    if _in_sweep():
        if (folder / layout.CHECKPOINTS).is_dir():
            from lipformer.training.resume import continue_in_place

            resumed = continue_in_place(config, HydraConfig.get(), folder)
            if resumed is not None:
                return resumed
        forget_attempt(folder)
    if config.resume is None:
        return None
    from lipformer.training.resume import resume_run

    return resume_run(config, HydraConfig.get())


def _trial() -> JobTrial | None:
    """Return the trial that this job is, if its sweep is a search."""
    hydra_config = HydraConfig.get()
    return trial_of_job(Path(hydra_config.sweep.dir), hydra_config.job.num) if _in_sweep() else None


def _evaluate(config: DictConfig, folder: Path) -> float | None:
    settings = validate(config)
    if not _in_sweep():
        claim_folder(folder)
    with recorded(folder, layout.EVALUATE) as outcome:
        from lipformer.studies.study import open_study

        outcome.best = open_study(settings.study).run(settings, folder)
        return outcome.best


def _in_sweep() -> bool:
    return HydraConfig.get().mode == RunMode.MULTIRUN


def _run(config_name: str) -> None:
    """Run a program under Hydra and exit.

    The exception of a job is turned into an `Outcome` before Hydra sees it: Hydra would print lines of its own, and a
    sweep could not tell a diverged job from a failed one.
    """
    register()
    make_known()
    try:
        refuse_old_spellings(config_name, sys.argv[1:])
        sys.argv[1:] = expand_resume(config_name, sys.argv[1:])
    except UsageError as error:
        print_error(str(error))
        sys.exit(error.exit_code)
    _refuse_unknown_flags(sys.argv[1:])
    for flag in set(FLAGS).intersection(sys.argv):  # Hydra accepts it only as the first argument
        sys.argv.remove(flag)
        sys.argv.insert(1, flag)
    task = _Task(config_name)
    try:
        hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=config_name)(task)()
    except (SystemExit, KeyboardInterrupt) as error:
        if SweepReport.running:
            SweepReport.running.close()
        if isinstance(error, KeyboardInterrupt):  # between two jobs
            sys.exit(130)
        raise
    except Exception as error:
        if SweepReport.running:
            SweepReport.running.close()
        from lipformer.program.usage import explain

        if task.full_error:
            traceback.print_exc()
        print_error(explain(error, config_name))
        sys.exit(2)
    if task.outcomes:  # none after --help and --cfg; a sweep has exited with the code of its report
        leave(task.outcomes[-1])


class _Task:
    """What Hydra calls for each job that runs in this process.

    Args:
        program: ``train`` or ``evaluate``.

    Attributes:
        full_error: whether the user asked for tracebacks.
        outcomes: how the jobs ended, so far.
    """

    def __init__(self, program: str):
        self.program = program
        self.outcomes: list[Outcome] = []
        # Without this Hydra would print its errors itself; we explain them.
        self.full_error = os.environ.get(FULL_ERROR) == "1"
        os.environ[FULL_ERROR] = "1"

    def __call__(self, config: DictConfig) -> float:
        folder = Path(HydraConfig.get().runtime.output_dir)
        os.environ[FULL_ERROR] = str(int(self.full_error))  # distributed processes inherit what the user set
        outcome = attempt(self.program, config, folder, self.full_error)
        os.environ[FULL_ERROR] = "1"
        self.outcomes.append(outcome)
        if outcome.status in ("interrupted", "terminated"):
            leave(outcome)  # a SystemExit also cancels the remaining jobs of a sweep
        return outcome.objective


def leave(outcome: Outcome) -> NoReturn:
    """Exit with the code of the outcome."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # the pipe is closed: Python's own flush at exit would make the code 120
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    # If another process than the first exits with a code, Lightning and torchrun kill the first, which may be writing.
    sys.exit(0 if _ends_with_the_first(outcome) else outcome.exit_code)


def _ends_with_the_first(outcome: Outcome) -> bool:
    """Return whether this is not the first process of a training, and the first has ended likewise and will say so."""
    return rank() > 0 and outcome.status in ("interrupted", "terminated", "diverged")


def attempt(program: str, config: DictConfig, folder: Path, full_error: bool) -> Outcome:
    """Run one job to its `Outcome` and print an error in one line.

    Args:
        program: ``train`` or ``evaluate``.
        config: the configuration of the job.
        folder: its run folder.
        full_error: whether to print tracebacks as well.
    """
    job = {"train": _train, "evaluate": _evaluate}[program]
    outcome, own = Outcome(), False
    try:
        if _in_sweep():
            claim_job_folder(folder, without_sweep_keys(HydraConfig.get().overrides.task))
            own = True
            done = settled(folder, retry_failed=bool(OmegaConf.select(config, RETRY_FAILED)))
            if done is not None:
                return done
        outcome.best = job(config, folder)
    except BaseException as error:
        outcome.end_by(error)
        if full_error:
            traceback.print_exc()
        if outcome.exit_code != 0 and not _ends_with_the_first(outcome):  # one that was pruned did what it was asked to
            print_error(f"process {rank()}: {outcome.reason}" if rank() else outcome.reason)
    with contextlib.suppress(FileNotFoundError):  # another process of the training has deleted it
        if own and outcome.status == "failed":
            record_refusal(folder, outcome)
        elif not any(folder.iterdir()):
            folder.rmdir()
    return outcome


def _refuse_unknown_flags(arguments: list[str]) -> None:
    known = {option for action in get_args_parser()._actions for option in action.option_strings}
    for argument in arguments:
        flag = argument.partition("=")[0]
        if flag.startswith("--") and flag not in known:
            print_error(f"unknown flag {flag}: keys are written {flag.lstrip('-')}=<value>, without dashes")
            sys.exit(2)
