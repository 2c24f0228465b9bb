"""The names of a run folder's files: spelled in one place, and rows of metrics.csv read and written by one module."""

import ast
import re
from pathlib import Path

import pytest

from lipformer.errors import WriteError
from lipformer.runs import layout
from lipformer.runs.metrics_csv import read_rows, read_table, write_rows
from lipformer.runs.plain_files import read_config, read_json, read_overrides
from lipformer.training.loggers.metrics_csv import MetricsCsv

PACKAGE = Path(layout.__file__).parents[1]
SPELLED = [value for name, value in vars(layout).items() if name.isupper() and isinstance(value, str)]
FILES = sorted({value for value in SPELLED if re.fullmatch(r"\w+\.\w+", value)})
NAMED = re.compile(rf"({'|'.join(map(re.escape, FILES))}|\b{layout.CHECKPOINTS}\b)(?!\.jinja)")


def named_in(source: str) -> list[str]:
    """The strings of a module, docstrings left out, that spell the name of a file."""
    tree = ast.parse(source)
    docs = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    strings = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [node.value for node in strings if node not in docs and NAMED.search(node.value)]


def test_no_other_module_spells_a_name():
    """Meanings of options are prose for --help, as docstrings are for readers."""
    spelled = {
        str(file.relative_to(PACKAGE)): named_in(file.read_text())
        for file in PACKAGE.rglob("*.py")
        if file.name != "layout.py" and file.parent.name != "options"
    }
    assert {file: names for file, names in spelled.items() if names} == {}


def test_a_spelled_name_is_found():
    assert len(FILES) > 12
    assert named_in('"""metrics.csv."""\nx = folder / "metrics.csv"') == ["metrics.csv"]
    assert named_in('f"{folder}/checkpoints/{name}"') == ["/checkpoints/"]
    assert named_in('page("report.html.jinja")') == []


def test_each_process_has_a_log_of_its_own():
    assert layout.log_file(layout.TRAIN) == "train.log"
    assert layout.log_file(layout.EVALUATE, 2) == "evaluate_rank2.log"


def test_the_run_folder_of_a_checkpoint(tmp_path):
    assert layout.run_folder_of(tmp_path / "checkpoints" / "best.ckpt") == tmp_path


def test_rows_are_read_as_they_were_written(tmp_path):
    file = tmp_path / "metrics.csv"
    rows = [{"epoch": "0", "step": "1", "a": "2.5"}, {"epoch": "0", "step": "2", "b": 'x,"y'}]
    write_rows(file, ["epoch", "step", "a", "b"], rows)
    assert read_rows(file) == [{"a": "", "b": "", **row} for row in rows]


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("step,a\n1,2\n2,3", ["1"]),  # a process was killed within the last line
        ("step,a\n1,2\n,3\n", ["1"]),
        ("step,a\n1,2\n2\n", ["1"]),
        ("step,a\n1,2\n2,3,4\n", ["1"]),
        ("step,a\n1,2\nx,3\n", ["1"]),
        ('step,a\n1,2\n2,"3\n3,4\n', ["1", "2", "3"]),  # a quote that is not closed
        ("a\n1\n", []),
        ("", []),
        ("step", []),
    ],
)
def test_whatever_state_the_rows_are_in(tmp_path, text, steps):
    file = tmp_path / "metrics.csv"
    file.write_text(text)
    assert [row["step"] for row in read_rows(file)] == steps


@pytest.mark.parametrize("name", ["a\nb", "a\r\nb", 'a"\nb', "a\x85b", "a\u2028b", "a\x0cb"])
def test_a_name_may_hold_line_breaks(tmp_path, name):
    file = tmp_path / "metrics.csv"
    write_rows(file, [name, "step"], [{name: "1.0", "step": "0"}, {"step": "1"}])
    assert read_rows(file) == [{name: "1.0", "step": "0"}, {name: "", "step": "1"}]


def test_a_row_of_such_a_name_outlives_a_new_metric(tmp_path):
    logger = MetricsCsv(tmp_path, name="", version="")
    for step, metrics in enumerate([{"a\nb": 1.0}, {"a\nb": 2.0, "c": 3.0}]):
        logger.log_metrics(metrics, step=step)
        logger.save()
    rows = read_rows(tmp_path / "metrics.csv")
    assert rows == [{"a\nb": "1.0", "c": "", "step": "0"}, {"a\nb": "2.0", "c": "3.0", "step": "1"}]


def test_there_may_be_no_file(tmp_path):
    assert read_table(tmp_path / "metrics.csv") == ([], [])
    assert read_rows(tmp_path / "metrics.csv") == []
    assert read_json(tmp_path / "status.json") is None
    assert read_config(tmp_path / "config.yaml") == {}
    assert read_overrides(tmp_path / "overrides.yaml") is None


def test_rows_that_cannot_be_written_name_the_file(tmp_path):
    (tmp_path / "metrics.csv").mkdir()
    with pytest.raises(WriteError, match=r"metrics\.csv"):
        write_rows(tmp_path / "metrics.csv", ["step"], [{"step": 1}])


def test_a_configuration_is_read_as_it_was_typed(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("lr: ${oc.env:HOME}\n1: 2\n")
    assert read_config(file) == {"lr": "${oc.env:HOME}", "1": 2}
    file.write_text("[1, 2]")
    assert read_config(file) == {}
    file.write_text("a: [")
    assert read_config(file) == {}


def test_overrides_that_are_no_text_are_left_out(tmp_path):
    file = tmp_path / "overrides.yaml"
    file.write_text("- lr=1\n- {a: 1}\n")
    assert read_overrides(file) == ["lr=1"]
