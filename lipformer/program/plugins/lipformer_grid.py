"""The sweeper of ``sweep=grid``: every combination of the values that were typed, in a plan that is stored first."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn
from hydra.errors import HydraException

from lipformer.errors import UsageError
from lipformer.program.sweep_plan import as_launched, store_jobs
from lipformer.program.sweeper import LaunchingSweeper
from lipformer.runs import layout
from lipformer.runs.sweep import read_plan, without_sweep_keys


class GridSweeper(LaunchingSweeper):
    """Launches a job for each combination of the values; a sweep that is resumed has the jobs that it was started with.

    Args:
        params: overrides besides those of the command line, with several values each: key -> values.
    """

    def __init__(self, params: dict[str, str] | None = None):
        self._params = params or {}

    def sweep(self, arguments: list[str]) -> Sequence[JobReturn]:
        """Check that every job can be composed, store the plan, and launch the jobs.

        Args:
            arguments: the overrides that were typed, except those of Hydra.
        """
        assert self.config is not None
        folder = Path(self.config.hydra.sweep.dir)
        if (folder / layout.SEARCH).exists():  # its jobs would open the database that is named there
            raise UsageError(f"the sweep {folder} is a search (it holds {layout.SEARCH}), not one of sweep=grid")
        typed = [*(f"{key}={values}" for key, values in self._params.items()), *arguments]
        plan = read_plan(folder)
        jobs = plan.jobs if plan and plan.jobs else self._combinations(without_sweep_keys(typed))
        launched = as_launched(jobs, self.config)
        self.validate_batch_is_legal(launched)
        store_jobs(folder, jobs, self.config)
        return self._launcher.launch(launched, initial_job_idx=0)

    def _combinations(self, typed: Sequence[str]) -> list[list[str]]:
        assert self.hydra_context is not None
        values: dict[str, list[str]] = {}
        for override in OverridesParser.create(self.hydra_context.config_loader).parse_overrides(list(typed)):
            key: Any = override.get_key_element()
            if not override.is_sweep_override():
                values[key] = [f"{key}={override.get_value_element_as_str()}"]
            elif override.is_discrete_sweep():
                values[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
            else:
                raise HydraException(f"{override.input_line}: an interval is for a search: add sweep=optuna")
        return [list(job) for job in itertools.product(*values.values())]
