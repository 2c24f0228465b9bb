"""Where metrics go: ``metrics.csv``, and what the group ``logger`` chooses besides."""
