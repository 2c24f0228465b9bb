"""A trained model in two files without pickles: its weights as safetensors, and all else as JSON."""

import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from lipformer.assembly.build import targets_outside
from lipformer.errors import CheckpointError
from lipformer.runs.layout import EXPORTED_MODEL, EXPORTED_WEIGHTS
from lipformer.system.reading import memory_size, read_regular, strict_json

FORMAT = 1
PREFIX = "model."
"""What the names of a model's weights begin with in a checkpoint."""
LARGEST_HEADER = 4 * 2**20
"""Bytes of the list of tensors, about 40,000 of them."""
LARGEST_MODEL = 4 * 2**20
"""Bytes of the JSON."""
KEYS = {
    "format": int,
    "fingerprint": str,
    "step": int,
    "allow_targets": list,
    "versions": dict,
    "corpus": dict,
    "vocabulary": list,
    "config": dict,
}
"""Keys of the JSON, with the types of their values."""


def write_exported(
    folder: Path,
    weights: Mapping[str, torch.Tensor],
    *,
    config: Mapping[str, Any],
    vocabulary: list[str],
    corpus: Mapping[str, Any],
    versions: Mapping[str, Any],
    step: int,
) -> None:
    """Write the two files.

    Args:
        folder: where to; an empty folder.
        weights: parameters and buffers by their names in the model. Those that share memory are written each.
        config: the plain configuration of the run.
        vocabulary: the characters, as `Vocabulary.to_plain` returns them.
        corpus: fingerprints of its text, as `lipformer.data.fingerprint.to_plain` returns them.
        versions: of lipformer and other packages, at the training.
        step: optimizer steps taken.

    Raises:
        CheckpointError: something in it has no place in these formats.
        OSError: a file cannot be written.
    """
    try:
        plain = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in weights.items()}
        written = save(plain, metadata={"format": "pt"})
        about = {
            "format": FORMAT,
            "fingerprint": fingerprint(written),
            "step": step,
            "allow_targets": targets_outside(config),
            "versions": versions,
            "corpus": corpus,
            "vocabulary": vocabulary,
            "config": config,
        }
        text = json.dumps(about, indent=2, allow_nan=False) + "\n"
    except (AttributeError, TypeError, ValueError, KeyError, RecursionError, SafetensorError) as error:
        raise CheckpointError(
            f"the model has no place in safetensors and JSON: {str(error).splitlines()[0]}"
        ) from error
    (folder / EXPORTED_WEIGHTS).write_bytes(written)
    (folder / EXPORTED_MODEL).write_text(text, encoding="utf-8")


def read_exported(weights_file: Path) -> dict[str, Any]:
    """Read the two files as a checkpoint, which holds no state of a training.

    Args:
        weights_file: the file of the weights; the JSON lies beside it.

    Raises:
        CheckpointError: a file is missing, damaged, or not of this form; or the two do not belong together.
    """
    model_file = weights_file.with_name(EXPORTED_MODEL)
    about = _read_about(model_file)
    try:
        content = read_regular(weights_file, memory_size(), follow=True)
    except OSError as error:
        raise CheckpointError(f"{weights_file}: {error.strerror or error}") from error
    if fingerprint(content) != about["fingerprint"]:
        raise CheckpointError(
            f"{weights_file}: not the weights that {EXPORTED_MODEL} beside it was written with (its fingerprint "
            "differs): it was cut off or altered, export the model again"
        )
    state = {f"{PREFIX}{name}": tensor for name, tensor in _read_weights(content, weights_file).items()}
    extras = {key: about[key] for key in ("config", "vocabulary", "corpus", "versions")}
    return {"lipformer": extras, "state_dict": state, "global_step": about["step"]}


def fingerprint(content: bytes) -> str:
    """Return the fingerprint of a file: the name of a checksum, and its value."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _read_about(file: Path) -> dict[str, Any]:
    try:
        about = strict_json(read_regular(file, LARGEST_MODEL, follow=True))
    except OSError as error:
        raise CheckpointError(f"{file}: {error.strerror or error}") from error
    except ValueError as error:
        raise CheckpointError(f"{file}: no JSON as lipformer export writes it ({str(error)[:200]})") from error
    form = about.get("format") if isinstance(about, dict) else None
    if type(form) is int and form != FORMAT:
        raise CheckpointError(f"{file}: format {form}; this version of lipformer reads format {FORMAT}")
    if not isinstance(about, dict) or about.keys() != KEYS.keys():
        raise CheckpointError(f"{file}: not written by lipformer export: its keys must be {', '.join(KEYS)}")
    for key, kind in KEYS.items():
        if type(about[key]) is not kind:
            raise CheckpointError(f"{file}: not written by lipformer export: {key} is no {kind.__name__}")
    return about


def _read_weights(content: bytes, file: Path) -> dict[str, torch.Tensor]:
    try:
        (length,) = struct.unpack("<Q", content[:8])
        if length > min(LARGEST_HEADER, len(content) - 8):
            raise ValueError(f"its list of tensors is said to have {length:,} bytes")
        strict_json(content[8 : 8 + length])  # the library takes the last of two tensors of the same name
        return load(content)
    except (ValueError, KeyError, TypeError, struct.error, SafetensorError, RuntimeError) as error:
        raise CheckpointError(f"{file}: no whole file of safetensors ({str(error)[:200]})") from error
