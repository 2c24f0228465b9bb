"""Describing what this process computes with: versions, machine, threads and torch's flags."""

import importlib.metadata
import os
import platform
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import torch
import torch.utils.deterministic

from lipformer.data.fingerprint import Fingerprint, to_plain
from lipformer.runs.environment import Environment
from lipformer.system.machine import core_count, cpu_model, operating_system
from lipformer.system.source import code_commit, working_commit
from lipformer.version import __version__

PACKAGES = ("torch", "pytorch-lightning", "hydra-core", "omegaconf", "numpy")
VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "OMP_DYNAMIC",
    "OMP_WAIT_POLICY",
    "GOMP_SPINCOUNT",
    "KMP_BLOCKTIME",
    "MKL_DYNAMIC",
    "MKL_CBWR",
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE",
)
"""Environment variables that change how BLAS and OpenMP compute; no others are recorded."""


def describe_environment(
    *, seed: int | None, fingerprints: Mapping[Any, Fingerprint], command: str | None
) -> Environment:
    """Return what this process runs in, once threads and flags are as they stay.

    Args:
        seed: the seed of the run; None if nothing is random.
        fingerprints: of the splits that were read.
        command: the command line, see `Environment`.
    """
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return Environment(
        started=datetime.now().astimezone().isoformat(timespec="seconds"),
        command=command,
        seed=seed,
        versions=_versions(),
        commits={"lipformer": code_commit(), "working directory": working_commit()},
        machine={
            "system": operating_system(),
            "cpu": cpu_model(),
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "cores": core_count(),
            "gpus": gpus,
        },
        threads={
            "torch": torch.get_num_threads(),
            "between operations": torch.get_num_interop_threads(),
            **{name: os.environ[name] for name in VARIABLES if name in os.environ},
        },
        determinism={
            "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
            "memory filled": torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
            "cudnn benchmark": torch.backends.cudnn.benchmark,
            "float32 products": torch.get_float32_matmul_precision(),
            "mkldnn": torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled,
        },
        corpus=to_plain(fingerprints),
    )


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {"python": platform.python_version(), "lipformer": __version__}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    versions["torch"] = str(torch.__version__)  # with the build, which the package's version may lack
    if torch.version.cuda is not None:
        cudnn = torch.backends.cudnn.version()
        versions |= {"cuda": torch.version.cuda, "cudnn": None if cudnn is None else str(cudnn)}
    return versions
