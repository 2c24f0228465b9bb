"""The table at the end of a training run."""

import io
import math

from rich.cells import cell_len
from rich.console import Console

from lipformer.tasks import LANGUAGE
from lipformer.training.summary import print_summary, summary_table

METRICS = {
    "best/val/nats_per_char": 3.0,
    "best/val/bits_per_char": LANGUAGE.derived[0].of(3.0),
    "val/nats_per_char": 3.1,
    "train/nats_per_char": 2.9,
    "parameters": 304818,
    "steps": 600,
    "tokens": 568870,
    "seconds": 4000.0,
    "tokens_per_second": 142.2,
    "stability/seconds": 100.0,
}
LATEST = {
    "stability/total/entropy_share": 0.5,
    "stability/blocks.0.attention.branch/entropy_share": 0.7,
    "stability/blocks.1.attention.branch/entropy_share": 0.3,
    "stability/head/gradient_norm": 0.2,
    "stability/blocks.0.attention/gradient_norm": 0.31,
    "stability/total/gradient_norm": 0.41,
    "certificate/trunk/mixed": math.inf,
    "stability/trunk/local_lipschitz": 12.3,
}


def rendered(table, width=100):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


def rows(table):
    return {what: str(value) for what, value in zip(*(column._cells for column in table.columns), strict=True)}


def test_summary_says_what_was_reached_and_how_stable_it_was():
    table = summary_table(METRICS, LATEST, LANGUAGE, "finished")
    assert rows(table) == {
        "status": "finished",
        "best valid": f"3.0000 nats/char = {LANGUAGE.derived[0].of(3.0):.4f} bits",
        "last valid": f"3.1000 nats/char = {LANGUAGE.derived[0].of(3.1):.4f} bits",
        "last train": f"2.9000 nats/char = {LANGUAGE.derived[0].of(2.9):.4f} bits",
        "steps": "600",
        "tokens": "568,870",
        "parameters": "304,818",
        "time": "1:06:40  142 tokens/s",
        "of it telemetry": "2.5%  100.0 s",
        "lowest attention entropy": "30.0% of log n  blocks.1.attention.branch",
        "gradient norm": "0.41",
        "largest of a layer": "0.31  blocks.0.attention",
        "trunk certificate, mixed": "inf",
        "trunk, measured": "12.3",
    }
    assert all(cell_len(line) <= 60 for line in rendered(table, 60).splitlines())


def test_summary_leaves_out_what_is_not_known():
    assert rows(summary_table({}, {}, LANGUAGE)) == {}
    bad = {name: value for name in METRICS for value in [None]} | {"steps": "many", "tokens": math.nan, "seconds": 0.0}
    assert rows(summary_table(bad, dict.fromkeys(LATEST, math.nan), LANGUAGE)) == {"time": "0:00:00"}
    wild = summary_table(dict.fromkeys(METRICS, math.inf), dict.fromkeys(LATEST, math.inf), LANGUAGE, "diverged")
    assert rows(wild)["best valid"] == "inf nats/char = inf bits"
    assert "time" not in rows(wild)
    assert rows(summary_table({"seconds": 3.0}, {}, LANGUAGE, "[bold]odd[/]"))["status"] == "[bold]odd[/]"
    assert "[bold]odd[/]" in rendered(summary_table({}, {}, LANGUAGE, "[bold]odd[/]"))


def test_summary_is_printed_unless_nothing_is_to_be_shown(monkeypatch, capsys):
    print_summary(METRICS, LATEST, LANGUAGE, "none")
    with monkeypatch.context() as patch:
        patch.setenv("LOCAL_RANK", "1")
        print_summary(METRICS, LATEST, LANGUAGE, "auto")
    assert capsys.readouterr().out == ""
    print_summary(METRICS, {"stability/" + "long" * 60 + "/gradient_norm": 1.0}, LANGUAGE, "auto")
    out = capsys.readouterr().out
    assert "long" * 60 in out, "not folded where there is no terminal"
