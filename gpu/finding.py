"""The GPUs of this machine, by what was asked for."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from tensorcast.gpu.port import Gpu
from tensorcast.schema.errors import InvalidArgument, Unavailable

VARIABLE: Final = "TENSORCAST_GPU"
_FAKE: Final = re.compile(r"fake:(\d{1,2})x(\d{1,6})MiB(\+dmabuf)?")


class Found(NamedTuple):
    """The devices; without any, one sentence on why there are none."""

    gpus: tuple[Gpu, ...]
    why_not: str = ""


def check_wish(text: str) -> str:
    """The value of the variable. Raises InvalidArgument for what it cannot be."""
    if text not in ("auto", "off") and not _FAKE.fullmatch(text):
        raise InvalidArgument(
            f"{VARIABLE} is {text!r}.",
            hint="It must be auto or off; tests use devices of ordinary memory, as fake:2x256MiB.",
        )
    return text


def find_gpus(wish: str = "auto") -> Found:
    """Opens what the machine has: that there is none is no error."""
    if wish == "off":
        return Found((), "GPUs are switched off.")
    if (fake := _FAKE.fullmatch(wish)) is not None:
        from tensorcast.gpu.fake import FakeGpu

        count, mib, dmabuf = int(fake[1]), int(fake[2]), bool(fake[3])
        return Found(tuple(FakeGpu(n, mib << 20, dmabuf=dmabuf) for n in range(count)))
    try:
        from tensorcast.gpu.cuda import open_devices
        from tensorcast.gpu.library import Library

        found = open_devices(Library())
    except Unavailable as error:
        return Found((), error.message)
    return Found(found, "" if found else "The CUDA driver sees no device.")
