"""The signals by which a system ends a job: TERM, HUP (the terminal was closed) and USR1 (a cluster's last warning).

Each of them raises `Terminated`: at once or, during a training, at the end of the current step. A handler other than
the default one is kept: ``nohup`` ignores HUP, and cluster launchers install handlers of their own.
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
"""Exit code of a process that a signal ended: 128 + the number of the signal on Linux, as shells have it."""
ENDING = tuple(getattr(signal, name) for name in EXIT_CODES if hasattr(signal, name))
"""The ending signals that this system has."""


class Terminated(SystemExit):
    """A signal asked the job to end.

    Attributes:
        name: the name of the signal, such as ``SIGTERM``.
        code: exit code of the process.
    """

    def __init__(self, number: int):
        self.name = signal.Signals(number).name
        super().__init__(EXIT_CODES[self.name])

    def __str__(self) -> str:
        return f"terminated by the system ({self.name})"


class SignalWatch:
    """Context in which the signals of `ENDING` raise `Terminated`.

    The first signal raises it at once or, inside `deferred`, when `check` is called. Further ones are ignored: shells
    and clusters often send them twice, and the job is ending already.

    Attributes:
        received: number of the first signal; 0 if there was none.
    """

    def __init__(self) -> None:
        self.received = 0
        self._raised = False
        self._deferred = False
        self._process = os.getpid()
        self._before: dict[int, signal.Handlers] = {}

    def __enter__(self) -> "SignalWatch":
        self.received, self._raised, self._process = 0, False, os.getpid()
        if threading.current_thread() is threading.main_thread():  # only the main thread can set handlers
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
        """Raise `Terminated` if there was a signal; only the first call does.

        Args:
            received: number of a signal that another process has received; None for this process's own.
        """
        self.received = received or self.received
        if self.received and not self._raised:
            self._raised = True
            raise Terminated(self.received)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Delay a signal that arrives in the block until `check` is called, or until the block ends.

        A signal that came before the block raises at once: its first exception was swallowed, as an import or a
        destructor can do.
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
"""The watch of this process: the job enters it, and its training calls `check` between two steps."""


def leave_signals_to_parent(worker: int) -> None:
    """Ignore HUP, USR1 and Ctrl-C in a process that prepares batches: the step of its parent still needs its batch.

    For ``DataLoader(worker_init_fn=)``. The worker ends when its parent does, which torch checks. TERM is left to
    torch: the parent ends its workers by it and waits for them without a limit.

    Args:
        worker: number of the worker.
    """
    for number in {*ENDING, signal.SIGINT} - {signal.SIGTERM}:
        signal.signal(number, signal.SIG_IGN)
