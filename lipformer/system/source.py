"""Which code runs: the commit of its checkout, and the command line that started it."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

SECONDS = 10
"""The longest that an answer of git is waited for."""
ROOT = Path(__file__).parents[2]
"""The folder of the package, which is a checkout unless the package is installed."""
COMMANDS = Path(__file__).parents[1] / "program"
"""Where the programs that ``lipformer <command>`` runs are."""


def typed_command() -> str:
    """Return the command line of this process in a form that can be typed at the root of a checkout."""
    program = Path(sys.argv[0])
    if program.parent == COMMANDS:  # the command `lipformer` runs a module of this folder
        return spell_command("lipformer", program.stem, *sys.argv[1:])
    return spell_command(program.name, *sys.argv[1:])


def spell_command(program: str, *arguments: str) -> str:
    """Return a command line, quoted for a shell; a program that is a file of Python has the interpreter before it."""
    return shlex.join([*(["python"] if program.endswith(".py") else []), program, *arguments])


def code_commit() -> str | None:
    """Return the commit of the checkout that this code belongs to, with ``-dirty`` if files differ from it.

    None for an installed package, and if git is not available.
    """
    return _commit(ROOT) if (ROOT / ".git").exists() else None


def working_commit() -> str | None:
    """Return, likewise, the commit of the checkout that the working directory lies in; None if it is that of the code.

    It is that of a user's own parts and configuration.
    """
    try:
        top = _git(Path.cwd(), "rev-parse", "--show-toplevel")
    except OSError:  # the working directory was removed
        return None
    return None if top is None or os.path.realpath(top) == os.path.realpath(ROOT) else _commit(Path(top))


def _commit(root: Path) -> str | None:
    commit = _git(root, "rev-parse", "HEAD")
    changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=dirty")
    return None if commit is None or changed is None else commit + ("-dirty" if changed else "")


def _git(root: Path, *arguments: str) -> str | None:
    """Return the answer of git; None if there is no git, it refuses (another user owns the checkout) or takes long."""
    surroundings = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        done = subprocess.run(
            # A file system monitor is a program, which the configuration of any repository can name.
            ["git", "-c", "core.fsmonitor=false", "-C", str(root), *arguments],
            env={**surroundings, "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip()
