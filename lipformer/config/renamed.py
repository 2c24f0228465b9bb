"""Keys of the command line that have a new name; the old one is refused with a message that gives the new one."""

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
"""Program -> its keys in version 0.1.0 -> the same keys today."""


def refuse_old_spellings(program: str, arguments: Sequence[str]) -> None:
    """Refuse arguments of version 0.1.0 that the program would not understand today, or would understand otherwise.

    Args:
        program: ``train`` or ``evaluate``.
        arguments: the arguments as typed.

    Raises:
        UsageError: there is one.
    """
    for argument in arguments:
        key, equals, value = argument.lstrip("+~").partition("=")
        if equals and key in RENAMED[program]:
            raise UsageError(f"{argument}: it is written {RENAMED[program][key]}={value} now")
        if equals and (program, key) == ("evaluate", "study") and {"null", "None", ""} & set(value.split(",")):
            raise UsageError(f"{argument}: what it stood for is study=score now, and the default")
