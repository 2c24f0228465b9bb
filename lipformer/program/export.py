"""The command ``lipformer export``, which needs no run folder of its own."""

import os
import sys
import traceback
from collections.abc import Sequence

from lipformer.errors import UsageError
from lipformer.options.export import ExportOptions
from lipformer.runs.outcome import Outcome
from lipformer.system.signals import ending_signals
from lipformer.system.text import print_error

NAME = "lipformer export"


def export() -> None:
    """Entry point of ``lipformer export``: export a model, and exit with the code of the outcome."""
    arguments = sys.argv[1:]
    if {"--help", "-h"} & set(arguments):
        print(usage())
        return
    outcome = Outcome()
    try:
        with ending_signals:
            options = read_options(arguments)
            from lipformer.assembly.export import export_run

            folder = export_run(
                options.checkpoint, options.to, which=options.which, allow_targets=options.allow_targets
            )
        print(f"exported to {folder}; read it with: python evaluate.py checkpoint={folder}")
    except BaseException as error:
        outcome.end_by(error)
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            traceback.print_exc()
        print_error(outcome.reason)
    sys.exit(outcome.exit_code)


def usage() -> str:
    """Return what ``lipformer export --help`` shows."""
    defaults = ExportOptions.defaults()
    written = {f"{name}={defaults[name]}": meaning for name, meaning in ExportOptions.meanings().items()}
    width = max(map(len, written))
    lines = "\n".join(f"  {key:{width}}  # {meaning}" for key, meaning in written.items())
    return f"usage: {NAME} checkpoint=<run folder or .ckpt> to=<new folder> [key=value] ...\n\n{lines}"


def read_options(arguments: Sequence[str]) -> ExportOptions:
    """Return the options that were typed, ``key=value`` as for the other programs.

    Raises:
        UsageError: a key is unknown, is given twice, or has no value; a value is of another type or out of its range.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from lipformer.config.suggestions import suggest

    known = ExportOptions.defaults()
    config = OmegaConf.structured(ExportOptions)
    typed: set[str] = set()
    for argument in arguments:
        if "=" not in argument or argument.startswith("-"):
            raise UsageError(f"{argument}: keys are written key=value, such as checkpoint={argument.lstrip('-')}")
        try:
            override = OverridesParser.create().parse_override(argument)
            key, value = override.key_or_group, override.value()
        except HydraException as error:
            key, _, value = argument.partition("=")
            raise UsageError(f"{argument}: quote a value that holds = , or brackets: '{key}=\"{value}\"'") from error
        if key not in known or override.is_add() or override.is_delete():
            raise UsageError(f"unknown key {key}{suggest(key, known)}; {NAME} has {', '.join(known)}")
        if key in typed:
            raise UsageError(f"{key}: it is given twice")
        if override.is_sweep_override():
            raise UsageError(f"{key}: one value only; quote a value that holds a comma")
        typed.add(key)
        try:
            OmegaConf.update(config, key, value)
        except OmegaConfBaseException as error:
            raise UsageError(f"{argument}: {str(error).splitlines()[0]}") from error
    for key in known:
        if OmegaConf.is_missing(config, key):
            raise UsageError(f"{key} is not set: give {key}=<value>; {NAME} --help lists the keys")
    options = OmegaConf.to_object(config)
    for key, value, wanted in ExportOptions.faults(vars(options)):
        raise UsageError(f"{key}={value}: it must be {wanted}")
    assert isinstance(options, ExportOptions)
    return options


if __name__ == "__main__":
    export()
