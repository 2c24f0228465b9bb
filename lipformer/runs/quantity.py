"""The type of a row of the catalogue: what the metrics of a quantity are called, and how each reader shows them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from lipformer.runs.metric_names import STABILITY, metric_name

Scale = Literal["linear", "log", "auto"]
"""The scale of an axis; ``auto`` is logarithmic if the values span much, and in wandb, where they are not known yet."""
End = Literal["smallest", "largest"]
SMALLEST: End = "smallest"
LARGEST: End = "largest"
MEAN = "mean"
REDUCTIONS = (SMALLEST, LARGEST, MEAN)
"""In the place of a layer: all layers, reduced to one number for each step."""


@dataclass(frozen=True)
class Curve:
    """One curve of a chart.

    Attributes:
        label: what the curve shows.
        layer: a layer, a whole such as the trunk, or one of `REDUCTIONS`; None for a quantity of the whole run.
        quantity: the name of another row if the curve is not of the row that has the chart; else empty.
    """

    label: str
    layer: str | None
    quantity: str = ""


@dataclass(frozen=True)
class Chart:
    """How a quantity is charted in the report; a chart with two curves is also a panel of the workspace.

    Attributes:
        about: the line under the title.
        curve: the curve of each run.
        pale: a second curve of each run, for comparison, or None.
        title: the title of the chart; empty if it is that of the quantity.
    """

    about: str
    curve: Curve
    pale: Curve | None = None
    title: str = ""


@dataclass(frozen=True)
class HeatMap:
    """How a quantity is shown as a heat map of layers by steps in the report.

    Attributes:
        about: the line under the title.
        hidden: the kinds of layers that are left out, besides the total; a block is left out only if its layers are
            shown.
    """

    about: str
    hidden: tuple[str, ...] = ()


@dataclass(frozen=True)
class Drawing:
    """How a quantity is drawn in the figures for papers.

    Attributes:
        kind: how one run is drawn. ``map`` shows blocks by tokens in colours; ``blocks`` has a line for each block, and
            ``branches`` one for each block and kind of branch; ``curves`` shows the curves of the chart, ``bounds``
            also the space between them; ``spread`` shows the total and the range over the layers.
        title: the title of the panel of one run.
        compared: the title of the panel of several runs, in which each has a line: for ``map``, ``blocks`` and
            ``branches`` the `reduction` over the layers, else the curve of the chart.
        reduction: one of `REDUCTIONS`.
        map_title: the title of the maps of several runs; empty if there are none.
    """

    kind: Literal["map", "blocks", "branches", "curves", "bounds", "spread"]
    title: str
    compared: str
    reduction: str = MEAN
    map_title: str = ""


@dataclass(frozen=True)
class Value:
    """How a quantity is shown as one number: in a table, in the summary of a training or in its line of progress.

    Attributes:
        title: the label of the number.
        layer: as in `Curve`; for `SMALLEST` and `LARGEST` the summary also names the layer.
        spelled: the format of the number in the summary and the line of progress.
        pick: which value of a run a table shows: the last one that is not nan, the smallest or the largest.
        about: the explanation of a column.
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
        name: the last part of the names of its metrics, or a regular expression that matches the whole of it.
        title: the title for readers.
        layers: the kinds of layers that have the quantity, as `lipformer.runs.metric_names.kind_of` returns them; empty
            for a quantity of the whole run.
        group: the first part of the names of its metrics.
        axis: the label of an axis, with the unit; empty where it is the title.
        scale: the scale of its axes.
        limits: the fixed ends of its scale of colours, or None.
        worst: which extreme indicates trouble; a column of a heat map that stands for several steps shows it.
        extreme_of: the layer whose summary in wandb is the worst value of the run, not the last one; None for no layer.
        difference: (minuend, subtrahend), the names of two quantities, if it is not logged but is their difference.
        of_last_layer: whether the trunk, if a run has nothing of its own for it, has the value of its last layer: they
            return the same tensor, which is logged once.
        instead: by layer, the whole name of the metric that is read in its place in a run without this one.
        section: its section in the workspace, one of `lipformer.runs.quantities.SECTIONS`; empty if it is not there.
        chart: its chart in the report, or None; a row with a chart needs a section.
        heat_map: its heat map in the report, or None.
        drawing: its panel in the figures, or None.
        column: its column in the report's table of runs, or None.
        summary: its rows in the table at the end of a training.
        progress: its value in the line of progress, or None; such a row needs a section.
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
        """Return the name of the metric of a layer, or of the run; if the row `is_pattern`, a regular expression."""
        return metric_name(self.group, self.name, layer)

    def metrics(self, layer: str | None) -> tuple[str, ...]:
        """Return the name of the metric and, if there is one, that of the metric to read in its place."""
        instead = self.instead.get(layer or "")
        return (self.metric(layer), instead) if instead else (self.metric(layer),)

    @property
    def worst_end(self) -> Literal["min", "max"]:
        """The worst extreme by its name in wandb."""
        return "min" if self.worst == SMALLEST else "max"

    def matches(self, group: str, name: str) -> bool:
        """Return whether the row is of the metrics with this group and this last part."""
        return group == self.group and re.fullmatch(self.name, name) is not None
