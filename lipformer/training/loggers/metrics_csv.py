"""``metrics.csv``, a row at a time; rewritten whole or not at all when a metric comes up for the first time."""

from pathlib import Path

from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.loggers.csv_logs import ExperimentWriter
from pytorch_lightning.loggers.logger import rank_zero_experiment

from lipformer.runs.metrics_csv import read_rows, write_rows
from lipformer.system.atomic import naming


class MetricsCsv(CSVLogger):
    """Lightning's logger, whose file no kill and no full disk takes away, and whose errors name the file."""

    @property
    @rank_zero_experiment
    def experiment(self) -> ExperimentWriter:
        """The writer of the file."""
        if not isinstance(self._experiment, _Writer):
            self._experiment = _Writer(log_dir=self.log_dir)
        return self._experiment


class _Writer(ExperimentWriter):
    def save(self) -> None:
        with naming(Path(self.metrics_file_path)):
            super().save()

    def _rewrite_with_new_header(self, fieldnames: list[str]) -> None:
        file = Path(self.metrics_file_path)
        write_rows(file, fieldnames, read_rows(file))
