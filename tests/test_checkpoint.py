import copy
import functools
import os
import pathlib
import pickle
import shutil
import sys

import pytest
import torch
from torch import nn

import lipformer
from lipformer.assembly.build import check_targets
from lipformer.assembly.checkpoint import find_checkpoint, load_run, read_checkpoint
from lipformer.errors import CheckpointError


class Code:
    """Pickles to a call of a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.fixture
def contents(tiny_run):
    """The contents of a good checkpoint, to be altered."""
    return torch.load(tiny_run / "checkpoints" / "best.ckpt", weights_only=True)


@pytest.fixture
def refused(tmp_path):
    """Save altered contents (or write bytes), load them, and return the one line of the error."""

    def load(contents, **options):
        path = tmp_path / "bad.ckpt"
        if isinstance(contents, bytes):
            path.write_bytes(contents)
        else:
            torch.save(contents, path)
        before = path.read_bytes()
        with pytest.raises(CheckpointError) as error:
            load_run(path, **options)
        message = str(error.value)
        assert "\n" not in message
        assert str(path) in message
        assert path.read_bytes() == before
        return message

    return load


# --- good checkpoints --------------------------------------------------------------------------------------------


def test_a_run_is_rebuilt_from_its_checkpoint_alone(tiny_run, tmp_path):
    moved = shutil.copy(tiny_run / "checkpoints" / "best.ckpt", tmp_path / "moved.ckpt")
    run = lipformer.load_run(moved)
    assert not run.model.training
    assert run.path == tmp_path / "moved.ckpt"
    assert run.step == 3
    assert run.config["width"] == 16
    assert run.vocabulary.encode("the cat")
    ids = torch.tensor([[run.vocabulary.end_id, *run.vocabulary.encode("the cat")]])
    assert run.model(ids).shape == (1, 8, len(run.vocabulary))


def test_a_checkpoint_holds_plain_containers_only(contents):
    def check(node):
        assert type(node) in (dict, list, tuple, str, int, float, bool, type(None)), type(node)
        for child in node.items() if isinstance(node, dict) else node if isinstance(node, (list, tuple)) else ():
            check(child)

    check(contents["lipformer"])
    assert contents["lipformer"]["versions"].keys() >= {"lipformer", "torch", "python"}


def test_find_checkpoint_takes_a_file_or_a_run_folder(tiny_run):
    best, last = (tiny_run / "checkpoints" / f"{name}.ckpt" for name in ("best", "last"))
    assert find_checkpoint(tiny_run) == find_checkpoint(str(tiny_run), "best") == find_checkpoint(best) == best
    assert find_checkpoint(tiny_run, "last") == last
    assert find_checkpoint(best, "last") == best


def test_a_run_without_validation_gives_its_last_checkpoint(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    last = tmp_path / "checkpoints" / "last.ckpt"
    torch.save({}, last)
    assert find_checkpoint(tmp_path, "best") == last


def folder_of(tmp_path, **files):
    """Make a run folder with checkpoints that are whole, or cut off."""
    (tmp_path / "checkpoints").mkdir()
    for name, whole in files.items():
        file = tmp_path / "checkpoints" / f"{name}.ckpt"
        torch.save({"name": name, "x": torch.zeros(1000)}, file)
        if not whole:
            file.write_bytes(file.read_bytes()[:-100])
    return tmp_path


@pytest.mark.parametrize(("last", "word"), [({"last": False}, "damaged"), ({}, "missing")])
@pytest.mark.parametrize("which", ["best", "last"])
def test_the_one_before_the_last_is_taken_where_the_last_is_not_whole(tmp_path, caplog, which, last, word):
    folder = folder_of(tmp_path, **last, previous=True)
    previous = folder / "checkpoints" / "previous.ckpt"
    assert find_checkpoint(folder, which) == previous
    assert caplog.messages == [f"{folder / 'checkpoints' / 'last.ckpt'} is {word}: taking {previous}"]


def test_a_whole_last_is_taken_without_a_word(tmp_path, caplog):
    folder = folder_of(tmp_path, last=True, previous=True)
    assert find_checkpoint(folder, "last") == folder / "checkpoints" / "last.ckpt"
    assert not caplog.messages


@pytest.mark.parametrize(
    ("files", "which", "expected"),
    [
        ({"best": False, "last": True, "previous": True}, "best", ("best.ckpt: not a whole", "last.ckpt and previous")),
        ({"best": False, "last": False, "previous": True}, "best", ("best.ckpt: not a whole", "still previous.ckpt:")),
        ({"best": True, "last": False, "previous": False}, "last", ("last.ckpt: not a whole", "still best.ckpt: give")),
        ({"best": False}, "best", ("best.ckpt: not a whole checkpoint", "no other one is left")),
    ],
)
def test_a_damaged_checkpoint_is_named_with_those_that_are_left(tmp_path, files, which, expected):
    with pytest.raises(CheckpointError) as raised:
        find_checkpoint(folder_of(tmp_path, **files), which)
    assert all(part in str(raised.value) for part in expected), raised.value


# --- nothing there -----------------------------------------------------------------------------------------------


def test_missing_path(tmp_path):
    with pytest.raises(CheckpointError, match=r"^resume=nowhere: no such file or folder"):
        find_checkpoint("nowhere", "last", key="resume")
    with pytest.raises(CheckpointError, match=r"checkpoint=\S+nowhere: no such file or folder"):
        load_run(tmp_path / "nowhere")


@pytest.mark.parametrize(("which", "wanted"), [("best", "best.ckpt or checkpoints/last.ckpt"), ("last", "last.ckpt")])
def test_folder_without_checkpoints(tmp_path, which, wanted):
    with pytest.raises(CheckpointError, match=f"holds no checkpoints/{wanted}; give a run folder or a .ckpt file"):
        load_run(tmp_path, which=which)


def test_addresses_are_not_loaded():
    with pytest.raises(CheckpointError, match="addresses are not loaded; download the file"):
        load_run("https://example.org/best.ckpt")


# --- damaged and foreign files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 4, 100, 0.5, 0.99])
def test_truncated(tiny_run, refused, size):
    whole = (tiny_run / "checkpoints" / "best.ckpt").read_bytes()
    assert "truncated" in refused(whole[: size if isinstance(size, int) else int(size * len(whole))])


def test_bytes_that_changed_within_are_found(tiny_run, refused):
    """torch itself would load these weights."""
    damaged = bytearray((tiny_run / "checkpoints" / "best.ckpt").read_bytes())
    weights = torch.load(tiny_run / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
    place = damaged.find(weights["model.embedding.weight"].numpy().tobytes())
    assert place > 0
    damaged[place] ^= 1
    assert "not a whole checkpoint" in refused(bytes(damaged))


def test_where_bytes_of_the_last_changed_the_one_before_is_taken(tmp_path):
    folder = folder_of(tmp_path, last=True, previous=True)
    last = folder / "checkpoints" / "last.ckpt"
    damaged = bytearray(last.read_bytes())
    damaged[damaged.find(bytes(1000)) + 500] = 1
    last.write_bytes(damaged)
    assert find_checkpoint(folder, "last").name == "previous.ckpt"


@pytest.mark.parametrize(
    "text", [b"", b"\n", b"hello", b"a\n", b"depth: 4\n", b"PK\x03\x04", "Füße".encode(), b"\x80\x02."]
)
def test_another_kind_of_file(refused, text):
    assert "not a whole checkpoint" in refused(text)


def test_unreadable_file(tiny_run, monkeypatch):
    def deny(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("lipformer.assembly.archive.open_regular", deny)
    with pytest.raises(CheckpointError, match=r"best.ckpt: Permission denied; make the file readable"):
        load_run(tiny_run)


@pytest.mark.parametrize(
    ("contents", "named"),
    [
        (Code(os.system, "touch executed"), "system"),
        (Code(exec, "open('executed', 'w')"), "exec"),
        (nn.Linear(2, 2), "torch.nn.modules.linear.Linear"),
        (functools.partial(print), "functools.partial"),
        ({"path": pathlib.PurePosixPath("x")}, "PurePosixPath"),
    ],
    ids=["os.system", "exec", "whole module", "partial", "path"],
)
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_code_is_neither_run_nor_loaded(refused, tmp_path, monkeypatch, contents, named):
    monkeypatch.chdir(tmp_path)
    for protocol in (2, 4):
        assert "not a whole checkpoint" in refused(pickle.dumps(contents, protocol=protocol))
    message = refused(contents)
    assert "holds code" in message
    assert named in message
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("foreign", [{"state_dict": {}}, {"weight": torch.zeros(2)}, [1, 2], {"lipformer": "no"}, 7])
def test_foreign_checkpoint(refused, foreign):
    assert "not a checkpoint of lipformer" in refused(foreign)


def test_another_format(contents, refused):
    contents["lipformer"]["format"] = 99
    assert "format 99; this version of lipformer reads format 1" in refused(contents)


# --- altered contents --------------------------------------------------------------------------------------------


def test_wrong_shapes(contents, refused):
    contents["state_dict"]["model.unembedding.bias"] = torch.zeros(3)
    assert "size mismatch for unembedding.bias" in refused(contents)


def test_missing_weights(contents, refused):
    del contents["state_dict"]["model.unembedding.bias"]
    assert 'Missing key(s) in state_dict: "unembedding.bias"' in refused(contents)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("state_dict",), [1]),
        (("state_dict",), {3: 4}),
        (("state_dict", "model.unembedding.bias"), "text"),
        (("lipformer", "vocabulary"), ["b", "a"]),
        (("lipformer", "vocabulary"), 5),
        (("lipformer", "config"), ["x"]),
        (("global_step",), "three"),
        (("lipformer", "config", "name"), 7),
        (("lipformer", "config", "depth"), 10**9),  # refused before so many blocks are built
        (("lipformer", "config", "width"), 2 * 10**6),
        (("lipformer", "config", "data", "max_length"), "long"),
        (("lipformer", "config", "data", "unknown"), "guess"),
        (("lipformer", "config", "width"), 24),
        (("lipformer", "config", "width"), "wide"),
        (("lipformer", "config", "heads"), 3),
        (("lipformer", "config", "feedforward", "expansion"), 10**7),
        (("lipformer", "config", "model", "reads"), ["width", "optimizer"]),
        (("lipformer", "config", "model", "reads"), ["width"]),
        (("lipformer", "config", "model", "reads"), None),
        (("lipformer", "config", "model"), "transformer"),
        (("lipformer", "config", "attention"), None),
        (("lipformer", "config", "attention", "colour"), "red"),
    ],
)
def test_parts_that_do_not_fit(contents, refused, place, value):
    *path, last = place
    functools.reduce(dict.__getitem__, path, contents)[last] = value
    message = refused(contents)
    assert "do not fit together" in message
    assert len(message) < 600


@pytest.mark.parametrize("place", [("state_dict",), ("global_step",), ("lipformer", "config", "attention")])
def test_parts_that_are_missing(contents, refused, place):
    *path, last = place
    del functools.reduce(dict.__getitem__, path, contents)[last]
    assert f"do not fit together ('{last}')" in refused(contents)


# --- dotted names ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target",
    [
        "os.system",
        "builtins.exec",
        "torch.load",
        "lipformerx.Attention",
        "",
        7,
        None,
        "torch.nn.init.normal_",
        "lipformer.assembly.checkpoint.torch.load",
        "lipformer.assembly.checkpoint.load_run",
        "lipformer.training.run.Path",
        "lipformer.nowhere.Attention",
        "lipformer",
        "lipformer..cli.train",
    ],
)
@pytest.mark.parametrize("group", ["model", "attention", "norm", "embedding", "linear", "data"])
def test_targets_that_are_refused(contents, refused, group, target):
    contents["lipformer"]["config"][group]["_target_"] = target
    message = refused(contents)
    assert group in message
    assert str(target) in message


@pytest.mark.parametrize(
    ("group", "target"),
    [
        ("attention", "lipformer.data.text_files.TextFiles"),
        ("model", "lipformer.data.text_files.TextFiles"),
        ("model", "lipformer.assembly.checkpoint.load_run"),
        ("data", "torch.nn.Linear"),
        ("data", "lipformer.data.vocabulary.Vocabulary"),
        ("linear", "torch.nn.utils.parametrizations.orthogonal"),
        ("linear", "lipformer.assembly.checkpoint.read_checkpoint"),
    ],
)
def test_a_class_in_the_wrong_place_is_refused(contents, refused, group, target):
    contents["lipformer"]["config"][group]["_target_"] = target
    assert "trusted packages" in refused(contents)


@pytest.mark.parametrize(
    ("group", "target"),
    [
        ("schedule", "lipformer.system.atomic.replace_text"),
        ("regularizer", "lipformer.program.cli.train"),
        ("regularizer", "torch.nn.init.kaiming_normal_"),
        ("logger", "lipformer.runs.lock.release_lock"),
    ],
)
def test_a_function_of_another_kind_is_refused(contents, group, target):
    config = contents["lipformer"]["config"]
    check_targets(config, (), "file", ["schedule", "regularizer", "logger"])
    config[group]["_target_"] = target
    with pytest.raises(CheckpointError, match=f"which is no {group} function of the trusted packages"):
        check_targets(config, (), "file", ["schedule", "regularizer", "logger"])


def test_a_package_of_the_users_own_is_imported_only_once_allowed(contents, refused, tmp_path, monkeypatch):
    package = tmp_path / "my_package.py"
    package.write_text(
        "import os\nfrom lipformer.modules.attention import DotProductAttention\n"
        "class Mine(DotProductAttention): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    contents["lipformer"]["config"]["attention"]["_target_"] = "my_package.Mine"
    assert "allow_targets=[my_package]" in refused(contents)
    assert "my_package" not in sys.modules
    run = load_run(tmp_path / "bad.ckpt", allow_targets=["my_package"])
    assert type(run.model.blocks[0].attention.branch).__name__ == "Mine"
    # What the package has merely imported is no part of it.
    contents["lipformer"]["config"]["attention"]["_target_"] = "my_package.os.system"
    refused(contents, allow_targets=["my_package"])
    del sys.modules["my_package"]  # not by monkeypatch, which would put it back for the tests to come


def test_the_shipped_modules_pass(contents):
    config = copy.deepcopy(contents["lipformer"]["config"])
    for target in ("lipformer.modules.attention.DotProductAttention", "torch.nn.Identity"):
        config["attention"]["_target_"] = target
        check_targets(config, (), "x.ckpt")


def test_read_checkpoint_gives_the_whole_file(tiny_run):
    checkpoint = read_checkpoint(tiny_run / "checkpoints" / "last.ckpt")
    assert {"state_dict", "optimizer_states", "global_step", "lipformer"} <= checkpoint.keys()
