"""The launcher ``hydra/launcher=ray``: the jobs are tasks of a Ray cluster, which finds cores and GPUs for them."""

import os
import signal
from collections.abc import Iterator, Sequence
from typing import Any

from lipformer.errors import UsageError, one_line
from lipformer.options.launcher import RayOptions
from lipformer.program.job_process import Job, run_job, settle
from lipformer.program.launching import ProcessLauncher, on_cores
from lipformer.runs.outcome import Outcome

SETTINGS = {
    "RAY_DEDUP_LOGS": "0",  # jobs print equal lines, of which Ray would show one
    "RAY_COLOR_PREFIX": "0",
    "RAY_kill_child_processes_on_worker_exit": "false",  # they save and end by themselves
}
"""Settings of Ray for a cluster on this machine, unless the user has made them."""


class RayLauncher(ProcessLauncher):
    """Runs as many jobs at once as the cluster has room for; their folders must be on disks that all machines share."""

    options = RayOptions
    choice = package = extra = "ray"

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Outcome]]:
        """Run the jobs as tasks, and yield each when it has ended.

        Raises:
            UsageError: there is no cluster at the address, or a job needs more than the machine has.
        """
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        import ray

        on_term = signal.getsignal(signal.SIGTERM)
        here = {} if self.values["address"] else {"num_cpus": self.values["cpus"], "include_dashboard": False}
        try:
            ray.init(address=self.values["address"], logging_level="error", **here)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UsageError(f"hydra.launcher.address={self.values['address']}: {one_line(error)}") from error
        signal.signal(signal.SIGTERM, on_term)  # Ray has put its own in place, which exits at once
        try:
            yield from self._run(ray, jobs)
        finally:
            ray.shutdown()

    def _run(self, ray: Any, jobs: Sequence[Job]) -> Iterator[tuple[int, Outcome]]:
        needs = {"num_cpus": self.values["cpus_per_job"], "num_gpus": self.values["gpus_per_job"]}
        for kind, name in (("CPU", "num_cpus"), ("GPU", "num_gpus")):
            there = ray.cluster_resources().get(kind, 0)
            if needs[name] > there and not self.values["address"]:  # a cluster elsewhere may grow
                option = "cpus_per_job" if kind == "CPU" else "gpus_per_job"
                raise UsageError(f"hydra.launcher.{option}={needs[name]}: this machine has {there:g}")
        # No retries: a job that was killed stays so until the sweep is resumed, as with every launcher.
        task = ray.remote(**needs, max_retries=0)(run_job)
        waiting = {task.remote(job): job for job in on_cores(jobs, self.values["cpus_per_job"])}
        while waiting:
            for reference in ray.wait(list(waiting), num_returns=1, timeout=1.0)[0]:
                job = waiting.pop(reference)
                try:
                    yield job.number, ray.get(reference)
                except ray.exceptions.RayError as error:  # its worker was killed, and with that its process
                    yield job.number, settle(job, one_line(error))
