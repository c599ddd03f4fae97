"""Gets for a CUDA device: asks the mover for what is nearest to it, and has the bytes copied."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tensorcast.client.checking import check_bytes
from tensorcast.client.memory import map_segment
from tensorcast.client.naming import What, check_timeout, name_of, view_of
from tensorcast.schema.errors import Corrupt, InvalidArgument, NotFound
from tensorcast.schema.socket import Get, Granted
from tensorcast.schema.tensors import Index
from tensorcast.schema.views import Selected, View, resolve

if TYPE_CHECKING:
    import torch

    from tensorcast.client.on_device import Source
    from tensorcast.client.session import AsyncClient


async def get_on(
    client: AsyncClient,
    what: What,
    device: str | torch.device,
    names: Sequence[str] | str,
    view: View | None,
    *,
    check: bool,
    timeout: float,
) -> dict[str, torch.Tensor]:
    """As `AsyncClient.get` with a device. A check needs the bytes in the node's memory."""
    from tensorcast.client.devices import open_place
    from tensorcast.client.on_device import get_on_device

    place = await client.run(lambda _: open_place(device))
    grant, source = await _grant(client, what, timeout, may_be_gpu=not check)
    try:
        if check:
            found = source.memory
            memory = None if isinstance(found, memoryview) else found  # it was mapped
            await client.run(lambda stop: check_bytes(memory, grant.artifact, grant.manifest, stop))
        selected = select(names, view, grant.manifest.index)
        return await client.run(lambda _: get_on_device(source, selected, place))
    finally:
        source.close()


async def get_into_on(
    client: AsyncClient,
    what: What,
    device: str,
    tensors: Mapping[str, torch.Tensor],
    view: View,
    strict: bool,
    timeout: float,
) -> None:
    """As `AsyncClient.get_into`, for targets on a device."""
    from tensorcast.client.devices import open_place
    from tensorcast.client.on_device import get_into_device

    place = await client.run(lambda _: open_place(device))
    grant, source = await _grant(client, what, timeout, may_be_gpu=True)
    try:
        selected = resolve(view, grant.manifest.index)
        await client.run(lambda _: get_into_device(source, selected, tensors, place, strict=strict))
    finally:
        source.close()


async def _grant(
    client: AsyncClient, what: What, timeout: float, *, may_be_gpu: bool
) -> tuple[Granted, Source]:
    """The right to read an artifact, and where its bytes are; the caller closes that."""
    from tensorcast.client.on_device import Source

    check_timeout(timeout)
    await client.position.settled()
    request = Get(what=name_of(what), after=client.position.seq, timeout_s=timeout, gpu=may_be_gpu)
    answer, descriptors = await client.mover.ask(request, Granted, timeout=timeout)
    if answer.gpu is None:
        return answer, Source(map_segment(descriptors, answer.manifest.size_bytes))
    if len(descriptors) != 1:
        raise Corrupt("The mover lends memory of a GPU without a lifeline.")
    return answer, Source(None, answer.gpu, descriptors[0])


def device_of(tensors: Mapping[str, torch.Tensor]) -> str | None:
    """The CUDA device of targets; None when they are all in ordinary memory. Raises
    InvalidArgument for targets on several."""
    if "torch" not in sys.modules or not isinstance(tensors, Mapping):
        return None
    devices = {str(getattr(one, "device", "cpu")) for one in tensors.values()}
    if not any(name.startswith("cuda") for name in devices):
        return None
    if len(devices) > 1:
        raise InvalidArgument(
            f"The targets are on {', '.join(sorted(devices))}.",
            hint="Fill those of one device at a time, with strict=False.",
        )
    return devices.pop()


def select(names: Sequence[str] | str, view: View | None, index: Index) -> tuple[Selected, ...]:
    """The tensors of these exact names (or of this one), in the order of the names, or those of a
    view. Raises NotFound, and InvalidArgument for both at once."""
    names = (names,) if isinstance(names, str) else names
    if not isinstance(names, Sequence):
        raise InvalidArgument(f"{names!r} names no tensors.", hint="Give a list of names.")
    if not names:
        return resolve(view_of(view), index)
    if view is not None:
        raise InvalidArgument("Names and a view exclude each other.", hint="Use View.tensors().")
    specs = {spec.name: spec for spec in index}
    for name in names:
        if name not in specs:
            raise NotFound(
                f"No tensor is named {name!r}.", hint="`tcctl artifact tensors` lists the names."
            )
    return tuple(Selected(specs[name]) for name in dict.fromkeys(names))
