"""The documentation says what the code says."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def generator():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_up_to_date():
    for path, text in generator().pages().items():
        assert path.read_text() == text, f"Run scripts/docs: docs/{path.name} is out of date."


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[\w-]*)?\)", page.read_text())
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing, f"{page.name} links to what is not there: {missing}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page):
    """Paths in backticks that begin with a room or a folder of the repository."""
    named = re.findall(
        r"`((?:schema|controlplane|movers|client|cli|deploy|engines|log|migrations|tests|docs|"
        r"scripts|examples|benchmarks)/[\w./-]*\w)`",
        page.read_text(),
    )
    missing = [name for name in named if not list(ROOT.glob(name.rstrip("/")))]
    assert not missing, f"{page.name} names what is not there: {missing}"


def test_events_that_are_named_exist():
    """Types of events in the story of a transfer."""
    from tensorcast.schema.events import EVENT_TYPES, AggregateKind

    text = (ROOT / "docs" / "life-of-a-transfer.md").read_text()
    kinds = "|".join(AggregateKind)
    named = set(re.findall(rf"`((?:{kinds})\.[a-z_]+)`", text))
    assert named
    assert named <= set(EVENT_TYPES) | {"operation.wait", "key.show"}


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_an_example_needs_only_what_the_install_brings(path):
    imported = re.findall(r"^\s*(?:import|from)\s+(\w+)", path.read_text(), re.MULTILINE)
    assert "tensorcast" in imported
    assert set(imported) <= {*sys.stdlib_module_names, "tensorcast", "torch"}
