"""The loggers of a training: ``metrics.csv``, and the one that the group ``logger`` adds."""
