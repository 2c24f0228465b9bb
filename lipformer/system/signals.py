"""The signals by which a system ends a job: TERM, HUP (a terminal that is closed) and USR1 (a cluster's last warning).

They are answered by `Terminated`: at once, or, while a training goes, at the end of its step. A handler that is not
the default one stays: ``nohup`` ignores HUP, and launchers of clusters have handlers of their own.
"""

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

log = logging.getLogger(__name__)

EXIT_CODES = {"SIGTERM": 143, "SIGHUP": 129, "SIGUSR1": 138}
"""Of the process that one of them ends; the shell's 128 + number, as numbered on Linux."""
ENDING = tuple(getattr(signal, name) for name in EXIT_CODES if hasattr(signal, name))
"""Those of them that this system has."""


class Terminated(SystemExit):
    """A signal asked the job to end.

    Attributes:
        name: of the signal, such as ``SIGTERM``.
        code: exit code of the process.
    """

    def __init__(self, number: int):
        self.name = signal.Signals(number).name
        super().__init__(EXIT_CODES[self.name])

    def __str__(self) -> str:
        return f"terminated by the system ({self.name})"


class SignalWatch:
    """Answers the signals of `ENDING` while it is entered.

    The first one raises `Terminated`, at once or, in `deferred`, when `check` is called; further ones change nothing:
    shells and clusters send them twice, and the job is ending.

    Attributes:
        received: number of the first signal; 0 before.
    """

    def __init__(self) -> None:
        self.received = 0
        self._raised = False
        self._deferred = False
        self._process = os.getpid()
        self._before: dict[int, signal.Handlers] = {}

    def __enter__(self) -> "SignalWatch":
        self.received, self._raised, self._process = 0, False, os.getpid()
        if threading.current_thread() is threading.main_thread():  # no other thread can
            for number in ENDING:
                if signal.getsignal(number) is signal.SIG_DFL:
                    self._before[number] = signal.SIG_DFL
                    signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            return  # a worker that has just been forked; see `leave_signals_to_parent`
        if not self.received:
            self.received = number
            if self._deferred:
                log.warning("%s: stopping at the end of this step", signal.Signals(number).name)
            else:
                self.check()

    def check(self, received: int | None = None) -> None:
        """Raise `Terminated` if there was a signal, the first time it is asked.

        Args:
            received: number of a signal that another process has received; None for this process's own.
        """
        self.received = received or self.received
        if self.received and not self._raised:
            self._raised = True
            raise Terminated(self.received)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Let a signal wait for `check` while the block runs; one that still waits at its end is raised then.

        One that came before is raised at once: its first exception was swallowed, as an import or a destructor does.
        """
        if self.received:
            raise Terminated(self.received)
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False
        self.check()


ending_signals = SignalWatch()
"""Of this process: entered by the job that it runs, asked by the job's training between two steps."""


def leave_signals_to_parent(worker: int) -> None:
    """Let a process that prepares batches outlive signals to its whole group: the parent's step still needs its batch.

    It ends with its parent, which torch's worker watches. TERM stays torch's: by it the parent ends a worker, and waits
    for it without a limit. For ``DataLoader(worker_init_fn=)``.

    Args:
        worker: its number.
    """
    for number in {*ENDING, signal.SIGINT} - {signal.SIGTERM}:
        signal.signal(number, signal.SIG_IGN)
