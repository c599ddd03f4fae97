"""pyverbs, from wherever this machine has it: the environment, or Debian's python3-pyverbs, which
lies beside it. Importing this module raises ImportError where there is none that works."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from typing import Final

DEBIAN: Final = "/usr/lib/python3/dist-packages"


def _adopt(folder: str) -> None:
    """Makes the package of that folder importable, and nothing else that lies there."""
    found = importlib.machinery.PathFinder.find_spec("pyverbs", [folder])
    if found is None or found.loader is None:
        raise ImportError(
            "There is no pyverbs: install Debian's python3-pyverbs, or rdma-core's with its Python."
        )
    module = importlib.util.module_from_spec(found)
    sys.modules["pyverbs"] = module
    found.loader.exec_module(module)


try:
    import pyverbs.device  # noqa: F401  (the package alone can be imported without its library)
except ImportError:
    sys.modules.pop("pyverbs", None)
    _adopt(DEBIAN)

import pyverbs.enums as enums  # noqa: E402
from pyverbs.addr import GID, AHAttr, GlobalRoute  # noqa: E402
from pyverbs.cq import CQ, WC, CompChannel  # noqa: E402
from pyverbs.device import Context  # noqa: E402
from pyverbs.mr import MR, MW, MWBindInfo  # noqa: E402
from pyverbs.pd import PD  # noqa: E402
from pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError  # noqa: E402
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr  # noqa: E402
from pyverbs.wr import SGE, RecvWR, SendWR  # noqa: E402

try:
    from pyverbs.mr import DmaBufMR
except ImportError:
    DmaBufMR = None

__all__ = [
    "AHAttr",
    "CQ",
    "CompChannel",
    "Context",
    "DmaBufMR",
    "GID",
    "GlobalRoute",
    "MR",
    "MW",
    "MWBindInfo",
    "PD",
    "PyverbsError",
    "PyverbsRDMAError",
    "QP",
    "QPAttr",
    "QPCap",
    "QPInitAttr",
    "RecvWR",
    "SGE",
    "SendWR",
    "WC",
    "enums",
]
