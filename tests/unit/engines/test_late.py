"""Acting after an import that somebody else makes."""

from __future__ import annotations

import importlib
import sys

import pytest

from tensorcast.engines.late import when_imported


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module that nobody has imported yet."""
    (tmp_path / "seldom_used.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "seldom_used"
    sys.modules.pop("seldom_used", None)


def test_it_acts_after_the_module_and_imports_nothing_itself(module):
    seen = []
    before = list(sys.meta_path)
    when_imported(module, lambda: seen.append(sys.modules[module].VALUE))
    assert module not in sys.modules
    assert seen == []
    found = importlib.import_module(module)
    assert seen == [1]
    assert sys.meta_path == before
    assert found.__spec__.loader.get_source(module) == "VALUE = 1\n"
    importlib.reload(found)


def test_what_was_imported_already_counts(module):
    importlib.import_module(module)
    seen = []
    when_imported(module, lambda: seen.append(1))
    assert seen == [1]


def test_several_may_wait_for_one_module(module):
    seen = []
    when_imported(module, lambda: seen.append("a"))
    when_imported(module, lambda: seen.append("b"))
    importlib.import_module(module)
    assert sorted(seen) == ["a", "b"]


def test_a_module_that_is_not_there_is_missing_as_before(tmp_path):
    before = list(sys.meta_path)
    when_imported("never_there_at_all", lambda: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("never_there_at_all")
    assert sys.meta_path == before
