"""What is read from a record: the series of a quantity, by layer or over all layers."""

from lipformer.runs.metric_names import STABILITY, layer_place, split_metric
from lipformer.runs.record import RunRecord, Series


def layer_series(record: RunRecord, quantity: str, group: str = STABILITY) -> dict[str, Series]:
    """Return a quantity's series for each layer that has it, in the order of the model.

    Args:
        record: of the run.
        quantity: the last part of the metric's name; the norm where `group` is that of the certificates.
        group: the first part of the metric's name.
    """
    found = {}
    for name, series in record.series.items():
        match split_metric(name):
            case (first, str(layer), last) if first == group and last == quantity:
                found[layer] = series
    return dict(sorted(found.items(), key=lambda item: layer_place(item[0])))
