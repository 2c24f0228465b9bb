"""The state of torch that a training changes for the whole process: flags that bits depend on, compiled code."""

import contextlib
import os
import sys
from collections.abc import Iterator

import torch

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
"""The variable without which the matrix products of a GPU are not deterministic; read at the first of them."""


@contextlib.contextmanager
def flags_restored() -> Iterator[None]:
    """Give torch's flags back as they were, and forget compiled code: the jobs of a sweep may share the process.

    On a machine with a GPU the workspace of cuBLAS is set as well, and stays: a later job of the process could not set
    it. It does not make a result deterministic by itself.
    """
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark, workspace = torch.backends.cudnn.benchmark, os.environ.get(WORKSPACE)
    if torch.cuda.is_available():
        workspace = os.environ.setdefault(WORKSPACE, ":4096:8")
    try:
        yield
    finally:
        if "torch._dynamo" in sys.modules:  # a process compiles a function for eight shapes and then silently no more
            torch.compiler.reset()
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.backends.cudnn.benchmark = benchmark
        if workspace is None:
            os.environ.pop(WORKSPACE, None)
        else:
            os.environ[WORKSPACE] = workspace
