"""The launcher ``hydra/launcher=joblib``: several jobs at once on this machine.

joblib's threads each run one process after the other; its own worker processes are not used, because it ends all of
them when one is killed, and leaves them when the sweep is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from queue import SimpleQueue

from lipformer.options.launcher import JoblibOptions
from lipformer.program.job_process import Job, run_job
from lipformer.program.launching import ProcessLauncher, on_cores
from lipformer.runs.outcome import Outcome


class JoblibLauncher(ProcessLauncher):
    """Runs ``n_jobs`` jobs at once."""

    options = JoblibOptions
    choice = package = extra = "joblib"

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Outcome]]:
        """Run the jobs by threads of joblib, and yield each when it has ended."""
        from joblib import Parallel, cpu_count, delayed

        n_jobs = min(cpu_count() if self.values["n_jobs"] == -1 else self.values["n_jobs"], len(jobs))
        gpus: SimpleQueue[str | None] = SimpleQueue()
        for place in range(n_jobs):
            numbers = self.values["gpus"]
            gpus.put(str(numbers[place % len(numbers)]) if numbers else None)

        def run_in_turn(job: Job) -> tuple[int, Outcome]:
            gpu = gpus.get()
            try:
                seen = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
                return job.number, run_job(replace(job, environment={**job.environment, **seen}))
            finally:
                gpus.put(gpu)

        parallel = Parallel(n_jobs=n_jobs, backend="threading", batch_size=1, return_as="generator_unordered")
        yield from parallel(delayed(run_in_turn)(job) for job in on_cores(jobs, max(1, cpu_count() // n_jobs)))
