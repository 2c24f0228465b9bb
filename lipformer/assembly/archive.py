"""Read the file of a checkpoint: tensors and plain containers, and as much memory as the file has bytes.

A checkpoint is what `torch.save` writes: a zip archive of one pickle, and of a record of bytes for each storage of
tensors. A pickle is a program; of its instructions only those that build containers are followed here, and of the
names in it only those of `NAMES` are known. Nothing is imported, and no object is made by the file's own rules. Each
tensor must lie within the bytes of its storage, and no record may be compressed, so that a small file cannot become a
large one.
"""

import contextlib
import io
import math
import pickletools
import sys
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lipformer.errors import one_line
from lipformer.system.reading import memory_size, open_regular

LARGEST_PICKLE = 64 * 2**20
"""Bytes of the pickle, in which tensors are names only."""
MOST_NODES, DEEPEST = 2_000_000, 64
"""How many containers and values a checkpoint holds, counted as often as they are named, and how deep they nest."""
LONGEST_INTEGER = 128
"""Bits of an integer."""


class CodeError(Exception):
    """A pickle names something that is neither a tensor nor a plain container."""


class FormError(Exception):
    """A file is no whole archive of this form, or its parts contradict each other."""


class _Storage(NamedTuple):
    record: torch.UntypedStorage
    dtype: torch.dtype
    elements: int


def read_archive(path: Path) -> Any:
    """Return what `torch.save` wrote into a file.

    Raises:
        CodeError: it holds more than tensors and plain containers.
        FormError: it is not whole, or was not written by `torch.save`.
        OSError: there is no such file, or it cannot be read.
    """
    try:
        with opened_archive(path) as archive:
            content = _Reader(archive).load()
    except (CodeError, FormError, OSError):
        raise
    except MemoryError as error:
        raise FormError("it does not fit into memory") from error
    except Exception as error:  # damaged bytes raise BadZipFile, KeyError, IndexError, struct.error and others
        raise FormError(f"truncated, or another kind of file; {one_line(error)[:100]}") from error
    _check_nodes(content)
    return content


@contextlib.contextmanager
def opened_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open the archive of a checkpoint, and check that its records are as large as they are in the file.

    Raises:
        FormError: they are not: it is compressed, or records overlap; or one is named as torch never names it.
        OSError: it cannot be read, or is no plain file.
    """
    with open_regular(path, memory_size(), follow=True) as stream:
        try:
            archive = zipfile.ZipFile(stream)
        except Exception as error:
            raise FormError("truncated, or another kind of file") from error
        with archive:
            _check_records(archive.infolist(), stream.seek(0, io.SEEK_END))
            yield archive


def _check_records(records: list[zipfile.ZipInfo], size: int) -> None:
    names = [record.filename for record in records]
    if any(record.compress_type != zipfile.ZIP_STORED or record.flag_bits & 1 for record in records):
        raise FormError("it is compressed or encrypted, which torch.save never does")
    if sum(record.file_size for record in records) > size:
        raise FormError("its records are said to be larger than the file")
    if len(set(names)) < len(names) or any(name[:1] == "/" or ".." in name.split("/") for name in names):
        raise FormError("its records are named twice, or by paths that leave the archive")


def _check_nodes(content: Any) -> None:
    """Refuse containers that nest too deep, contain themselves, or refer to each other until they are huge."""
    waiting: list[Iterator[Any]] = [iter((content,))]
    count = 0
    while waiting:
        for node in waiting[-1]:
            count += 1
            if count > MOST_NODES or len(waiting) > DEEPEST:
                raise FormError("its containers nest too deep, or refer to each other too often")
            if isinstance(node, dict):
                waiting.append(iter([part for item in node.items() for part in item]))
                break
            if isinstance(node, list | tuple | set):
                waiting.append(iter(node))
                break
            if isinstance(node, str) and not _is_text(node):
                raise FormError("a text in it cannot be written")
            if isinstance(node, int) and node.bit_length() > LONGEST_INTEGER:
                raise FormError("an integer in it is too large")
        else:
            waiting.pop()


def _is_text(text: str) -> bool:
    """Return whether a text can be written as UTF-8, which halves of surrogate pairs cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class _Reader:
    """Follows the pickle of an archive."""

    def __init__(self, archive: zipfile.ZipFile):
        pickles = [record for record in archive.infolist() if record.filename.split("/")[1:] == ["data.pkl"]]
        if len(pickles) != 1 or pickles[0].file_size > LARGEST_PICKLE:
            raise FormError("it has no one pickle of the size of a checkpoint's")
        self._folder = pickles[0].filename.removesuffix("data.pkl")
        self._archive = archive
        self._pickle = archive.read(pickles[0])
        order = self._folder + "byteorder"
        if order in archive.namelist() and archive.read(order).decode() != sys.byteorder:
            raise FormError(f"it was written on a machine of another byte order than {sys.byteorder}")
        self._records: dict[str, torch.UntypedStorage] = {}
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[Any, Any] = {}

    def load(self) -> Any:
        """Return the object that the pickle describes."""
        for instruction, argument, _ in pickletools.genops(self._pickle):
            if instruction.name == "STOP":
                break
            self._follow(instruction.name, argument)
        return self._stack.pop()

    def _follow(self, instruction: str, argument: Any) -> None:
        """Follow one instruction; these are the ones of protocol 2 that torch.save writes."""
        match instruction:
            case "PROTO":
                pass
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                self._stack.append({"NEWTRUE": True, "NEWFALSE": False}.get(instruction))
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT" | "BINUNICODE":
                self._stack.append(argument)
            case "EMPTY_DICT" | "EMPTY_LIST" | "EMPTY_TUPLE":
                self._stack.append({} if instruction == "EMPTY_DICT" else [] if instruction == "EMPTY_LIST" else ())
            case "MARK":
                self._marks.append(len(self._stack))
            case "TUPLE":
                self._stack.append(tuple(self._taken(self._marks.pop())))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                self._stack.append(tuple(self._taken(len(self._stack) - int(instruction[-1]))))
            case "BINPUT" | "LONG_BINPUT":
                self._memo[argument] = self._stack[-1]
            case "BINGET" | "LONG_BINGET":
                self._stack.append(self._memo[argument])
            case "APPEND" | "APPENDS" | "SETITEM" | "SETITEMS":
                self._fill(instruction)
            case "GLOBAL":
                self._stack.append(_named(argument))
            case "BINPERSID":
                self._stack.append(self._storage(*self._stack.pop()))
            case "REDUCE":
                arguments, function = self._stack.pop(), self._stack.pop()
                if not any(function is known for known in FUNCTIONS.values()) or type(arguments) is not tuple:
                    raise FormError("it calls what is no tensor or container")
                self._stack.append(function(*arguments))
            case "BUILD":
                self._take_versions(self._stack.pop())
            case _:
                raise FormError(f"it has the instruction {instruction}, which torch.save does not write")

    def _taken(self, place: int) -> list[Any]:
        """Take the objects from this place of the stack on."""
        if not 0 <= place <= len(self._stack):
            raise FormError("its instructions do not fit together")
        items = self._stack[place:]
        del self._stack[place:]
        return items

    def _fill(self, instruction: str) -> None:
        """Put items into a list or dictionary."""
        single = len(self._stack) - (2 if instruction == "SETITEM" else 1)
        items = self._taken(self._marks.pop() if instruction.endswith("S") else single)
        target = self._stack[-1]
        if instruction.startswith("APPEND") and type(target) is list:
            target.extend(items)
        elif instruction.startswith("SET") and isinstance(target, dict):
            target.update(zip(items[::2], items[1::2], strict=True))
        else:
            raise FormError("it puts items into what does not take them")

    def _take_versions(self, state: Any) -> None:
        """Give a dictionary of weights the versions of modules that torch keeps beside it."""
        weights = self._stack[-1]
        if type(weights) is not OrderedDict or not isinstance(state, dict) or state.keys() != {"_metadata"}:
            raise FormError("it has a state of what is no dictionary of weights")
        weights._metadata = state["_metadata"]  # type: ignore[attr-defined]

    def _storage(self, kind: Any, dtype: Any, key: Any, place: Any, elements: Any) -> "_Storage":
        """Return a storage by its record.

        Raises:
            FormError: it is larger than its record.
        """
        if not (isinstance(dtype, torch.dtype) and type(elements) is int and type(key) is str and kind == "storage"):
            raise FormError("a storage is not named as torch.save does")
        if key not in self._records:
            content = bytearray(self._archive.read(f"{self._folder}data/{key}"))
            record = torch.frombuffer(content, dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
            self._records[key] = record.untyped_storage()
        if not 0 <= elements * dtype.itemsize <= self._records[key].nbytes():
            raise FormError(f"a storage of {elements:,} elements has {self._records[key].nbytes():,} bytes")
        return _Storage(self._records[key], dtype, elements)


def _named(name: str) -> Any:
    """Return what stands for a name in a pickle, ``<module> <name>``; nothing is imported.

    Raises:
        CodeError: the name is not one of a tensor or a plain container.
    """
    try:
        return NAMES[name.replace(" ", ".")]
    except KeyError:
        raise CodeError(name.replace(" ", ".")[:200]) from None


def _tensor(
    storage: Any, offset: Any, size: Any, stride: Any, requires_grad: Any, hooks: Any, metadata: Any = None
) -> torch.Tensor:
    """Return the tensor that `torch._utils._rebuild_tensor_v2` makes of these arguments.

    Raises:
        FormError: it would have more elements than its storage, or some beside it.
    """
    numbers = (offset, *size, *stride)
    if not isinstance(storage, _Storage) or hooks or metadata or len(size) != len(stride):
        raise FormError("a tensor is not described as torch.save does")
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise FormError("a tensor has a negative size, stride or place")
    last = offset + sum((extent - 1) * step for extent, step in zip(size, stride, strict=True))
    elements = math.prod(size)
    if elements and (last >= storage.elements or elements > storage.elements):
        raise FormError(f"a tensor of {'x'.join(map(str, size))} elements is larger than its storage")
    empty = torch.empty(0, dtype=storage.dtype)
    tensor = empty.set_(storage.record, offset if elements else 0, size, stride)
    return tensor.requires_grad_(requires_grad is True and tensor.is_floating_point())


def _parameter(data: Any, requires_grad: Any, hooks: Any) -> torch.Tensor:
    if not isinstance(data, torch.Tensor) or hooks:
        raise FormError("a parameter is not described as torch.save does")
    return torch.nn.Parameter(data, requires_grad is True)


def _ordered(items: Any = ()) -> OrderedDict:
    return OrderedDict(items)


def _counter(items: Any = ()) -> Counter:
    return Counter(dict(items))


def _set(items: Any = ()) -> set:
    return set(items)


def _size(items: Any = ()) -> torch.Size:
    return torch.Size(items)


def _device(*place: Any) -> torch.device:
    return torch.device(*place)


def _bytes(text: Any, encoding: Any) -> bytes:
    if encoding != "latin1":
        raise FormError("bytes in another encoding than pickles have them")
    return text.encode(encoding)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": _parameter,
    "torch.Size": _size,
    "torch.device": _device,
    "collections.OrderedDict": _ordered,
    "collections.Counter": _counter,
    "__builtin__.set": _set,
    "_codecs.encode": _bytes,
}
STORAGES = {
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Long": torch.int64,
    "Int": torch.int32,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
    "ComplexDouble": torch.complex128,
    "ComplexFloat": torch.complex64,
}
NAMES: dict[str, Any] = {
    **FUNCTIONS,
    **{f"torch.{kind}Storage": dtype for kind, dtype in STORAGES.items()},
    **{str(dtype): dtype for dtype in STORAGES.values()},
}
"""The names that a pickle may hold, and what stands for each."""
