"""The policies of users: classes in the entry points `tensorcast.policies`, and in files.

They run in the control plane, with its rights: whoever may install a package or name a file for it
may do so. Nothing is ever loaded that came over the network.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Final

from tensorcast.controlplane.core.catalog import Catalog, Kind, kind_of, make_catalog
from tensorcast.controlplane.core.policies.base import Configured
from tensorcast.schema.errors import InvalidArgument, NotFound

GROUP: Final = "tensorcast.policies"


def load_catalog(labels: Sequence[str], files: Sequence[Path]) -> Catalog:
    """All policies: built in, of installed packages, and of these files or folders. Raises
    NotFound, or InvalidArgument for a file that cannot be loaded or has no policy."""
    further = [*_installed()]
    for path in files:
        further += load_file(path)
    return make_catalog(labels, further)


def _installed() -> Iterator[Kind]:
    for entry in entry_points(group=GROUP):
        try:
            found = entry.load()
        except (Exception, SystemExit) as error:  # anybody's code
            raise InvalidArgument(
                f"The policy {entry.name} of {entry.value} cannot be loaded: {error!r}."
            ) from error
        yield kind_of(found, f"entry point {entry.value}")


def load_file(path: Path) -> list[Kind]:
    """The policies in a file, or in the files of a folder: all classes there that are made from
    `Configured` and have a name. Raises as `load_catalog`."""
    if path.is_dir():
        return [kind for file in sorted(path.glob("*.py")) for kind in load_file(file)]
    if not path.is_file():
        raise NotFound(f"There is no file {path}.", hint="Name a Python file with a policy.")
    module = _run(path)
    own = (cls for _, cls in inspect.getmembers(module, inspect.isclass))
    classes = [
        cls
        for cls in own
        if cls.__module__ == module.__name__
        and issubclass(cls, Configured)
        and isinstance(getattr(cls, "name", None), str)
    ]
    if not classes:
        raise InvalidArgument(
            f"There is no policy in {path}.",
            hint="Write a class of Configured with a `name` and `react`: docs/policies.md.",
        )
    return [kind_of(cls, str(path)) for cls in classes]


def _run(path: Path) -> ModuleType:
    name = f"tensorcast_policy_{hashlib.blake2s(str(path.resolve()).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidArgument(f"{path} is not a Python file.", hint="Its name ends in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # anybody's code
        raise InvalidArgument(f"{path} cannot be loaded: {error!r}.") from error
    return module
