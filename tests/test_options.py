"""An option is stated once: its default, range and meaning are the same on the command line and from Python."""

import functools
import importlib
import inspect
import json
import math
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from lipformer.config import conf_dir, register, to_plain, validate
from lipformer.config.store import SCHEMAS
from lipformer.errors import UsageError
from lipformer.options import REQUIRED, Options
from lipformer.options.checks import norm_name, number, one_of, or_null
from lipformer.training.old_configs import CLASS_KEYS, KEYS

STATED_THEN = json.loads((Path(__file__).parent / "old_runs" / "options.json").read_text())
GROUPS = ("attention",)
FILES = [(group, file.stem) for group in GROUPS for file in sorted((conf_dir() / group).glob("*.yaml"))]
KINDS = sorted({schema for schema in SCHEMAS.values() if issubclass(schema, Options)}, key=lambda kind: kind.__name__)
HAND_BUILT = {
    "attention": lambda make, **options: make(8, 2, context=6, **options),
}
"""How a part of each group is made by hand, from its class and some of its options."""
WRONG = (-1, -1.0, 0, 0.0, 1.0, 2.0, math.nan, math.inf, "nonsense", True)


@functools.cache
def composed(*overrides: str) -> DictConfig:
    """The configuration, made once; whoever alters it takes a copy."""
    register()
    with initialize_config_dir(str(conf_dir().resolve()), version_base="1.3"):
        return compose("train", list(overrides))


def chosen(group: str, choice: str) -> list[tuple[str, DictConfig]]:
    """The nodes of a choice, by their keys: one, or as many as the group has names."""
    config = composed(f"{group}={choice}", *(["data.train=some.txt"] if choice == "text_files" else []))
    node = config[group]
    if issubclass(OmegaConf.get_type(node), Options):
        return [(group, node)]
    return [(f"{group}.{name}", node[name]) for name in node]


def located(target: str) -> object:
    module, _, name = target.rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize(("group", "choice"), FILES)
def test_a_file_states_only_what_differs(group, choice):
    stated = yaml.safe_load((conf_dir() / group / f"{choice}.yaml").read_text())
    for key, node in chosen(group, choice):
        values = stated if key == group else stated.get(key.partition(".")[2], {})
        defaults = OmegaConf.get_type(node).defaults()
        for name, value in values.items():
            if not name.startswith("_") and name != "defaults":
                assert value != defaults[name], f"{key}.{name}={value} is the default"


@pytest.mark.parametrize(("group", "choice"), FILES)
def test_the_constructor_has_the_same_defaults(group, choice):
    for key, node in chosen(group, choice):
        target = located(node._target_)
        schema = OmegaConf.get_type(node)
        parameters = inspect.signature(target).parameters
        for name, default in schema.defaults().items():
            assert name in parameters, f"{node._target_} does not take {key}.{name}"
            if default != REQUIRED:
                assert parameters[name].default == default, f"{key}.{name}"


@pytest.mark.parametrize(("group", "choice"), FILES)
def test_every_option_is_listed_and_is_the_default_unless_stated(group, choice):
    stated = yaml.safe_load((conf_dir() / group / f"{choice}.yaml").read_text())
    for key, node in chosen(group, choice):
        values = stated if key == group else stated.get(key.partition(".")[2], {})
        shown = OmegaConf.to_container(node, resolve=False)
        expected = {**OmegaConf.get_type(node).defaults(), **values}
        assert list(shown) == ["_target_", *OmegaConf.get_type(node).defaults()]
        assert shown == {name: expected[name] for name in shown}


@pytest.mark.parametrize(("group", "choice"), [file for file in FILES if file[0] in HAND_BUILT])
def test_a_range_is_refused_in_both_ways_in_the_same_words(group, choice):
    config = composed(f"{group}={choice}")
    schema, make = OmegaConf.get_type(config[group]), located(config[group]._target_)
    for option in schema.stated():
        check = option.metadata["check"]
        refused = [value for value in WRONG if check is not None and not check(value)]
        assert check is None or refused, f"{option.name}: nothing is out of range"
        for value in refused:
            with pytest.raises(ValueError, match=option.name) as by_hand:
                HAND_BUILT[group](make, **{option.name: value})
            altered = config.copy()
            try:
                altered[group][option.name] = value
            except Exception:  # of another type: Hydra says so
                continue
            value = altered[group][option.name]
            with pytest.raises(UsageError) as typed:
                validate(altered)
            assert str(typed.value) == f"{group}.{option.name}={value}: it must be {check.wanted}"
            assert str(by_hand.value).partition(": ")[2] in (f"it must be {check.wanted}", "it must be a whole number")


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
    nodes = [node for file in FILES for _, node in chosen(*file) if node._target_ == target]
    for node in nodes:
        new = set(OmegaConf.get_type(node).defaults()) - set(STATED_THEN[target])
        assert new <= set(CLASS_KEYS.get(target, {})) | set(KEYS.get(target, {})), f"{target}: {new}"


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
