"""The adapters that a mover uses: chosen, opened, and what they can do."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Sequence

import msgspec

from tensorcast.movers.transports.rdma import verbs
from tensorcast.schema.errors import Unavailable
from tensorcast.schema.rdma import RdmaSettings
from tensorcast.storage.nics import (
    Nic,
    Place,
    Port,
    choose_near,
    names_taken,
)

making = threading.Lock()
"""Held by whoever opens or closes what has a descriptor of the kernel's for events: which one is
that of a new completion channel can only be told by comparing."""


class Abilities(msgspec.Struct, frozen=True, kw_only=True):
    """`reads_answered` and `reads_started`: READs at a time of one queue pair, as the answering and
    as the asking end. `mtu` is the number of the port's path MTU."""

    reads_answered: int
    reads_started: int
    has_windows: bool
    has_odp: bool
    mtu: int


class Device:
    """An open adapter with a protection domain, used through one port. Owns both until `close`;
    what was made with it must be closed before. `has_refused`: memory could not be registered."""

    def __init__(self, nic: Nic, port: Port, settings: RdmaSettings) -> None:
        self.name = nic.name
        self.port = port
        self.settings = settings
        self.has_refused = False
        with contextlib.ExitStack() as opened:
            with making:
                self.context = verbs.Context(name=nic.name)
            opened.callback(self._close_context)
            self.domain = verbs.PD(self.context)
            opened.callback(self.domain.close)
            self.abilities = _abilities(self.context, port.number)
            opened.pop_all()

    @property
    def uses_windows(self) -> bool:
        return self.settings.windows and self.abilities.has_windows

    @property
    def uses_odp(self) -> bool:
        return self.settings.odp and self.abilities.has_odp

    def close(self) -> None:
        """Gives the adapter back. Safe to repeat."""
        self.domain.close()
        self._close_context()

    def _close_context(self) -> None:
        with making:
            self.context.close()


def _abilities(context: verbs.Context, port: int) -> Abilities:
    found = context.query_device()
    windows = verbs.enums.IBV_DEVICE_MEM_WINDOW_TYPE_2B
    return Abilities(
        reads_answered=max(1, found.max_qp_rd_atom),
        reads_started=max(1, found.max_qp_init_rd_atom),
        has_windows=bool(found.device_cap_flags & windows),
        has_odp=_has_odp(context),
        mtu=context.query_port(port).active_mtu,
    )


def _has_odp(context: verbs.Context) -> bool:
    """Whether the device can be READ from memory that is not pinned."""
    try:
        caps = context.query_device_ex().odp_caps
    except verbs.PyverbsError:
        return False
    return bool(caps.rc_odp_caps & verbs.enums.IBV_ODP_SUPPORT_READ)


def open_devices(
    nics: Sequence[Nic],
    settings: RdmaSettings,
    but: Collection[tuple[str, int]] = (),
    places: Sequence[Place] = (),
) -> tuple[Device, ...]:
    """The adapters that are worth using, for memory in these places, best first; but those (by name
    and port) that are open already. Raises Unavailable when there is none, with the reason."""
    choices = choose_near(nics, places, settings.devices)
    taken = names_taken(choices)
    if not taken:
        why = "; ".join(f"{one.nic}: {one.why}" for one in choices) or "the kernel knows none"
        raise Unavailable(f"There is no RDMA device to use: {why}.")
    known = {(nic.name, port.number): (nic, port) for nic in nics for port in nic.ports}
    opened: list[Device] = []
    try:
        for name in (one for one in taken if one not in but):
            opened.append(Device(*known[name], settings))
    except verbs.PyverbsError as error:
        for device in opened:
            device.close()
        raise Unavailable(
            f"RDMA device {name[0]} cannot be opened: {error}.",
            hint="Run `tcctl doctor rdma`.",
        ) from error
    return tuple(opened)
