"""The catalogue of quantities: whole, the only place that knows their names, and read by everything that shows one."""

import ast
import csv
import re
from pathlib import Path

import pytest
from programs import ROOT, train, write_text

from lipformer.figures import compare_runs, draw_run
from lipformer.report.charts import draw_charts
from lipformer.report.heat_maps import draw_heat_maps
from lipformer.report.tables import runs_table
from lipformer.runs import quantities
from lipformer.runs.metric_names import BRANCH, TOTAL, kind_of, split_metric
from lipformer.runs.quantities import CATALOGUE, SECTIONS, by_section, find_quantity
from lipformer.runs.quantity import LARGEST, SMALLEST, Chart, Curve, Drawing, HeatMap, Quantity, Value
from lipformer.runs.record import read_record
from lipformer.tasks import LANGUAGE
from lipformer.telemetry import attention
from lipformer.training.callbacks import stability
from lipformer.training.loggers.wandb_run import extremes

OFTEN = ("callbacks=stability", "callbacks.stability.every_n_steps=1")
MADE_UP = Quantity(
    "made_up",
    "Made-up measure",
    layers=(BRANCH,),
    axis="made-up units",
    scale="linear",
    worst=SMALLEST,
    extreme_of="blocks.0.attention.branch",
    section="Attention",
    chart=Chart("a chart", Curve("least", SMALLEST), Curve("most", LARGEST)),
    heat_map=HeatMap("a heat map"),
    drawing=Drawing("map", "made-up panel", "made-up lines", map_title="made-up maps"),
    column=Value("made-up column", LARGEST),
    summary=(Value("made-up row", LARGEST, "{:.2f} made-up units"),),
    progress=Value("made-up line", SMALLEST, "{:.2f}"),
)


@pytest.fixture
def made_up(monkeypatch):
    """Add a quantity as a user of the project would: what telemetry returns, and a row of the catalogue."""
    before = attention.attention_statistics

    def attention_statistics(layer, x):
        found = before(layer, x)
        return found | {MADE_UP.name: found["entropy_share"] * 0 + 0.25} if found else found

    for module in (attention, stability):  # which one calls it is their affair
        if hasattr(module, "attention_statistics"):
            monkeypatch.setattr(module, "attention_statistics", attention_statistics)
    monkeypatch.setattr(quantities, "CATALOGUE", (*CATALOGUE, MADE_UP))


def header_of(run: Path) -> list[str]:
    with (run / "metrics.csv").open(newline="") as file:
        return next(csv.reader(file))


def titles_of(monkeypatch, draw) -> list[str]:
    """Return what the titles and colour bars of the panels say that `draw` draws."""
    found = []

    def read(figure, file):
        found.extend(axes.get_title(loc="left") for axes in figure.axes)
        found.extend(axes.get_xlabel() + axes.get_ylabel() for axes in figure.axes)
        return [file]

    for module in ("run", "comparison"):
        monkeypatch.setattr(f"lipformer.figures.{module}.save", read)
    draw()
    return found


def test_a_quantity_is_a_function_and_a_row(made_up, monkeypatch, tmp_path, capsys):
    run, text = tmp_path / "run", write_text(tmp_path / "text")
    options = (f"data.train={text}", f"hydra.run.dir={run}", "depth=2", "trainer.progress=plain", "trainer.report=true")
    assert train(monkeypatch, *OFTEN, *options) == 0
    told = capsys.readouterr().out
    assert "made-up line 0.25" in told
    assert re.search(r"made-up row +│ 0\.25 made-up units  blocks\.0\.attention\.branch", told)
    assert "stability/blocks.1.attention.branch/made_up" in header_of(run)
    page = (run / "report.html").read_text(encoding="utf-8")
    assert 'id="chart-made_up"' in page
    assert 'id="heat-made_up-0"' in page
    record = read_record(run)
    (chart,) = (chart for chart in draw_charts([record], ["run"]) if chart["key"] == "made_up")
    assert (chart["title"], chart["log"]) == ("Made-up measure", False)
    assert [curve["values"] for curve in chart["curves"]] == [[0.25] * 3] * 2
    (heat_map,) = (heat_map for heat_map in draw_heat_maps([record]) if heat_map["key"] == "made_up")
    assert heat_map["runs"][0]["layers"] == ["blocks.0.attention.branch", "blocks.1.attention.branch"]
    assert heat_map["keep"] == SMALLEST
    (column,) = (column for column in runs_table([record], ["run"]) if column.title == "made-up column")
    assert [cell.number for cell in column.cells] == [0.25]
    drawn = titles_of(monkeypatch, lambda: draw_run(record, tmp_path))
    drawn += titles_of(monkeypatch, lambda: compare_runs([record, record], tmp_path))
    for title in ("made-up panel", "made-up units", "made-up lines", "made-up maps"):
        assert any(title in found for found in drawn), title
    assert extremes(LANGUAGE)["stability/blocks.0.attention.branch/made_up"] == "min"


def test_a_quantity_has_a_panel_in_the_workspace(made_up):
    pytest.importorskip("wandb_workspaces", reason="needs the extra: pip install 'lipformer[workspace]'")
    from lipformer.studies.workspace import build_workspace

    (section,) = (section for section in build_workspace("us", "ours").sections if section.name == "Attention")
    (panel,) = (panel for panel in section.panels if panel.title == "Made-up measure, by layer")
    assert re.search(panel.metric_regex, "stability/blocks.11.attention.branch/made_up")


def test_the_catalogue_is_of_what_runs_return(monkeypatch, tmp_path):
    text, names = write_text(tmp_path / "text"), set()
    kinds = {
        "inverted": ("attention=contractive_l2_decoupled", "residual=invertible", "feedforward=contractive"),
        "penalised": ("attention=dot_product", "regularizer=jasmin"),
    }
    for name, options in kinds.items():
        run = tmp_path / name
        assert train(monkeypatch, *OFTEN, *options, f"data.train={text}", f"hydra.run.dir={run}") == 0
        names |= set(header_of(run))
    losses = {f"{group}/{measure.name}" for group in ("train", "val") for measure in LANGUAGE.measures}
    logged = {metric: split_metric(metric) for metric in names - losses - {"epoch", "step"}}
    rows = {
        metric: [row for row in CATALOGUE if row.matches(group, last) or metric in row.instead.values()]
        for metric, (group, _, last) in logged.items()
    }
    assert {metric for metric, found in rows.items() if len(found) != 1} == set(), "each has one row"
    for metric, (row,) in rows.items():
        layer = TOTAL if metric in row.instead.values() else logged[metric][1]
        assert (layer is None) == (not row.layers), metric
        assert layer is None or kind_of(layer) in row.layers, metric
    returned = {row.name for (row,) in rows.values()}
    assert {row.name for row in CATALOGUE if row.difference is None} - returned == set(), "each row is of some metric"
    for row in CATALOGUE:
        assert set(row.difference or ()) <= returned


def test_rows_are_of_one_another():
    assert len({row.name for row in CATALOGUE}) == len(CATALOGUE)
    assert {row.section for row in CATALOGUE} - {""} == set(SECTIONS)
    for row in CATALOGUE:
        curves = () if row.chart is None else (row.chart.curve, row.chart.pale)
        for curve in curves:
            assert curve is None or not curve.quantity or find_quantity(curve.quantity)
        assert row.drawing is None or row.drawing.kind not in ("curves", "bounds") or row.chart is not None
        assert row.chart is None or row.section, "charts stand in the order of the sections"
        assert row.progress is None or row.section
    with pytest.raises(KeyError):
        find_quantity("no such quantity")
    assert [row.section for row in by_section()] == sorted((row.section for row in by_section()), key=SECTIONS.index)


SOURCES = ("telemetry/", "training/callbacks/stability.py", "training/task_module.py", "runs/quantities.py")
"""Where the names of quantities stand: in the functions that return them, and in the catalogue."""
PREFIXES = ("stability/", "certificate/", "train/", "val/")


def strings_of(file: Path) -> list[str]:
    """Return all strings of a module but its docstrings, parts of f-strings too."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    exported = [
        node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    left_out = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    left_out |= {id(name) for node in exported for name in ast.walk(node.value)}
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in left_out]
    return [node.value for node in found if isinstance(node.value, str)]


def test_names_stand_nowhere_else():
    package = ROOT / "lipformer"
    names = {row.name for row in CATALOGUE if not row.is_pattern} - {"lr", "regularizer", "tokens"}  # also options
    for file in package.rglob("*.py"):
        place, strings = file.relative_to(package).as_posix(), strings_of(file)
        assert not [s for s in strings if s.startswith(PREFIXES)], place
        assert place.startswith(SOURCES) or not [s for s in strings if s in names], place
