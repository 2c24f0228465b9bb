"""Keys of the command line that have another name now: refused with the new one, never read as something else."""

from collections.abc import Sequence

from lipformer.errors import UsageError

RENAMED: dict[str, dict[str, str]] = {
    "train": {"callbacks.stability.dear_every_n_steps": "callbacks.stability.expensive_every_n_steps"},
    "evaluate": {
        "p": "study.p",
        "length": "study.length",
        "runs": "study.runs",
        "workspace.project": "study.project",
        "workspace.entity": "study.entity",
    },
}
"""Program -> its keys as version 0.1.0 wrote them, with the keys of today."""


def refuse_old_spellings(program: str, arguments: Sequence[str]) -> None:
    """Refuse what a program read in version 0.1.0 and would not understand, or take for something else, now.

    Args:
        program: ``train`` or ``evaluate``.
        arguments: as typed.

    Raises:
        UsageError: one of them is spelled as it was.
    """
    for argument in arguments:
        key, equals, value = argument.lstrip("+~").partition("=")
        if equals and key in RENAMED[program]:
            raise UsageError(f"{argument}: it is written {RENAMED[program][key]}={value} now")
        if equals and (program, key) == ("evaluate", "study") and {"null", "None", ""} & set(value.split(",")):
            raise UsageError(f"{argument}: what it stood for is study=score now, and the default")
