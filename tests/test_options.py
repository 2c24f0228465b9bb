"""An option is stated once: its default, range and meaning are the same on the command line and from Python."""

import functools
import importlib
import inspect
import json
import math
import re
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from programs import train
from torch import nn

from lipformer.assembly.build import LOADER_KEYS
from lipformer.assembly.old_configs import CLASS_KEYS, KEYS, as_written_today
from lipformer.config import conf_dir, moved, register, to_plain, validate
from lipformer.config.store import SCHEMAS
from lipformer.config.targets import factory, locate
from lipformer.data.builtin import Builtin
from lipformer.data.datamodule import CharDataModule
from lipformer.errors import DataError, UsageError
from lipformer.modules.normalisations import NoNorm
from lipformer.options import REQUIRED, Options
from lipformer.options.checks import norm_name, number, one_of, or_null
from lipformer.options.data import DataOptions
from lipformer.training.schedules import cosine

STATED_THEN = json.loads((Path(__file__).parent / "old_runs" / "options.json").read_text())
GROUPS = sorted(folder.name for folder in conf_dir().iterdir() if folder.name not in ("experiment", "study"))
FILES = [(group, file.stem) for group in GROUPS for file in sorted((conf_dir() / group).glob("*.yaml"))]
KINDS = sorted({schema for schema in SCHEMAS.values() if issubclass(schema, Options)}, key=lambda kind: kind.__name__)
HAND_BUILT = {
    "attention": lambda make, **options: make(8, 2, context=6, **options),
    "norm": lambda make, **options: make(8, **options),
    "residual": lambda make, **options: make(nn.Identity(), NoNorm, 8, **options),
    "feedforward": lambda make, **options: make(8, **options),
    "embedding": lambda make, **options: make(10, 8, **options),
    "schedule": lambda make, **options: make(0, **{**({"total_steps": 1} if make is cosine else {}), **options}),
    "regularizer": lambda make, **options: make(None, None, **options),
    "callbacks": lambda make, **options: make(**options),
    "logger": lambda make, **options: make(folder=None, config={}, **options),
    "data": lambda make, **options: (
        CharDataModule(Builtin(), context=8, seed=0, **options)
        if set(options) <= set(DataOptions.defaults())
        else make(train="some.txt", **options)
    ),
}
"""How a part of each group is made by hand, from its class and some of its options; torch makes the optimizers."""
WRONG = (-1, -1.0, 0, 0.0, 1.0, 2.0, math.nan, math.inf, "nonsense", True)


@functools.cache
def composed(*overrides: str) -> DictConfig:
    """The configuration, made once; whoever alters it takes a copy."""
    register()
    with initialize_config_dir(str(conf_dir().resolve()), version_base="1.3"):
        return compose("train", list(overrides))


def needed(choice: str) -> list[str]:
    """What a choice does not work without."""
    return ["data.train=some.txt"] if choice == "text_files" else []


def chosen(group: str, choice: str) -> list[tuple[str, DictConfig]]:
    """The nodes of a choice, by their keys: one, or as many as the group has names."""
    config = composed(f"{group}={choice}", *needed(choice))
    node = config[group]
    if issubclass(OmegaConf.get_type(node), Options):
        return [(group, node)]
    return [(f"{group}.{name}", node[name]) for name in node]


def stated_in(group: str, choice: str, key: str) -> dict:
    """What the file of a choice says of one of its nodes."""
    stated = OmegaConf.load(conf_dir() / group / f"{choice}.yaml")
    node = stated if key == group else stated.get(key.partition(".")[2], {})
    return {name: node._get_node(name)._value() for name in node if name not in ("defaults", "_target_")}


def located(target: str) -> object:
    module, _, name = target.rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize(("group", "choice"), FILES)
def test_a_file_states_only_what_differs(group, choice):
    for key, node in chosen(group, choice):
        values = stated_in(group, choice, key)
        defaults = OmegaConf.get_type(node).defaults()
        for name, value in values.items():
            assert value != defaults[name], f"{key}.{name}={value} is the default"


@pytest.mark.parametrize(("group", "choice"), FILES)
def test_the_constructor_has_the_same_defaults(group, choice):
    for key, node in chosen(group, choice):
        if "_target_" not in node or node._target_.startswith("torch."):
            continue
        defaults = OmegaConf.get_type(node).defaults()
        others = {"data": LOADER_KEYS, "model": ("reads",)}.get(group, ())  # taken by whoever builds the part
        own = {name: default for name, default in defaults.items() if name not in others}
        makers = [(located(node._target_), own)]
        if group == "data":
            makers.append((CharDataModule, {name: defaults[name] for name in LOADER_KEYS}))
        for make, options in makers:
            parameters = inspect.signature(make).parameters
            for name, default in options.items():
                assert name in parameters, f"{make} does not take {key}.{name}"
                expected = inspect.Parameter.empty if default == REQUIRED else default
                assert parameters[name].default == expected, f"{key}.{name}"


@pytest.mark.parametrize(("group", "choice"), FILES)
def test_every_option_is_listed_and_is_the_default_unless_stated(group, choice):
    for key, node in chosen(group, choice):
        values = stated_in(group, choice, key)
        shown = OmegaConf.to_container(node, resolve=False)
        expected = {**OmegaConf.get_type(node).defaults(), **values}
        assert [name for name in shown if name != "_target_"] == list(OmegaConf.get_type(node).defaults())
        for name, value in shown.items():
            given = expected.get(name, REQUIRED)
            if given != REQUIRED and (group != "trainer" or choice == "auto"):  # the others begin with auto
                assert value == (list(given) if isinstance(given, tuple) else given), f"{key}.{name}"


@pytest.mark.parametrize(("group", "choice"), [file for file in FILES if file[0] in HAND_BUILT])
def test_a_range_is_refused_in_both_ways_in_the_same_words(group, choice):
    for key, node in chosen(group, choice):
        make = located(node._target_)
        for option in OmegaConf.get_type(node).stated():
            check = option.metadata["check"]
            refused = [value for value in WRONG if check is not None and not check(value)]
            assert check is None or refused, f"{key}.{option.name}: nothing is out of range"
            for value in refused:
                with pytest.raises((ValueError, DataError)) as by_hand:
                    HAND_BUILT[group](make, **{option.name: value})
                wanted = (f"it must be {check.wanted}", "it must be a whole number")
                assert str(by_hand.value).removeprefix("data.").startswith(f"{option.name}={value}: "), key
                assert str(by_hand.value).partition(": ")[2] in wanted
                assert refused_when_typed(group, choice, key, option.name, value) in (None, *wanted)


def refused_when_typed(group: str, choice: str, key: str, name: str, value: object) -> str | None:
    """What is wanted in place of a value on the command line; None where Hydra itself refuses its type."""
    config = OmegaConf.merge(composed(f"{group}={choice}", *needed(choice)))
    try:
        OmegaConf.update(config, f"{key}.{name}", value)
    except Exception:
        return None
    with pytest.raises(UsageError) as typed:
        validate(config)
    named, _, wanted = str(typed.value).partition(": ")
    assert named == f"{key}.{name}={OmegaConf.select(config, f'{key}.{name}')}"
    return wanted


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_option_has_a_meaning(kind):
    for option in kind.stated():
        meaning = option.metadata["meaning"]
        assert 3 < len(meaning) <= 110, option.name
        assert not meaning.endswith("."), option.name
    assert list(kind.meanings()) == list(kind.defaults()) == [option.name for option in kind.stated()]


def test_the_dataclass_refuses_what_its_defaults_are_not():
    for kind in KINDS:
        kind.check(**{name: value for name, value in kind.defaults().items() if value != REQUIRED})


def test_checks_say_what_they_want():
    share = number(above=0, at_most=1)
    assert share.wanted == "above 0 and at most 1"
    assert [share(value) for value in (0, 1e-9, 1, 1.1, math.nan, "1", None, True)] == [0, 1, 1, 0, 0, 0, 0, 0]
    assert not number()(math.inf)
    assert number(at_least=0)(0)
    assert or_null(number(at_least=1), "for all").wanted == "at least 1, or null for all"
    assert or_null(number(at_least=1))(None)
    assert one_of("a", "b").wanted == "one of a, b"
    assert not one_of("a")(["a"])
    assert [norm_name()(value) for value in ("mixed", 2, math.inf, "inf", True, 3, "2")] == [1, 1, 1, 1, 0, 0, 0]


def test_an_option_of_whole_numbers_refuses_others():
    from lipformer.options.attention import TiedL2Options

    for value in (1.5, 2.0, True, "2"):
        with pytest.raises(ValueError, match=f"columns={value}: it must be a whole number"):
            TiedL2Options.check(columns=value)


def test_a_refusal_names_the_scalar_that_was_typed():
    with pytest.raises(UsageError, match=r"^lr=0\.0: it must be above 0"):
        validate(composed("lr=0"))


@pytest.mark.parametrize("target", STATED_THEN)
def test_an_option_that_is_new_stands_in_the_table_of_old_configurations(target):
    """A stored configuration lacks it, and the run keeps the value of then."""
    today = moved.target_today(target)
    nodes = [node for file in FILES for key, node in chosen(*file) if node.get("_target_", key) == today]
    assert nodes, f"{target} has gone: where to, config/moved.py has to say"
    for node in nodes:
        new = set(OmegaConf.get_type(node).defaults()) - set(STATED_THEN[target])
        tables = (CLASS_KEYS.get(today, {}), KEYS.get(today, {}), moved.OPTIONS.get(today, {}).values())
        assert new <= set().union(*tables), f"{target}: {new}"


MOVED_TARGETS = {
    "lipformer.model.CharTransformer": "lipformer.models.transformer.CharTransformer",
    "lipformer.lstm.CharLSTM": "lipformer.models.lstm.CharLSTM",
    "lipformer.modules.norms.ActNorm": "lipformer.modules.normalisations.ActNorm",
    "lipformer.sweep_report.SweepReport": "lipformer.program.sweep_report.SweepReport",
    "lipformer.training.loggers.wandb_logger": "lipformer.training.loggers.choices.wandb_logger",
    "lipformer.training.metrics.Average": "lipformer.telemetry.objective.Average",
}


@pytest.mark.parametrize(("then", "today"), MOVED_TARGETS.items())
def test_a_place_that_has_moved_is_answered_with_the_new_one(then, today):
    assert callable(locate(today, "group"))
    with pytest.raises(UsageError, match=rf"^group\._target_={re.escape(then)}: it has moved to {re.escape(today)}$"):
        locate(then, "group")


def test_a_place_that_has_not_moved_is_left_alone():
    assert moved.target_today("my_package.model.Mine") == "my_package.model.Mine"
    with pytest.raises(UsageError, match="No module named"):
        locate("lipformer.nowhere.Mine", "group")


@pytest.mark.parametrize("module", moved.MODULES.values())
def test_where_a_module_has_moved_to_there_is_one(module):
    importlib.import_module(module)


def test_an_option_with_a_new_name_is_answered_with_it_in_a_file_too():
    node = {"_target_": "lipformer.training.callbacks.stability.StabilityMonitor", "dear_every_n_steps": 3}
    with pytest.raises(
        UsageError, match=r"^callbacks\.mine\.dear_every_n_steps: it is written expensive_every_n_steps now$"
    ):
        factory(node, "callbacks.mine")


def test_a_schema_with_a_new_name_is_answered_with_it(tmp_path, monkeypatch, capsys):
    (tmp_path / "attention").mkdir()
    text = "defaults: [/schema/attention/contractive_factors@_here_]\n_target_: my_package.Mine\n"
    (tmp_path / "attention" / "mine.yaml").write_text(text)
    assert train(monkeypatch, f"--config-dir={tmp_path}", "attention=mine") == 2
    line = "error: /schema/attention/contractive_factors: the schema is named /schema/attention/factored_l2 now\n"
    assert capsys.readouterr().err == line


def test_a_stored_configuration_lists_every_option():
    plain = to_plain(composed("attention=contractive_l2"))
    assert plain["attention"] == {
        "_target_": "lipformer.modules.attention.ContractiveL2Attention",
        "fused": True,
        "columns": 1,
        "locality": None,
        "p": "mixed",
        "scale": 0.97,
    }


def test_help_shows_every_option_with_its_meaning():
    from lipformer.config.listing import list_options

    shown = list_options(composed("attention=cosine")).splitlines()
    (eps,) = [line for line in shown if line.startswith("  eps:") and "inverse root" in line]
    assert eps.split("#")[0].strip() == "eps: 0.001"
    assert "[above 0]" in eps
    assert "max_length: $${context}" in "\n".join(shown)  # a $ of its own in Hydra's template


def test_help_of_evaluate_says_what_each_key_means():
    from lipformer.config.listing import list_options

    register()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        shown = list_options(compose("evaluate")).splitlines()
    own = (
        "study:",
        "sweep:",
        "  _target_:",
        "generate:",
        *(f"  {key}:" for key in ("dir", "train", "valid", "test", "unknown")),
    )
    assert [line for line in shown if "  # " not in line and not line.startswith(own)] == []
    assert any(line.startswith("data:") and "null: as it was trained with" in line for line in shown)


def test_partial_of_a_file_of_ones_own_or_of_an_older_checkpoint_is_left_out(tmp_path):
    (tmp_path / "attention").mkdir()
    target = "lipformer.modules.attention.TiedL2Attention"
    (tmp_path / "attention" / "mine.yaml").write_text(f"_target_: {target}\n_partial_: true\ncolumns: 2\n")
    config = composed(f"hydra.searchpath=[file://{tmp_path}]", "attention=mine")
    validate(config)
    assert to_plain(config)["attention"] == {"_target_": target, "columns": 2}
    stored = {"attention": {"_target_": target, "_partial_": True, "columns": 2}, "linear": {"_partial_": True}}
    assert as_written_today(stored)["attention"] == {"_target_": target, "columns": 2}
    assert as_written_today(stored)["linear"] == {}
