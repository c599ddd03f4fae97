"""To act once a module has been imported, without importing it: for plugins that are called in
processes which may never need it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def when_imported(module: str, act: Callable[[], None]) -> None:
    """Calls `act` when the code of `module` has run, at once if it has. What it raises comes out of
    that import: it should not raise."""
    loaded = sys.modules.get(module)
    spec = getattr(loaded, "__spec__", None)
    if loaded is not None and not getattr(spec, "_initializing", False):
        act()
        return
    sys.meta_path.insert(0, _Watcher(module, act))


class _Watcher(MetaPathFinder):
    """Finds one module as it would be found without it, and acts after it was loaded."""

    def __init__(self, module: str, act: Callable[[], None]) -> None:
        self._module = module
        self._act = act

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        loader = spec.loader if spec is not None else None
        if loader is None or not hasattr(loader, "exec_module"):
            return spec
        execute = loader.exec_module

        def execute_and_act(module: ModuleType) -> None:
            execute(module)
            self._act()

        loader.exec_module = execute_and_act  # type: ignore[method-assign]  # of this one loader
        return spec
