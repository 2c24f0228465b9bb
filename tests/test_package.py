"""What is installed: pinned versions, and a wheel that brings its configuration."""

import importlib.metadata
import itertools
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PINS = {
    re.sub(r"[-_.]+", "-", name).lower(): version
    for name, version in re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_every_requirement_is_pinned_within_its_range():
    requirements = itertools.chain(PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    for requirement in map(Requirement, requirements):
        if requirement.name != "lipformer":
            assert requirement.specifier.contains(PINS[requirement.name]), requirement


def test_no_release_with_known_malware_or_a_known_hole_can_be_chosen():
    lightning = next(r for r in map(Requirement, PROJECT["dependencies"]) if r.name == "pytorch-lightning")
    hydra = next(r for r in map(Requirement, PROJECT["dependencies"]) if r.name == "hydra-core")
    assert not any(lightning.specifier.contains(bad) for bad in ("2.6.2", "2.6.3", "2.6.5"))
    assert not any(hydra.specifier.contains(bad) for bad in ("1.3.3", "1.3.5"))
    assert "lightning" not in PINS


def test_what_runs_here_is_what_is_pinned():
    for name in ("torch", "pytorch-lightning", "hydra-core", "omegaconf", "wandb", "torchmetrics"):
        assert Version(importlib.metadata.version(name)).public == PINS[name], name


def test_the_wheel_brings_its_configuration(tmp_path):
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    shipped = {str(f.relative_to(ROOT / "conf")) for f in (ROOT / "conf").rglob("*.yaml")}
    packed = {str(f.relative_to(tmp_path / "site/lipformer/conf")) for f in (tmp_path / "site").rglob("*.yaml")}
    assert packed == shipped
    code = "import sys, lipformer.program.cli as c; assert 'site' in c.__file__; c.train()"
    done = subprocess.run(
        [sys.executable, "-c", code, "attention=l2", "--cfg", "job"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "L2Attention" in done.stdout
