"""The plan of a sweep is a command line, and may be somebody else's: what could run code has to be typed again."""

import re
from collections.abc import Sequence

from lipformer.errors import UsageError
from lipformer.runs import layout
from lipformer.runs.sweep import SweepPlan
from lipformer.system.text import visible

SUBDIR = "hydra.sweep.subdir"
PLAIN = re.compile(r"[\w.,\[\]+ -]*")
"""Values of a launcher's options; with a newline, one could add a line to the script that sbatch runs."""
RUNS_CODE = ("setup", "additional_parameters", "address")
"""Options of launchers that hold commands, or name a cluster that takes part in the sweep."""
OWN_KEY = re.compile(r"\$\{\.*[A-Za-z_][\w.]*\}")
HYDRA_KEY = re.compile(r"\$\{hydra[.:][\w.]+\}")
LONGEST = 200
"""Characters of an argument that a message shows."""


def refuse_untrusted(plan: SweepPlan, typed: Sequence[str], folder: str) -> None:
    """Refuse a plan with arguments that could run code, read the environment or look elsewhere for configurations.

    Args:
        plan: the plan of the sweep.
        typed: the command line by which it is resumed; what is typed there is the user's own.
        folder: the folder of the sweep, as typed.

    Raises:
        UsageError: there is such an argument, and it was not typed again.
    """
    # A job has one of the values that its argument was typed with, in Hydra's spelling.
    own = {_bare(value) for argument in typed for value in (argument, *_each_value(argument))}
    harmful = [text for text in plan.arguments if _can_harm(text) and text not in typed]
    harmful += [text for job in plan.jobs for text in job if _can_harm(text) and _bare(text) not in own]
    if harmful:
        shown = " ".join(visible(harmful[0]).split())
        shown = shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}..."
        raise UsageError(
            f"{shown}: stands in the {layout.SWEEP_PLAN} of {folder} and could run code: if you trust it, type the "
            f"whole command again beside sweep.resume={folder}"
        )


def _can_harm(argument: str) -> bool:
    key, _, value = argument.partition("=")
    key = key.lstrip("+~").strip()
    if argument.startswith("-") or "_target_" in argument or re.search(r"\ballow_targets\b", argument):
        return True
    known = HYDRA_KEY.sub("", value) if key == SUBDIR else value
    if "${" in OWN_KEY.sub(lambda found: "" if "{hydra" not in found[0] else found[0], known) or "${" in key:
        return True
    return "hydra" in re.split(r"[./@:\[\]\s]", key) and not _is_known(key, value)


def _is_known(key: str, value: str) -> bool:
    """Return whether an argument of Hydra says no more than where the jobs run and what their folders are."""
    if key in ("hydra.sweep.dir", SUBDIR):
        return True
    option = key.removeprefix("hydra.launcher.")
    launches = key == "hydra/launcher" or (option != key and option.isidentifier() and option not in RUNS_CODE)
    return launches and PLAIN.fullmatch(value) is not None


def _each_value(argument: str) -> list[str]:
    key, _, values = argument.partition("=")
    return [f"{key.lstrip('+')}={value}" for value in re.split(r"[,()]", values)]


def _bare(argument: str) -> str:
    return re.sub(r"[\s'\"]", "", argument).lstrip("+")
