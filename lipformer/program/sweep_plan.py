"""The plan of a sweep: stored when it starts, and in place of the command line when it is resumed."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from lipformer.errors import UsageError
from lipformer.program.sweep_trust import refuse_untrusted
from lipformer.runs import layout
from lipformer.runs.sweep import RESUME, RETRY_FAILED, SweepPlan, of_one_call, quoted, read_plan, write_plan
from lipformer.system.atomic import replace_text
from lipformer.system.text import visible

MAY_CHANGE = (RETRY_FAILED, "sweep.trials", "sweep.jobs")
"""Keys that a resumed sweep may have other values of: they change none of its jobs."""
FLAGS = ("-m", "--multirun")


def begin_plan(sweep: Path, program: str, arguments: Sequence[str]) -> None:
    """Store the command line of a new sweep in its folder; its jobs are added by `store_jobs`.

    Args:
        sweep: the folder.
        program: `layout.TRAIN` or `layout.EVALUATE`.
        arguments: as typed.
    """
    write_plan(sweep, SweepPlan(program, _lasting(arguments), os.getcwd(), []))


def store_jobs(sweep: Path, jobs: Sequence[Sequence[str]], config: DictConfig) -> None:
    """Store the jobs in the plan of a sweep, and beside it the configuration, as Hydra's own sweeper does."""
    plan = read_plan(sweep)
    assert plan is not None  # stored when the sweep began
    listed = [list(job) for job in jobs]
    if plan.jobs != listed:
        write_plan(sweep, replace(plan, jobs=listed))
    if not (sweep / layout.SWEEP).exists():
        replace_text(sweep / layout.SWEEP, OmegaConf.to_yaml(config))


def as_launched(jobs: Sequence[Sequence[str]], config: DictConfig) -> list[list[str]]:
    """Return the overrides by which jobs are launched: their own, and those of the sweep that a job reads."""
    retry = [f"{RETRY_FAILED}=true"] if OmegaConf.select(config, RETRY_FAILED) else []
    return [[*job, *retry] for job in jobs]


def expand_resume(program: str, arguments: Sequence[str]) -> list[str]:
    """Return the command line by which a sweep was started, in place of ``-m sweep.resume=<folder>``.

    A command line without ``sweep.resume`` is returned as it is. The working directory becomes the one that the sweep
    was started in, so that relative paths mean what they meant.

    Args:
        program: the program that runs.
        arguments: as typed.

    Raises:
        UsageError: there is no such sweep, or the command line has other overrides.
    """
    named = [argument for argument in arguments if argument.lstrip("+").startswith(f"{RESUME}=")]
    typed = _value(named[-1]) if named else None
    if typed is None:
        return list(arguments)
    if not typed:
        raise UsageError(f"{named[-1]}: name the folder of a sweep")
    if not any(flag in arguments for flag in FLAGS):
        raise UsageError(f"{RESUME}={typed}: add -m; to continue one run, type resume=<run folder>")
    sweep = Path(typed).absolute()
    plan = read_plan(sweep) if sweep.is_dir() else None
    if plan is None:
        raise UsageError(f"{RESUME}={typed}: no sweep was started there (it holds no {layout.SWEEP_PLAN})")
    refuse_untrusted(plan, arguments, typed)
    if plan.program != program:
        raise UsageError(
            f"{RESUME}={typed}: that sweep is one of {plan.program}.py: type python {plan.program}.py -m ..."
        )
    _refuse_other_overrides(_lasting(arguments), plan, typed)
    for argument in arguments:
        if argument.startswith("hydra.sweep.dir=") and Path(_value(argument) or "").absolute() != sweep:
            raise UsageError(f"{argument}: the sweep goes on in its own folder; leave it out beside {RESUME}={typed}")
    if os.getcwd() != plan.directory:
        try:
            os.chdir(plan.directory)
        except OSError as error:
            raise UsageError(
                f"{RESUME}={typed}: it was started in {plan.directory}, where its relative paths start from, and "
                f"which cannot be entered ({error.strerror})"
            ) from error
        print(f"working in {visible(plan.directory)}, where the sweep was started")
    changed = [argument for argument in arguments if _may_change(argument)]
    return ["-m", *plan.arguments, *changed, f"{RESUME}={quoted(sweep)}", f"hydra.sweep.dir={quoted(sweep)}"]


def _lasting(arguments: Sequence[str]) -> list[str]:
    return [argument for argument in arguments if argument not in FLAGS and not of_one_call(argument)]


def _may_change(argument: str) -> bool:
    return argument.lstrip("+").partition("=")[0] in MAY_CHANGE


def _refuse_other_overrides(arguments: Sequence[str], plan: SweepPlan, sweep: str) -> None:
    typed, stored = ([text for text in texts if not _may_change(text)] for texts in (arguments, plan.arguments))
    if not typed or sorted(typed) == sorted(stored):
        return
    others = [argument for argument in typed if argument not in stored]
    absent = [argument for argument in stored if argument not in typed]
    what = f"{' '.join(others)}: not" if others else f"without {' '.join(absent)}: that is not"
    raise UsageError(
        f"{what} what this sweep was started with ({' '.join(plan.arguments)}); leave all overrides out beside "
        f"{RESUME}={sweep}, or start a new sweep"
    )


def _value(argument: str) -> str | None:
    """Return the value of an override, without quotes; None for null.

    Raises:
        UsageError: it is not one value.
    """
    try:
        value = OverridesParser.create().parse_override(argument).value()
    except HydraException as error:
        raise UsageError(f"{argument}: {str(error).splitlines()[0]}") from error
    if value is not None and not isinstance(value, str | int | float):
        raise UsageError(f"{argument}: give one folder of a sweep")
    return value if value is None or isinstance(value, str) else argument.partition("=")[2]
