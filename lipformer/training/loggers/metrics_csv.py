"""``metrics.csv``, a row at a time; rewritten whole or not at all when a metric comes up for the first time."""

import csv
from pathlib import Path

from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.loggers.csv_logs import ExperimentWriter
from pytorch_lightning.loggers.logger import rank_zero_experiment

from lipformer.system.atomic import naming, replacing


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
        with file.open(newline="") as old:
            rows = list(csv.DictReader(old))
        with replacing(file, "w", newline="") as new:
            writer = csv.DictWriter(new, fieldnames=fieldnames)
            writer.writeheader()
            writer.writerows(rows)
