"""What `lipformer export` writes is the same model, bit for bit, and nothing is unpickled to read it."""

import json
import math
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from torch import nn

import lipformer
from lipformer.assembly.build import build_model
from lipformer.assembly.checkpoint import checkpoint_extras, load_run
from lipformer.assembly.export import export_run
from lipformer.assembly.exported import KEYS
from lipformer.bounds.certificate import certify
from lipformer.config import conf_dir, register, to_plain, without_unread
from lipformer.data.fingerprint import fingerprint as fingerprint_of
from lipformer.data.vocabulary import Vocabulary
from lipformer.errors import CheckpointError, UsageError, WriteError

PARTS = {
    group: sorted(file.stem for file in (conf_dir() / group).glob("*.yaml"))
    for group in ("attention", "norm", "residual", "feedforward", "position", "embedding", "linear", "model")
}
CHOICES = [(f"{group}={name}",) for group, names in PARTS.items() for name in names if name != "invertible"]
CHOICES += [("residual=invertible", "feedforward=contractive"), ("experiment=certified",)]
VOCABULARY = Vocabulary.from_lines(["abcdefgh \u2028é"])


def checkpoint_of(*overrides: str, file: Path) -> Path:
    """A checkpoint of an untrained model, whose buffers hold what a step of a training left in them."""
    register()
    with initialize_config_dir(str(conf_dir().resolve()), version_base="1.3"):
        small = ("width=16", "heads=2", "depth=2", "context=32")
        plain = without_unread(to_plain(compose("train", [*small, *overrides])))
    torch.manual_seed(1)
    model = build_model(plain, len(VOCABULARY)).train()
    model(torch.randint(len(VOCABULARY), (4, 9)))
    for buffer in model.buffers():  # as training moves them: running vectors, flags
        if buffer.is_floating_point() and buffer.dim():
            buffer.add_(0.01 * torch.randn_like(buffer))
    state = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    extras = checkpoint_extras(plain, VOCABULARY, {"train": fingerprint_of(["abc"])})
    torch.save({"state_dict": state, "global_step": 5, "lipformer": extras}, file)
    return file


def rows_of(model: nn.Module) -> list:
    """A certificate as values that compare equal."""
    return [str(certify(model, p, length=7)) for p in (2, "mixed", math.inf)]


def same(one: lipformer.assembly.checkpoint.Run, other: lipformer.assembly.checkpoint.Run) -> None:
    """Assert that two runs are the same model: weights, logits and certificates, bit for bit."""
    weights, others = one.model.state_dict(), other.model.state_dict()
    assert weights.keys() == others.keys()
    for name in weights:
        assert weights[name].dtype == others[name].dtype
        assert torch.equal(weights[name], others[name]), name
    assert (one.config, one.vocabulary, one.step) == (other.config, other.vocabulary, other.step)
    assert one.fingerprints == other.fingerprints
    ids = torch.randint(len(one.vocabulary), (3, 11), generator=torch.Generator().manual_seed(0))
    assert torch.equal(one.model(ids), other.model(ids))
    assert rows_of(one.model) == rows_of(other.model)


@pytest.mark.parametrize("overrides", CHOICES, ids=lambda overrides: overrides[0])
def test_every_part_is_read_back_equal(overrides, tmp_path):
    file = checkpoint_of(*overrides, file=tmp_path / "x.ckpt")
    folder = export_run(file, tmp_path / "exported")
    assert sorted(path.name for path in folder.iterdir()) == ["model.json", "model.safetensors"]
    same(load_run(file), load_run(folder))


@pytest.fixture
def exported(tiny_run, tmp_path) -> Path:
    return export_run(tiny_run, tmp_path / "exported")


def test_a_trained_run_is_read_back_equal_by_folder_and_by_file(tiny_run, exported):
    for place in (exported, exported / "model.safetensors", str(exported / "model.json")):
        run = lipformer.load_run(place)
        same(lipformer.load_run(tiny_run), run)
        assert run.path == exported / "model.safetensors"
        assert not run.model.training


def test_the_last_checkpoint_is_exported_if_asked_for(tiny_run, tmp_path):
    same(load_run(tiny_run, which="last"), load_run(export_run(tiny_run, tmp_path / "last", which="last")))


def test_no_pickle_is_read(exported, monkeypatch):
    for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")):
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("a pickle was read"))
    load_run(exported)


def test_what_the_json_says(tiny_run, exported):
    about = json.loads((exported / "model.json").read_text())
    assert list(about) == list(KEYS)
    assert about["corpus"].keys() == {"train", "valid"}
    assert (about["format"], about["step"], about["allow_targets"]) == (1, 3, [])
    assert about["versions"].keys() >= {"lipformer", "torch", "python"}
    assert about["config"] == load_run(tiny_run).config


def test_an_export_can_be_exported(exported, tmp_path):
    again = export_run(exported, tmp_path / "again")
    assert all(
        (again / name).read_bytes() == (exported / name).read_bytes() for name in ("model.json", "model.safetensors")
    )


def test_weights_that_share_memory(tmp_path):
    """Tied weights are two names of one tensor; both are in the file."""
    package = "import torch\nfrom torch import nn\nfrom lipformer.models.lstm import CharLSTM\nclass Tied(CharLSTM):\n"
    package += "    def __init__(self, *args, **options):\n        super().__init__(*args, **options)\n"
    package += "        self.again = self.unembedding\n        self.register_buffer('seen', torch.tensor(True))\n"
    package += "        self.register_buffer('turned', torch.arange(6.).view(2, 3).t())\n"
    (tmp_path / "tied_package.py").write_text(package)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        file = checkpoint_of("model=lstm", "model._target_=tied_package.Tied", file=tmp_path / "x.ckpt")
        folder = export_run(file, tmp_path / "exported", allow_targets=["tied_package"])
        about = json.loads((folder / "model.json").read_text())
        assert about["allow_targets"] == ["tied_package"]
        with pytest.raises(CheckpointError, match=r"allow_targets=\[tied_package\]"):
            load_run(folder)
        run = load_run(folder, allow_targets=["tied_package"])
        assert run.model.again.weight is run.model.unembedding.weight
        same(load_run(file, allow_targets=["tied_package"]), run)


# --- where it is written -----------------------------------------------------------------------------------------


def test_a_folder_that_is_not_empty_is_left_alone(tiny_run, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious").write_text("precious")
    with pytest.raises(UsageError, match=r"mine: the folder is not empty: name a new one"):
        export_run(tiny_run, tmp_path / "mine")
    with pytest.raises(UsageError, match=r"precious: Not a directory: name a new folder"):
        export_run(tiny_run, tmp_path / "mine" / "precious")
    monkeypatch.setattr("lipformer.assembly.export._refuse_occupied", lambda *_: None)  # as if it was filled just now
    with pytest.raises(WriteError, match="mine cannot be written"):
        export_run(tiny_run, tmp_path / "mine")
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]
    assert (tmp_path / "mine" / "precious").read_text() == "precious"


def test_an_empty_folder_and_one_below_others_that_are_missing(tiny_run, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    export_run(tiny_run, tmp_path / "link")
    export_run(tiny_run, tmp_path / "a" / "b" / ".." / "c")
    assert (tmp_path / "empty" / "model.json").is_file()
    assert (tmp_path / "a" / "c" / "model.json").is_file()
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("fault", ["lipformer.assembly.exported.save", "lipformer.assembly.export._check_equal"])
def test_nothing_is_left_of_an_export_that_failed(tiny_run, tmp_path, monkeypatch, fault):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fault, full)
    with pytest.raises(WriteError, match="exported cannot be written: No space left on device; make room"):
        export_run(tiny_run, tmp_path / "exported")
    assert not list(tmp_path.iterdir())


def test_a_configuration_that_json_changes_is_refused(tmp_path):
    file = checkpoint_of("model=lstm", file=tmp_path / "x.ckpt")
    contents = torch.load(file, weights_only=True)
    for value in ({7: "a key that is no text"}, (1, 2), math.inf):
        contents["lipformer"]["config"]["note"] = value
        torch.save(contents, file)
        with pytest.raises(
            CheckpointError, match=r"x.ckpt: read back from .* not be the same|has no place in safetensors"
        ):
            export_run(file, tmp_path / "exported")
    assert [path.name for path in tmp_path.iterdir()] == ["x.ckpt"]


# --- files that do not fit ---------------------------------------------------------------------------------------


def refused(folder: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        load_run(folder)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 700
    return str(error.value)


def alter(folder: Path, **changes) -> None:
    file = folder / "model.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def rewrite(folder: Path, content: bytes) -> None:
    """Put other weights there, with their fingerprint, as somebody who alters a file on purpose would."""
    from lipformer.assembly.exported import fingerprint

    (folder / "model.safetensors").write_bytes(content)
    alter(folder, fingerprint=fingerprint(content))


def safetensors(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def split(content: bytes) -> tuple[dict, bytes]:
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_a_file_that_is_missing_or_cut_off(exported, name):
    whole = (exported / name).read_bytes()
    for size in (0, 1, 9, len(whole) // 2, len(whole) - 2):
        (exported / name).write_bytes(whole[:size])
        assert name in refused(exported)
    (exported / name).unlink()
    assert f"{name}: No such file or directory" in refused(exported)


def test_bytes_that_changed_are_found(exported):
    content = bytearray((exported / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (exported / "model.safetensors").write_bytes(content)
    assert "its fingerprint differs" in refused(exported)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "no JSON"),
        ("[]", "its keys must be format, fingerprint"),
        ('{"format": 1}', "its keys must be format, fingerprint"),
        ('{"format": 2}', "format 2; this version of lipformer reads format 1"),
        ('{"format": NaN}', "NaN is no number of JSON"),
        ('{"format": -Infinity}', "-Infinity is no number of JSON"),
        ('{"format": 1e999}', "1e999 is beyond the range of numbers"),
        ('{"format": ' + "9" * 5000 + "}", "no JSON"),
        ('{"format": 1, "step": 3, "format": 1}', "the key 'format' stands twice"),
        ("[" * 100_000, "it nests too deep"),
        ('{"a":' * 100_000, "it nests too deep"),
        ('{"format": "\udcff"}', "no JSON"),
        ('"' + "x" * 5 * 2**20 + '"', "larger than 4,194,304 bytes"),
    ],
    ids=range(13),
)
def test_json_of_another_form(exported, text, words):
    (exported / "model.json").write_text(text, errors="surrogateescape")
    assert words in refused(exported)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"step": True}, "step is no int"),
        ({"step": "3"}, "step is no int"),
        ({"format": True}, "format is no int"),
        ({"vocabulary": ["b", "a"]}, "do not fit together"),
        ({"vocabulary": [["a"]]}, "do not fit together"),
        ({"config": {}}, "do not fit together"),
        ({"fingerprint": "sha256:0"}, "its fingerprint differs"),
        ({"more": 1}, "its keys must be"),
    ],
)
def test_values_of_another_form(exported, changes, words):
    alter(exported, **changes)
    assert words in refused(exported)


def test_targets_are_checked_and_what_the_file_allows_is_not_believed(exported):
    config = json.loads((exported / "model.json").read_text())["config"]
    config["attention"]["_target_"] = "os.system"
    alter(exported, config=config, allow_targets=["os"])
    assert "attention names 'os.system', which is outside the trusted packages" in refused(exported)


WEIGHT = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
HEADERS = {
    "no header": (b"", "no whole file"),
    "a header longer than the file": (safetensors({}, length=2**60), "is said to have"),
    "a large header": (safetensors(b"{" + b" " * 10 * 2**20 + b"}"), "is said to have 10,485,762 bytes"),
    "no json": (safetensors(b"{"), "no whole file"),
    "nan": (safetensors(b'{"a": NaN}'), "NaN is no number"),
    "two of a name": (
        safetensors(f'{{"a": {json.dumps(WEIGHT)}, "a": {json.dumps(WEIGHT)}}}'.encode(), bytes(4)),
        "the key 'a' stands twice",
    ),
    "nested": (safetensors(b"[" * 100_000), "it nests too deep"),
    "bytes that belong to two": (safetensors({"a": WEIGHT, "b": WEIGHT}, bytes(4)), "invalid offset"),
    "bytes that belong to none": (safetensors({"a": WEIGHT}, bytes(8)), "not fully covered"),
    "a shape without bytes": (safetensors({"a": WEIGHT | {"shape": [10**9]}}, bytes(4)), "no whole file"),
    "a shape beyond numbers": (safetensors({"a": WEIGHT | {"shape": [2**62, 8]}}, bytes(4)), "no whole file"),
    "a negative shape": (safetensors({"a": WEIGHT | {"shape": [-1]}}, bytes(4)), "no whole file"),
    "no tensor of the model": (safetensors({"a": WEIGHT}, bytes(4)), "do not fit together"),
    "an empty tensor of absurd size": (
        safetensors({"a": {"dtype": "F32", "shape": [0, 2**62], "data_offsets": [0, 0]}}),
        "do not fit together",
    ),
}


@pytest.mark.parametrize("name", HEADERS)
def test_weights_of_another_form(exported, name):
    content, words = HEADERS[name]
    rewrite(exported, content)
    assert words in refused(exported)


def test_weights_that_are_not_those_of_the_model(exported):
    header, data = split((exported / "model.safetensors").read_bytes())
    name = "unembedding.bias"
    alone = {key: value for key, value in header.items() if key != name}
    cut = header[name]["data_offsets"]
    rewrite(
        exported,
        safetensors(
            {**header, "more": {"dtype": "F32", "shape": [1], "data_offsets": [len(data), len(data) + 4]}},
            data + bytes(4),
        ),
    )
    assert 'Unexpected key(s) in state_dict: "more"' in refused(exported)
    rewrite(exported, safetensors({**alone, "moved": header[name]}, data))
    assert f'Missing key(s) in state_dict: "{name}"' in refused(exported)
    rewrite(exported, safetensors({**header, name: header[name] | {"shape": [1, *header[name]["shape"]]}}, data))
    assert f"size mismatch for {name}" in refused(exported)
    rewrite(exported, safetensors({**header, name: header[name] | {"dtype": "I32"}}, data))
    assert f"{name} is of torch.int32, and torch.float32 in the model" in refused(exported)
    half = {"dtype": "F16", "shape": [*header[name]["shape"], 2], "data_offsets": cut}
    rewrite(exported, safetensors({**header, name: half}, data))
    assert f"{name} is of torch.float16" in refused(exported)


def test_both_files_where_one_is_a_pickle(exported, tiny_run):
    shutil.copy(tiny_run / "checkpoints" / "best.ckpt", exported / "model.safetensors")
    assert "its fingerprint differs" in refused(exported)
    rewrite(exported, (tiny_run / "checkpoints" / "best.ckpt").read_bytes())
    assert "no whole file of safetensors" in refused(exported)
