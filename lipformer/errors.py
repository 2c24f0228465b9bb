"""The errors a user can cause, each with the exit code of the process that it ends.

A message is one line that says what is wrong, where, and what to do about it.
"""


class LipformerError(Exception):
    """Base of the errors that are reported in one line, without a traceback."""

    exit_code = 1


class UsageError(LipformerError):
    """The command line, the configuration or a file named by it is at fault."""

    exit_code = 2


class DataError(UsageError):
    """A text or data file is missing, unreadable or not what it should be."""


class CheckpointError(UsageError):
    """A checkpoint is missing, truncated, unsafe, or does not fit the request."""


class WriteError(LipformerError, OSError):
    """A file cannot be written: the disk is full, or the system refuses."""


class LostProcessError(LipformerError):
    """Another process that trained together with this one has ended, and this one cannot go on."""


class DivergedError(LipformerError):
    """Training reached a non-finite loss or gradient."""

    exit_code = 3


class Pruned(LipformerError):
    """A search has ended a training that is hopeless beside the others; the process did what it was asked to."""

    exit_code = 0


def one_line(error: BaseException) -> str:
    """Return an error in one line: its class, and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
