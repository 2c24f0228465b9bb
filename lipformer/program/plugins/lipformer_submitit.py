"""The launchers ``hydra/launcher=submitit_slurm`` and ``submitit_local``: each job is one that submitit submits."""

import os
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lipformer.errors import UsageError
from lipformer.options.launcher import SubmititLocalOptions, SubmititSlurmOptions
from lipformer.program.job_process import EVERY, PACKAGE, Job, SubmittedJob, settle
from lipformer.program.launching import ProcessLauncher, on_cores
from lipformer.runs import layout
from lipformer.runs.outcome import Outcome
from lipformer.system.openmp import core_count


class SubmititLauncher(ProcessLauncher):
    """Base of the two; a job that runs out of time, or whose machine is taken away, is queued again and goes on."""

    package = extra = "submitit"

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Outcome]]:
        """Submit the jobs, and yield each when it has ended."""
        jobs = on_cores([replace(job, deaf=True) for job in jobs], self.cores(len(jobs)))
        executor = self.executor(jobs[0].sweep / layout.SUBMITIT / "%j")
        path, before = [str(PACKAGE)], os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([*path, before] if before else path)  # which its jobs inherit
        try:
            yield from self.submit(executor, jobs)
        finally:
            os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)

    @abstractmethod
    def executor(self, folder: Path) -> Any:
        """Return submitit's executor.

        Args:
            folder: where it keeps what belongs to its jobs; ``%j`` stands for the number of one.
        """

    @abstractmethod
    def cores(self, jobs: int) -> int:
        """Return the number of cores of each of so many jobs."""

    @abstractmethod
    def submit(self, executor: Any, jobs: Sequence[Job]) -> Iterator[tuple[int, Outcome]]:
        """Submit the jobs, and yield each when it has ended."""


class SubmititLocalLauncher(SubmititLauncher):
    """Runs ``n_jobs`` jobs at once on this machine, each as a Slurm cluster would."""

    options = SubmititLocalOptions
    choice = "submitit_local"

    def executor(self, folder: Path) -> Any:
        """Return the executor that starts a job at once."""
        from submitit import LocalExecutor

        executor = LocalExecutor(folder, max_num_timeout=self.values["max_num_timeout"])
        executor.update_parameters(
            **{name: self.values[name] for name in ("timeout_min", "signal_delay_s", "gpus_per_node")}
        )
        return executor

    def cores(self, jobs: int) -> int:
        """Return an equal share of this machine's."""
        return max(1, core_count() // self._at_once(jobs))

    def submit(self, executor: Any, jobs: Sequence[Job]) -> Iterator[tuple[int, Outcome]]:
        """Submit a job whenever there is room for one."""
        waiting, at_once = list(jobs), self._at_once(len(jobs))
        running: dict[Any, Job] = {}
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                running[executor.submit(SubmittedJob(), job)] = job
            yield from _ended(running)

    def _at_once(self, jobs: int) -> int:
        n_jobs: int = self.values["n_jobs"]
        return min(core_count() if n_jobs == -1 else n_jobs, jobs)


class SubmititSlurmLauncher(SubmititLauncher):
    """Runs each job of the sweep as a job of Slurm, in one array."""

    options = SubmititSlurmOptions
    choice = "submitit_slurm"

    def executor(self, folder: Path) -> Any:
        """Return the executor that calls sbatch.

        Raises:
            UsageError: there is none.
        """
        from submitit import SlurmExecutor

        try:
            executor = SlurmExecutor(folder, max_num_timeout=self.values["max_num_timeout"])
        except RuntimeError as error:
            raise UsageError(
                f"hydra/launcher={self.choice}: this machine has no sbatch: type the command on one that submits jobs "
                "to the cluster, or take hydra/launcher=submitit_local"
            ) from error
        executor.update_parameters(**self.parameters())
        return executor

    def parameters(self) -> dict[str, Any]:
        """Return what sbatch is called with, in submitit's words."""
        same = ("signal_delay_s", "cpus_per_task", "setup", "additional_parameters")
        given = ("partition", "account")
        memory = self.values["mem_gb"]
        return {
            **{name: self.values[name] for name in same},
            **{name: self.values[name] for name in given if self.values[name] is not None},
            **({"gpus_per_node": self.values["gpus_per_node"]} if self.values["gpus_per_node"] else {}),
            **({} if memory is None else {"mem": f"{memory * 1024:.0f}MB"}),
            "time": self.values["timeout_min"],
            "job_name": self.config.hydra.job.name,
            "array_parallelism": self.values["n_jobs"],
        }

    def cores(self, jobs: int) -> int:
        """Return what each job asks for."""
        return int(self.values["cpus_per_task"])

    def submit(self, executor: Any, jobs: Sequence[Job]) -> Iterator[tuple[int, Outcome]]:
        """Submit all jobs, and withdraw those that have not begun if the sweep is asked to end."""
        running = dict(zip(executor.map_array(SubmittedJob(), jobs), jobs, strict=True))
        while running:
            if jobs[0].asked():
                for submitted in running:
                    if submitted.state == "PENDING":
                        submitted.cancel(check=False)
            yield from _ended(running)


def _ended(running: dict[Any, Job]) -> Iterator[tuple[int, Outcome]]:
    """Wait a little, and yield the jobs that have ended by then, which are removed from those that run."""
    time.sleep(EVERY)
    for submitted in [submitted for submitted in running if submitted.done()]:
        job = running.pop(submitted)
        yield job.number, settle(job, "", output=submitted.paths.stderr)
