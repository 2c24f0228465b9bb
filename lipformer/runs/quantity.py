"""A quantity that is measured while a model trains: what its metrics are called, and how each reader shows it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from lipformer.runs.metric_names import STABILITY, metric_name

Scale = Literal["linear", "log", "auto"]
"""Of an axis; ``auto`` is logarithmic where the values span much, and where that cannot be known beforehand."""
End = Literal["smallest", "largest"]
SMALLEST: End = "smallest"
LARGEST: End = "largest"
MEAN = "mean"
REDUCTIONS = (SMALLEST, LARGEST, MEAN)
"""In the place of a layer: all layers at each step, as one number."""


@dataclass(frozen=True)
class Curve:
    """One line of a chart.

    Attributes:
        label: what it shows.
        layer: a layer, one of `WHOLES` or of `REDUCTIONS`; None for a metric of the whole run.
        quantity: the name of another quantity than the row's own; empty for that of the row.
    """

    label: str
    layer: str | None
    quantity: str = ""


@dataclass(frozen=True)
class Chart:
    """The chart of a quantity in the report; with a second curve also a panel of the workspace.

    Attributes:
        about: the line under the title.
        curve: of each run.
        pale: a second curve of each run, for comparison.
        title: where it differs from the quantity's.
    """

    about: str
    curve: Curve
    pale: Curve | None = None
    title: str = ""


@dataclass(frozen=True)
class HeatMap:
    """The heat map of a quantity in the report: layers by steps.

    Attributes:
        about: the line under the title.
        hidden: kinds of layers that are left out, besides the total; a block is, where layers of it are there.
    """

    about: str
    hidden: tuple[str, ...] = ()


@dataclass(frozen=True)
class Drawing:
    """The panel of a quantity in the figures for papers.

    Attributes:
        kind: ``map``, blocks by tokens in colours; ``blocks``, a line for each block; ``branches``, the same of each
            kind of branch; ``curves``, those of the chart; ``bounds``, the two curves of the chart and the room between
            them; ``spread``, the total and the range over the layers.
        title: of the panel of one run.
        compared: the title of the panel that has a line for each run; of ``map``, ``blocks`` and ``branches`` that is
            the `reduction` over the layers, of others the curve of the chart.
        reduction: one of `REDUCTIONS`.
        map_title: of the column of maps in the figure of several runs; there is none where it is empty.
    """

    kind: Literal["map", "blocks", "branches", "curves", "bounds", "spread"]
    title: str
    compared: str
    reduction: str = MEAN
    map_title: str = ""


@dataclass(frozen=True)
class Value:
    """A quantity as one number: in a table, in the summary of a training or in its line of progress.

    Attributes:
        title: what is said of it.
        layer: as in `Curve`; of `SMALLEST` and `LARGEST` the layer is named, too.
        spelled: the format of the number.
        pick: which one of the course of a training: the last that is a number, the smallest or the largest.
        about: an explanation, where there is room for one.
    """

    title: str
    layer: str
    spelled: str = "{:.4g}"
    pick: Literal["last", "smallest", "largest"] = "last"
    about: str = ""


@dataclass(frozen=True)
class Quantity:
    """A row of the catalogue.

    Attributes:
        name: the last part of the metrics' names: a regular expression for all of it.
        title: in the reader's words.
        layers: the kinds of layers that it is of, as `lipformer.runs.metric_names.kind_of` tells them; empty for a
            quantity of the whole run.
        group: the first part of the metrics' names.
        axis: the label of an axis, with the unit; empty where it is the title.
        scale: of the axes.
        limits: the ends of the scale, where they are known.
        worst: which end tells of trouble; a heat map whose columns stand for several steps shows this one.
        extreme_of: the layer whose summary in wandb is the worst value instead of the last one; None for no layer.
        difference: (minuend, subtrahend) of a quantity that no run logs, and that is computed from two others.
        of_last_layer: whether the trunk, if a run has nothing of its own for it, has the value of its last layer: they
            return the same tensor, which is logged once.
        instead: by layer, the metric that stands for this one in a run that has not got it.
        section: of the workspace, one of `SECTIONS`; empty for none.
        chart: in the report.
        heat_map: in the report.
        drawing: in the figures.
        column: of the report's table of runs.
        summary: rows of the table at the end of a training.
        progress: in the line of progress.
    """

    name: str
    title: str
    layers: tuple[str, ...] = ()
    group: str = STABILITY
    axis: str = ""
    scale: Scale = "auto"
    limits: tuple[float, float] | None = None
    worst: End = LARGEST
    extreme_of: str | None = None
    difference: tuple[str, str] | None = None
    of_last_layer: bool = False
    instead: Mapping[str, str] = field(default_factory=dict)
    section: str = ""
    chart: Chart | None = None
    heat_map: HeatMap | None = None
    drawing: Drawing | None = None
    column: Value | None = None
    summary: tuple[Value, ...] = ()
    progress: Value | None = None

    @property
    def axis_label(self) -> str:
        """The label of an axis."""
        return self.axis or self.title

    @property
    def is_pattern(self) -> bool:
        """Whether the row stands for several names."""
        return not self.name.isidentifier()

    def metric(self, layer: str | None) -> str:
        """Return the name of the metric of a layer, or of the run; a regular expression where the row `is_pattern`."""
        return metric_name(self.group, self.name, layer)

    def metrics(self, layer: str | None) -> tuple[str, ...]:
        """Return the same, and after it the metric to read instead, if there is one."""
        instead = self.instead.get(layer or "")
        return (self.metric(layer), instead) if instead else (self.metric(layer),)

    @property
    def worst_end(self) -> Literal["min", "max"]:
        """The worst end by the name that wandb has for it."""
        return "min" if self.worst == SMALLEST else "max"

    def matches(self, group: str, name: str) -> bool:
        """Return whether the row is of the metrics whose first and last part these are."""
        return group == self.group and re.fullmatch(self.name, name) is not None
