"""The wandb workspace: its panels draw what a run logs, and the real package saves it on a server of our own."""

import json
import re
import sys

import pytest
from programs import ROOT, train, write_text
from wandb_account import no_account, server_of_our_own  # noqa: F401

from lipformer.errors import LipformerError, UsageError
from lipformer.program import cli
from lipformer.studies.workspace import WorkspaceStudy, build_workspace

pytest.importorskip("wandb_workspaces", reason="needs the extra: pip install 'lipformer[workspace]'")

SECTIONS = [
    "Learning",
    "Optimisation",
    "Attention",
    "Ranges",
    "Lipschitz",
    "Invertibility",
    "Samples",
    "System",
]
NOT_OF_THIS_RUN = {"train/regularizer"}


def spec_of(workspace):
    """What is sent to the service."""
    return json.loads(workspace._to_model().spec.model_dump_json(by_alias=True, exclude_none=True))["section"]


def sections_of(spec):
    return {section["name"]: section["panels"] for section in spec["panelBankConfig"]["sections"]}


def save(folder, entity="us", project="ours"):
    WorkspaceStudy(project=project, entity=entity).run(None, folder)


@pytest.fixture(scope="module")
def spec():
    return spec_of(build_workspace("us", "ours"))


def test_sections(spec):
    sections = sections_of(spec)
    assert list(sections) == SECTIONS
    assert all(sections.values())
    assert [p["viewType"] for p in sections["Samples"]] == ["Weave", "Media Browser"]
    assert "samples" in json.dumps(sections["Samples"][0])
    assert spec["settings"]["xAxis"] == "train/tokens"
    assert spec["settings"]["shouldAutoGeneratePanels"] is False


def test_curves_are_drawn_over_tokens_and_the_machine_over_time(spec):
    for name, panels in sections_of(spec).items():
        lines = [panel["config"] for panel in panels if panel["viewType"] == "Run History Line Plot"]
        assert {config["xAxis"] for config in lines} <= {"_runtime" if name == "System" else "train/tokens"}
        assert all(config["chartTitle"] for config in lines)
        assert all(config.get("metricRegex") or config["metrics"] for config in lines)


def test_constants_are_drawn_over_many_orders_of_magnitude(spec):
    assert all(panel["config"]["yLogScale"] for panel in sections_of(spec)["Lipschitz"])


def test_every_curve_finds_its_metrics_in_a_run(spec, monkeypatch, tmp_path):
    run = tmp_path / "run"
    options = (
        "callbacks=stability",
        "attention=contractive_l2_decoupled",
        "residual=invertible",
        "feedforward=contractive",
        "trainer.report=true",
    )
    often = ("callbacks.stability.every_n_steps=1", "callbacks.stability.expensive_every_n_steps=1")
    text = write_text(tmp_path / "text")
    assert train(monkeypatch, f"data.train={text}", f"hydra.run.dir={run}", *options, *often) == 0
    logged = set((run / "metrics.csv").read_text().splitlines()[0].split(","))
    for name, panels in sections_of(spec).items():
        for config in (panel["config"] for panel in panels if panel["viewType"] == "Run History Line Plot"):
            if name != "System":
                found = [metric for metric in logged if re.search(config.get("metricRegex", "(?!)"), metric)]
                found += logged.intersection(config.get("metrics", []))
                assert found or NOT_OF_THIS_RUN.issuperset(config["metrics"]), config["chartTitle"]
    assert {path.stem for path in run.glob("figures/*.png")} == {
        key.removeprefix("figures/") for key in sections_of(spec)["Samples"][1]["config"]["mediaKeys"]
    }


def test_a_regex_takes_one_quantity_of_all_layers(spec):
    configs = {panel["config"]["chartTitle"]: panel["config"] for panel in sections_of(spec)["Attention"]}
    of = re.compile(configs["Attention entropy, by layer"]["metricRegex"])
    assert of.search("stability/blocks.11.attention.branch/entropy_share")
    assert not of.search("stability/blocks.11.attention.branch/entropy_share_lowest_head")
    assert not of.search("val/entropy_share")


def test_the_documentation_says_how_to_make_each_panel_by_hand(spec):
    text = (ROOT / "docs" / "wandb.md").read_text().replace("\\|", "|")
    for name, panels in sections_of(spec).items():
        for config in (panel["config"] for panel in panels if "chartTitle" in panel["config"]):
            (row,) = (line for line in text.splitlines() if line.startswith(f"| {name} | {config['chartTitle']}"))
            drawn = config.get("mediaKeys") or config.get("metrics") or [config["metricRegex"]]
            assert all(f"`{metric}`" in row for metric in drawn)
            assert ("log" in row.split("|")[-2]) == bool(config.get("yLogScale"))


# --- saved -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entity", ["us", None])
def test_saved(server, tmp_path, entity, spec):
    save(tmp_path, entity)
    (view,) = server.views
    assert (view["entityName"], view["projectName"], view["type"]) == ("us", "ours", "project-view")
    assert view["displayName"] == "lipformer: stability"
    assert without_ids(json.loads(view["spec"])["section"]) == without_ids(spec)
    note = json.loads((tmp_path / "workspace.json").read_text())
    assert note["url"].startswith(f"{server.address}/us/ours?nw=")


def without_ids(content):
    """Panels have names of chance."""
    if isinstance(content, dict):
        return {key: without_ids(value) for key, value in content.items() if key not in ("__id__", "id")}
    return [without_ids(item) for item in content] if isinstance(content, list) else content


def test_the_program_says_where_it_is(server, monkeypatch, tmp_path, capsys):
    arguments = ["evaluate.py", "study=workspace", "study.project=ours", f"hydra.run.dir={tmp_path / 'evaluation'}"]
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.setenv(cli.FULL_ERROR, "0")
    with pytest.raises(SystemExit) as exit_:
        cli.evaluate()
    assert exit_.value.code == 0
    assert f"workspace: {server.address}/us/ours?nw=" in capsys.readouterr().out
    assert len(server.views) == 1


# --- faults ----------------------------------------------------------------------------------------------------


def test_no_key(server, monkeypatch, tmp_path):
    monkeypatch.delenv("WANDB_API_KEY")
    with pytest.raises(UsageError, match=r"^study=workspace: no API key; run `wandb login`$"):
        save(tmp_path)
    assert server.asked == []


def test_the_extra_is_not_installed(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb_workspaces.workspaces", None)
    with pytest.raises(UsageError, match=r"^study=workspace: not installed; pip install 'lipformer\[workspace\]'$"):
        save(tmp_path)


def test_an_account_without_a_default_entity(server, tmp_path):
    server.default_entity = None
    with pytest.raises(UsageError, match=r"no default entity; set study\.entity="):
        save(tmp_path, entity=None)


@pytest.mark.parametrize(
    ("faults", "entity"),
    [({}, "them"), ({"UpsertView2": 403}, "us"), ({"Viewer": 401}, "us"), ({"GetDefaultEntity": 401}, None)],
)
def test_the_service_refuses(server, tmp_path, faults, entity):
    server.faults.update(faults)
    with pytest.raises(LipformerError, match=r"^study=workspace: wandb did not take it: .*; check the key") as error:
        save(tmp_path, entity)
    assert "\n" not in str(error.value)
    assert list(tmp_path.glob("workspace.json")) == []


@pytest.mark.parametrize("fault", [None, 500])
def test_the_service_does_not_answer(server, monkeypatch, tmp_path, fault):
    monkeypatch.setattr("wandb.Api._HTTP_TIMEOUT", 1)  # seconds; what $WANDB_HTTP_TIMEOUT says
    server.faults["*"] = fault
    with pytest.raises(LipformerError, match=r"^study=workspace: wandb did not take it: .*check .*the network"):
        save(tmp_path)
