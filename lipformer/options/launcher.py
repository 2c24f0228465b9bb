"""Options of the launchers, the choices of ``hydra/launcher=``: on which machines the jobs of a sweep run."""

from dataclasses import dataclass
from typing import Any

from lipformer.options.checks import Check, number, or_null, thread_count
from lipformer.options.option import PartOptions, option


def _jobs_at_once() -> Check:
    return Check(lambda jobs: jobs >= 1 or jobs == -1, "at least 1, or -1 for one for each core")


@dataclass
class LauncherOptions(PartOptions):
    """A launcher and its options."""


@dataclass
class JoblibOptions(LauncherOptions):
    """Options of `joblib`."""

    n_jobs: int = option(-1, "most jobs at once; the cores are divided among them", _jobs_at_once())
    gpus: list[int] | None = option(
        None,
        "numbers of the GPUs, which the jobs take by turns, one each; null: every job sees all",
        or_null(Check(lambda gpus: len(gpus) > 0 and min(gpus) >= 0, "a list of numbers of at least 0")),
    )


@dataclass
class RayOptions(LauncherOptions):
    """Options of `ray`."""

    address: str | None = option(
        None,
        "a running cluster, such as auto or 10.0.0.1:6379; null: a cluster on this machine, which ends with the sweep",
    )
    cpus_per_job: int = option(1, "cores, and CPU threads, of each job", thread_count())
    gpus_per_job: float = option(0.0, "GPUs of each job, or a share of one; with 0 it sees none", number(at_least=0))
    cpus: int | None = option(
        None, "cores of the cluster on this machine", or_null(number(at_least=1), "for all there are")
    )


@dataclass
class SubmititOptions(LauncherOptions):
    """Options of both launchers that use submitit."""

    timeout_min: int = option(
        1440, "minutes that a job may take before it is queued again, and goes on", number(at_least=1)
    )
    signal_delay_s: int = option(
        120, "seconds before the end of that time at which the job is told to save", number(at_least=1)
    )
    gpus_per_node: int = option(0, "GPUs of each job, which sees no others", number(at_least=0))
    max_num_timeout: int = option(10, "how often a job may be queued again for want of time", number(at_least=0))


@dataclass
class SubmititLocalOptions(SubmititOptions):
    """Options of `submitit_local`."""

    n_jobs: int = option(-1, "most jobs at once; the cores are divided among them", _jobs_at_once())


@dataclass
class SubmititSlurmOptions(SubmititOptions):
    """Options of `submitit_slurm`."""

    n_jobs: int = option(256, "most jobs of the sweep that Slurm runs at once", number(at_least=1))
    partition: str | None = option(None, "partition of the cluster; null: its default")
    account: str | None = option(None, "account that is charged; null: the user's default")
    cpus_per_task: int = option(2, "cores, and CPU threads, of each job", thread_count())
    mem_gb: float | None = option(None, "memory of each job in GB", or_null(number(above=0), "for the default"))
    setup: list[str] = option([], "shell commands before each job, such as 'module load cuda'")
    additional_parameters: Any = option(None, "further parameters of sbatch, such as {qos: low}")
