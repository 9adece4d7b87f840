"""What a package index and a type checker read: bounds with reasons, extras, version, types."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import jellybean
from jellybean_protos.extras import MODULES_OF_EXTRAS

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
PYPROJECT: dict[str, Any] = tomllib.loads(TEXT)
PROJECT = PYPROJECT["project"]
PACKAGES = [ROOT / path for path in PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]


def test_every_requirement_has_an_upper_bound_with_its_reason() -> None:
    extras = PROJECT["optional-dependencies"]
    texts = [*PROJECT["dependencies"], *(text for texts in extras.values() for text in texts)]
    requirements = [Requirement(text) for text in texts if not text.startswith(PROJECT["name"])]
    assert len(requirements) > 30
    for requirement in requirements:
        operators = {clause.operator for clause in requirement.specifier}
        assert operators in ({">=", "<"}, {"=="}), f"{requirement}: give it a lower and an upper bound"
    reasons = re.findall(r'^  "([^"]+)",(?:  # (\S.*))?$', TEXT[: TEXT.index("[project.scripts]")], re.MULTILINE)
    reason_by_text = {text: reason for text, reason in reasons if re.search("[<=]", text)}
    assert set(reason_by_text) == {text for text in texts if not text.startswith(PROJECT["name"])}
    assert [text for text, reason in reason_by_text.items() if not reason] == []


def test_every_extra_that_a_text_names_exists() -> None:
    files = [path for package in PACKAGES for path in package.rglob("*.py")]
    files += [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    named: dict[str, Path] = {}
    for path in files:
        for extras in re.findall(r"(?:jellybean-serving|'\.|\.whl)\[([a-z0-9,-]+)\]", path.read_text(encoding="utf-8")):
            named.update(dict.fromkeys(extras.split(","), path))
    assert {"all", "train", "operator"} <= set(named)
    assert {extra: path for extra, path in named.items() if extra not in PROJECT["optional-dependencies"]} == {}


def test_every_extra_that_messages_offer_exists() -> None:
    assert set(MODULES_OF_EXTRAS) <= set(PROJECT["optional-dependencies"])


def test_the_package_has_the_version_that_is_installed() -> None:
    assert jellybean.__version__ == version("jellybean-serving")


def test_a_version_fits_a_label_and_a_tag_of_kubernetes() -> None:
    """A local part begins with "+", which neither may have."""
    assert PYPROJECT["tool"]["hatch"]["version"]["raw-options"]["local_scheme"] == "no-local-version"
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", PYPROJECT["tool"]["hatch"]["version"]["fallback-version"])
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", jellybean.__version__)


def test_an_unknown_attribute_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'versio'"):
        jellybean.versio  # type: ignore[attr-defined]  # noqa: B018


def test_every_import_package_is_typed_and_checked_for_its_imports() -> None:
    assert {path.name for path in PACKAGES} == set(PYPROJECT["tool"]["importlinter"]["root_packages"])
    assert [path for path in PACKAGES if not (path / "py.typed").is_file()] == []
    assert "Typing :: Typed" in PROJECT["classifiers"]


def test_the_classifiers_begin_at_the_lowest_python_that_installs() -> None:
    prefix = "Programming Language :: Python :: 3."
    minors = sorted(int(name.removeprefix(prefix)) for name in PROJECT["classifiers"] if name.startswith(prefix))
    assert PROJECT["requires-python"] == f">=3.{minors[0]}"
    assert minors == list(range(minors[0], minors[-1] + 1))


def test_the_citation_names_what_the_metadata_name() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"license: {PROJECT['license']}\n" in citation
    assert f"  - name: {PROJECT['authors'][0]['name']}\n" in citation
    assert f"abstract: {PROJECT['description']}\n" in citation
    assert Version(PYPROJECT["tool"]["hatch"]["version"]["fallback-version"]).is_devrelease
