"""The sweeper of ``sweep=optuna``: a search by Optuna, whose trials are the jobs of the sweep."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from lipformer.errors import UsageError
from lipformer.options.search import SearchOptions
from lipformer.program.sweep_plan import as_launched
from lipformer.program.sweep_report import SweepReport
from lipformer.program.sweeper import LaunchingSweeper
from lipformer.runs.search import import_optuna
from lipformer.runs.sweep import without_sweep_keys


class SearchSweeper(LaunchingSweeper):
    """Launches a job for each trial of a search (`lipformer.program.search`)."""

    def sweep(self, arguments: list[str]) -> None:
        """Check that what is searched can be composed, then search.

        Args:
            arguments: the overrides that were typed, except those of Hydra.

        Raises:
            UsageError: Optuna is not installed, an option is out of its range, or there is nothing to search.
        """
        assert self.config is not None
        assert self.hydra_context is not None
        config = self.config
        options: Any = OmegaConf.to_container(config.sweep, resolve=True)
        for name, value, wanted in SearchOptions.faults(options):
            raise UsageError(f"sweep.{name}={value}: it must be {wanted}")
        import_optuna()
        from lipformer.program.search import SearchRun, open_search
        from lipformer.program.search_space import read_space

        space = read_space(options["params"], without_sweep_keys(arguments), self.hydra_context.config_loader)
        self.validate_batch_is_legal(as_launched(space.samples(), config))
        folder = Path(config.hydra.sweep.dir)
        trials = open_search(folder, config, space)
        search = SearchRun(folder, config, space, trials, self._launch)
        if SweepReport.running is not None and options["storage"] is None:  # else other sweeps have a share of them
            SweepReport.running.expect(search.most)
        search.run()

    def _launch(self, jobs: Sequence[Sequence[str]], first: int) -> None:
        self._launcher.launch(jobs, initial_job_idx=first)
