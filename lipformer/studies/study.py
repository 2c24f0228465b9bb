"""A study: one question, answered by ``python evaluate.py study=<name>`` in a folder of its own."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from lipformer.config import EvaluateConfig
from lipformer.config.targets import factory
from lipformer.errors import UsageError
from lipformer.options.study import StudyOptions


@runtime_checkable
class Study(Protocol):
    """What a class needs to be chosen by ``study=``; it is constructed with the options of its YAML, by their names.

    A study that trains starts ``train.py -m`` in a process of its own and reads the run folders that come of it.
    """

    def run(self, settings: EvaluateConfig, folder: Path) -> float | None:
        """Answer the question: print what was found, and leave files in `folder`.

        Args:
            settings: the validated configuration: what stands at the root, such as ``checkpoint``; the study's own
                options are in ``settings.study``, and the study has them already.
            folder: exists, empty but for the log; the study writes nowhere else.

        Returns:
            The figure that a sweep over studies compares, the smaller the better; None where there is none.

        Raises:
            LipformerError: the question cannot be answered, and why, in one line; a ``UsageError`` where what was
                typed is at fault.
        """


def open_study(node: StudyOptions | Mapping[str, Any]) -> Study:
    """Import the class that ``study`` names and construct it with its options.

    Args:
        node: ``_target_`` and options, checked where they have a schema.

    Raises:
        UsageError: there is no such class, it refuses its options, or is no study.
    """
    options = asdict(node) if isinstance(node, StudyOptions) else node
    if not isinstance(options, Mapping) or not isinstance(options.get("_target_"), str):
        raise UsageError("study: it names no class; give study._target_=<package.Class>")
    make = factory(options, "study")
    try:
        study = make()
    except (TypeError, ValueError) as error:
        raise UsageError(f"study: {error}") from error
    if not isinstance(study, Study):
        raise UsageError(f"study._target_={options['_target_']}: it has no method run(settings, folder)")
    return study
