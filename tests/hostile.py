"""Hostile files, made by hand: pickles written instruction by instruction, and odd things in run folders."""

import io
import os
import pickle
import struct
import zipfile
from pathlib import Path

import torch


class Call:
    """Pickles to a call of a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def archive(program: bytes, records: dict[str, bytes] | None = None, compression=zipfile.ZIP_STORED) -> bytes:
    """The bytes of a checkpoint with this pickle and these records of storages."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as file:
        file.writestr("archive/data.pkl", program)
        file.writestr("archive/version", "3\n")
        for name, record in (records or {}).items():
            file.writestr(f"archive/data/{name}", record)
    return content.getvalue()


def text(value: str) -> bytes:
    """The instruction that puts a text on the stack."""
    return pickle.BINUNICODE + struct.pack("<I", len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    """The instruction that puts an integer on the stack."""
    if -(2**31) <= value < 2**31:
        return pickle.BININT + struct.pack("<i", value)
    digits = pickle.encode_long(value)
    return pickle.LONG1 + bytes([len(digits)]) + digits


def several(*parts: bytes) -> bytes:
    """The instructions that put a tuple on the stack."""
    return pickle.MARK + b"".join(parts) + pickle.TUPLE


def name(module: str, attribute: str) -> bytes:
    """The instruction that puts an object on the stack that is imported by its name."""
    return pickle.GLOBAL + f"{module}\n{attribute}\n".encode()


def program(*parts: bytes) -> bytes:
    """A whole pickle, which holds what the last part left on the stack."""
    return pickle.PROTO + b"\x02" + b"".join(parts) + pickle.STOP


def tensor(*, size, stride=(1,), offset=0, elements=4, storage="FloatStorage", key="0") -> bytes:
    """The instructions that make a tensor of a storage."""
    named = several(text("storage"), name("torch", storage), text(key), text("cpu"), number(elements))
    sizes, strides = (several(*map(number, numbers)) for numbers in (size, stride))
    hooks = name("collections", "OrderedDict") + pickle.EMPTY_TUPLE + pickle.REDUCE
    arguments = several(named + pickle.BINPERSID, number(offset), sizes, strides, pickle.NEWFALSE, hooks)
    return name("torch._utils", "_rebuild_tensor_v2") + arguments + pickle.REDUCE


def altered(run: Path, file: Path, place: tuple, value: object, which: str = "last") -> Path:
    """A checkpoint of a run in which one value, named by its keys, is another; of an entry that is missing too."""
    checkpoint = torch.load(run / "checkpoints" / f"{which}.ckpt", weights_only=True)
    *path, last = place
    node = checkpoint
    for key in path:
        node = node[key]
    if value is ...:
        del node[last]
    else:
        node[last] = value
    torch.save(checkpoint, file)
    return file


ODD_FILES = {
    "pipe": os.mkfifo,
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/tty"),
    "folder": Path.mkdir,
    "link to nothing": lambda path: path.symlink_to("/nowhere/at/all"),
    "link to itself": lambda path: path.symlink_to(path),
    "huge and empty": lambda path: (path.touch(), os.truncate(path, 2**40)),
}
"""What may lie where a file is expected: kind -> how it is made."""
