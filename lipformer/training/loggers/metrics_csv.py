"""The logger that writes ``metrics.csv``, so that neither a kill nor a full disk destroys the rows before."""

from pathlib import Path

from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.loggers.csv_logs import ExperimentWriter
from pytorch_lightning.loggers.logger import rank_zero_experiment

from lipformer.runs.metrics_csv import read_rows, read_table, write_rows
from lipformer.system.atomic import naming


class MetricsCsv(CSVLogger):
    """Lightning's CSV logger with a writer whose file is always whole.

    When a metric is logged for the first time, the file is written anew with the longer header, beside its place, and
    then renamed. A file that is there, of the run that is continued, is added to. Errors name the file.
    """

    @property
    @rank_zero_experiment
    def experiment(self) -> ExperimentWriter:
        """The writer of the file; it is made on first use."""
        if not isinstance(self._experiment, _Writer):
            self._experiment = _Writer(log_dir=self.log_dir)
        return self._experiment


class _Writer(ExperimentWriter):
    """Lightning's writer, which adds to a file that is there, and replaces it whole or not at all."""

    def _check_log_dir_exists(self) -> None:
        """Read the names of a file that is there, which Lightning would delete."""
        self.metrics_keys = read_table(Path(self.metrics_file_path))[0]

    def save(self) -> None:
        with naming(Path(self.metrics_file_path)):
            super().save()

    def _rewrite_with_new_header(self, fieldnames: list[str]) -> None:
        file = Path(self.metrics_file_path)
        write_rows(file, fieldnames, read_rows(file))
