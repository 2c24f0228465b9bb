"""Checkpoints that were altered, or made, to do harm: refused in one line, before they take memory or time."""

import functools
import os
import pathlib
import pickle
import subprocess
import sys
import zipfile

import pytest
import torch
from hostile import Call, altered, archive, name, number, program, several, tensor, text
from programs import ROOT

from lipformer.assembly.archive import CodeError, FormError, read_archive
from lipformer.assembly.build import check_targets
from lipformer.assembly.checkpoint import load_run
from lipformer.errors import CheckpointError, UsageError

SMALL = 200 * 2**20
"""Bytes that the reading of a file of some kilobytes may add to the memory of a process."""


def refused(path) -> str:
    with pytest.raises(CheckpointError) as error:
        load_run(path)
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 1000
    assert str(path) in message
    return message


def written(tmp_path, content: bytes) -> pathlib.Path:
    (tmp_path / "bad.ckpt").write_bytes(content)
    return tmp_path / "bad.ckpt"


# --- code --------------------------------------------------------------------------------------------------------

PLACES = {
    "alone": (),
    "an epoch": ("epoch",),
    "weights": ("state_dict", "model.unembedding.bias"),
    "the optimizer": ("optimizer_states", 0, "state", 0, "exp_avg"),
    "a group of the optimizer": ("optimizer_states", 0, "param_groups", 0, "lr"),
    "a callback": ("callbacks", "somebody's"),
    "the loops": ("loops", "fit_loop", "state_dict"),
    "the configuration": ("lipformer", "config", "attention", "scale"),
    "nested containers": ("lipformer", "versions", "torch"),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize(
    "nested", [lambda call: call, lambda call: {"a": [({"b": (1, [call])},)]}], ids=["plain", "deep"]
)
def test_code_is_found_wherever_it_stands(tiny_run, tmp_path, monkeypatch, place, nested):
    monkeypatch.chdir(tmp_path)
    payload = nested(Call(os.system, "touch executed"))
    file = tmp_path / "bad.ckpt"
    if place:
        altered(tiny_run, file, place, payload)
    else:
        torch.save(payload, file)
    assert "it holds code (posix.system) and is not loaded" in refused(file)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "called",
    [
        ("builtins", "eval"),
        ("builtins", "getattr"),
        ("builtins", "bytearray"),  # torch itself would make one of any size
        ("torch", "Tensor"),
        ("torch", "load"),
        ("torch.storage", "UntypedStorage"),
        ("torch.serialization", "_get_layout"),
        ("torch._utils", "_rebuild_meta_tensor_no_storage"),
        ("torch._tensor", "_rebuild_from_type_v2"),
        ("torch.nn.modules.module", "os.system"),
        ("lipformer.program.cli", "os.system"),
        ("collections", "OrderedDict.fromkeys"),
    ],
    ids=".".join,
)
def test_names_that_are_not_known_are_code(tmp_path, called):
    made = name(*called) + several(number(10**12)) + pickle.REDUCE
    assert f"it holds code ({'.'.join(called)})" in refused(written(tmp_path, archive(program(made))))


@pytest.mark.parametrize(
    "instructions",
    [
        name("torch", "FloatStorage") + several(number(10**12)) + pickle.REDUCE,
        text("os.system") + several(text("touch executed")) + pickle.REDUCE,
        name("collections", "OrderedDict") + pickle.EMPTY_TUPLE + pickle.NEWOBJ,
        name("collections", "OrderedDict") + pickle.EMPTY_TUPLE + pickle.REDUCE + pickle.EMPTY_DICT + pickle.BUILD,
        text("posix") + text("system") + pickle.STACK_GLOBAL,
        pickle.EXT1 + b"\x01",
        b"iposix\nsystem\n",
        pickle.BYTEARRAY8 + (2**60).to_bytes(8, "little"),
        pickle.BINBYTES8 + (2**60).to_bytes(8, "little"),
        pickle.LONG4 + (2**31 - 1).to_bytes(4, "little"),
        pickle.EMPTY_DICT + pickle.LONG_BINPUT + b"\xff\xff\xff\xff" + pickle.LONG_BINGET + b"\xfe\xff\xff\xff",
        pickle.EMPTY_DICT + number(1) + pickle.APPEND,
        pickle.EMPTY_LIST + number(1) + number(2) + pickle.SETITEM,
        pickle.EMPTY_DICT + pickle.EMPTY_LIST + number(2) + pickle.SETITEM,
        pickle.TUPLE3,
        pickle.TUPLE,
        pickle.APPENDS,
        pickle.BINPERSID,
        several(text("storage"), text("a"), text("0"), text("cpu"), number(4)) + pickle.BINPERSID,
        several(text("storage"), name("torch", "FloatStorage"), text("../../x"), text("cpu"), number(4))
        + pickle.BINPERSID,
        b"",
    ],
    ids=range(21),
)
def test_instructions_that_torch_does_not_write(tmp_path, instructions):
    refused(written(tmp_path, archive(program(instructions), {"0": bytes(16)})))


def test_what_torch_writes_is_read_as_torch_reads_it(tmp_path):
    """Every kind of value that a callback of a user's own may keep, views and shared memory among them."""
    matrix = torch.arange(24.0).view(4, 6)
    kept = {
        "views": [matrix, matrix.t(), matrix[1:, 2:], matrix[0, 0]],
        "types": [matrix.to(kind) for kind in (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool)],
        "empty": torch.empty(0, 3),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "plain": [None, True, 1, -(2**70), 2.5, "é\u2028", (1, (2,)), b"bytes", {3, 4}, torch.Size([1, 2])],
        "names": [torch.float16, torch.device("cpu")],
    }
    torch.save(kept, tmp_path / "kept.pt")
    ours, theirs = read_archive(tmp_path / "kept.pt"), torch.load(tmp_path / "kept.pt", weights_only=True)
    for key in ("views", "types"):
        for one, other in zip(ours[key], theirs[key], strict=True):
            assert (one.dtype, one.stride()) == (other.dtype, other.stride())
            assert torch.equal(one, other)
    assert ours["views"][1].untyped_storage().data_ptr() == ours["views"][0].untyped_storage().data_ptr()
    assert ours["empty"].shape == (0, 3)
    assert isinstance(ours["parameter"], torch.nn.Parameter)
    assert all(ours[key] == kept[key] for key in ("plain", "names"))


# --- sizes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "made",
    [
        tensor(size=(10**12,), elements=10**12),
        tensor(size=(10**12,)),
        tensor(size=(10**12,), stride=(0,)),
        tensor(size=(10**6, 10**6), stride=(0, 0)),
        tensor(size=(2**62, 2**62), stride=(0, 0)),
        tensor(size=(4,), stride=(-1,), offset=3),
        tensor(size=(-4,)),
        tensor(size=(4,), offset=-1),
        tensor(size=(4,), offset=1),
        tensor(size=(4,), offset=2**63),
        tensor(size=(2, 2), stride=(2**62, 1)),
        tensor(size=(2,), stride=(1, 1)),
        tensor(size=(2,), elements=-4),
        tensor(size=(4,), storage="DoubleStorage"),
        tensor(size=(4,), key="1"),
    ],
    ids=range(15),
)
def test_tensors_that_are_larger_than_their_bytes(tmp_path, made):
    assert "not a whole checkpoint" in refused(written(tmp_path, archive(program(made), {"0": bytes(16)})))


def test_a_tensor_within_its_bytes_is_made(tmp_path):
    made = program(tensor(size=(2, 2), stride=(1, 2)))
    file = written(tmp_path, archive(made, {"0": torch.arange(4.0).numpy().tobytes()}))
    assert read_archive(file).tolist() == [[0, 2], [1, 3]]


def doubled(times: int) -> bytes:
    """A list of two lists of two lists ..., each of which stands in the file once."""
    made = pickle.EMPTY_LIST + pickle.BINPUT + b"\x00"
    for level in range(times):
        one = pickle.BINGET + bytes([level])
        made += pickle.EMPTY_LIST + pickle.MARK + one + one + pickle.APPENDS + pickle.BINPUT + bytes([level + 1])
    return made


NESTED = {
    "deep": pickle.EMPTY_LIST * 100_000 + pickle.APPEND * 99_999,
    "its own part": pickle.EMPTY_LIST + pickle.BINPUT + b"\x00" + pickle.BINGET + b"\x00" + pickle.APPEND,
    "two to the power of 60": doubled(60),
    "an integer of many digits": pickle.LONG1 + b"\xff" + b"\x7f" * 255,
    "half a character": text("x")[:-1].replace(b"\x01", b"\x03") + b"\xed\xa0\x80",
}


@pytest.mark.parametrize("kind", NESTED)
def test_containers_without_end(tmp_path, kind):
    with pytest.raises(FormError, match=r"nest too deep|refer to each other|too large|cannot be written"):
        read_archive(written(tmp_path, archive(program(NESTED[kind]))))


def bomb(kind: str) -> bytes:
    """A small file that is said to hold gigabytes."""
    zeros = bytes(2**26)
    if kind == "compressed":
        return archive(program(tensor(size=(4,))), {str(i): zeros for i in range(40)}, zipfile.ZIP_DEFLATED)
    if kind == "a compressed pickle":
        return archive(program(pickle.NONE * 2**26), compression=zipfile.ZIP_DEFLATED)
    content = bytearray(archive(program(tensor(size=(4,))), {"0": bytes(2**10)}))
    place = content.rfind(b"PK\x01\x02", 0, content.rfind(b"archive/data/0"))
    for at in (place + 20, place + 24):  # its size in the archive, and unpacked
        content[at : at + 4] = (2**32 - 2).to_bytes(4, "little")
    return bytes(content)


@pytest.mark.parametrize("kind", ["compressed", "a compressed pickle", "records beyond the file"])
def test_a_small_file_takes_little_memory(tmp_path, kind):
    file = written(tmp_path, bomb(kind))
    assert file.stat().st_size < 4 * 2**20
    assert peak_of(f"load_run({str(file)!r})", tmp_path) < SMALL


def peak_of(code: str, folder: pathlib.Path, limit: int = 4 * 2**30) -> int:
    """Run code that raises a CheckpointError in a process with a limit of memory; return the bytes that it took."""
    script = (
        "import resource\n"
        "from lipformer.assembly.checkpoint import load_run, find_checkpoint\n"
        "from lipformer.errors import CheckpointError\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "with open('/proc/self/statm') as file:\n"
        "    mapped = int(file.read().split()[0]) * resource.getpagesize()\n"
        f"resource.setrlimit(resource.RLIMIT_AS, (mapped + {limit}, mapped + {limit}))\n"
        f"try:\n    {code}\n"
        "except CheckpointError as error:\n"
        "    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout, "it was not refused"
    return int(done.stdout) * 1024


SIZES = {
    "width": 1_000_000,
    "context": 10**9,
    "depth": 10**9,
    "heads": 10**9,
}


@pytest.mark.parametrize("key", SIZES)
def test_sizes_that_do_not_belong_to_the_weights_take_no_memory(tiny_run, tmp_path, key):
    """With a vector of a million elements among the weights, a width of a million is no longer absurd by itself."""
    checkpoint = torch.load(tiny_run / "checkpoints" / "last.ckpt", weights_only=True)
    checkpoint["state_dict"]["model.unembedding.bias"] = torch.zeros(1_000_000)
    checkpoint["lipformer"]["config"][key] = SIZES[key]
    torch.save(checkpoint, tmp_path / "bad.ckpt")
    assert peak_of(f"load_run({str(tmp_path / 'bad.ckpt')!r})", tmp_path) < 2 * SMALL
    assert "do not fit together" in refused(tmp_path / "bad.ckpt")


# --- names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("member", ["/etc/passwd", "archive/../../x", "archive/data/0"])
def test_names_of_records(tmp_path, member):
    file = written(tmp_path, archive(program(tensor(size=(4,))), {"0": bytes(16)}))
    with zipfile.ZipFile(file, "a") as more, pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *_, **__: None)  # of two records of one name
        more.writestr(member, b"x")
    assert "named twice, or by paths that leave the archive" in refused(file)


TARGETS = [
    "os.system",
    "builtins.eval",
    "torch.load",
    "pathlib.Path.unlink",
    "lipformer.assembly.checkpoint.os.system",
    "lipformer.program.cli.os.system",
    "lipformer.program.cli.sys.exit",
    "lipformer.training.run.signal.signal",
    "torch.nn.modules.module.os.system",
    "torch.nn.modules.module.OrderedDict",
    "torch.optim.optimizer.functools.partial",
    "lipformer.system.atomic.replace_text",
    "lipformer.program.export.export",
    "lipformer.__main__.main",
    "lipformer.load_run",
    "lipformer.errors.UsageError",
    "__main__.x",
    "..os.system",
    "/etc/passwd",
    "os",
    ["os.system"],
    {"_target_": "os.system"},
    True,
]
TRAINED = ("optimizer", "schedule", "regularizer", "callbacks", "logger")


@pytest.mark.parametrize(
    "group", ["model", "attention", "linear", "data", "optimizer", "schedule", "logger", "callbacks"]
)
def test_no_target_is_called_that_is_no_part_of_its_kind(tiny_run, monkeypatch, group):
    for function in ("os.system", "torch.load", "pathlib.Path.unlink"):
        monkeypatch.setattr(function, lambda *_, **__: pytest.fail("it was called"))
    config = torch_config(tiny_run)
    for target in TARGETS:
        node = {"bad": {"_target_": target}} if group == "callbacks" else {**config[group], "_target_": target}
        with pytest.raises(CheckpointError) as error:
            check_targets({**config, group: node}, (), "x.ckpt", TRAINED)
        assert "\n" not in str(error.value)


@functools.cache
def torch_config(run) -> dict:
    return read_archive(run / "checkpoints" / "last.ckpt")["lipformer"]["config"]


@pytest.mark.parametrize("place", ["task", "name", "seed", "trainer", "context"])
@pytest.mark.parametrize("value", ["../../x", "/etc/passwd", {"_target_": "os.system"}, "${oc.env:HOME}", ["a"], None])
def test_other_keys_name_nothing_that_is_built(tiny_run, tmp_path, place, value):
    """They are shown as they are, or refused; neither leads anywhere."""
    file = altered(tiny_run, tmp_path / "x.ckpt", ("lipformer", "config", place), value)
    faults = []
    try:
        run = load_run(file)
    except (CheckpointError, UsageError) as error:
        faults = str(error).splitlines()
    else:
        assert str(run.config[place])[-10:] == str(value)[-10:] or run.config[place]["_target_"] == "os.system"
    assert len(faults) < 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.ckpt"]


def test_the_reader_of_archives_says_what_is_code_and_what_is_broken(tmp_path):
    with pytest.raises(CodeError, match=r"posix\.system"):
        read_archive(written(tmp_path, archive(program(name("posix", "system")))))
    with pytest.raises(FormError, match="truncated, or another kind of file"):
        read_archive(written(tmp_path, b"PK\x03\x04"))
    with pytest.raises(OSError, match="No such file"):
        read_archive(tmp_path / "nowhere")
