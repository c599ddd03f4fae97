"""A reliable connected queue pair with its completions. Every call returns at once but `wait`."""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import select
from collections.abc import Sequence
from typing import Final

import msgspec

from tensorcast.movers.core.fabric import agree_mtu, agree_reads
from tensorcast.movers.transports.rdma import verbs
from tensorcast.movers.transports.rdma.device import Device, making
from tensorcast.movers.transports.rdma.region import Registration, register_host
from tensorcast.movers.transports.rdma.route import Route, addresses, choose_route
from tensorcast.movers.transports.rdma.statuses import SUCCESS
from tensorcast.movers.transports.rdma.wire import (
    BUFFERS,
    LANDINGS,
    MESSAGE_BYTES_MAX,
    PUSH_BYTES,
    Address,
    Card,
    Push,
)
from tensorcast.schema.errors import Unavailable
from tensorcast.storage.memory import address_of

WORK_MAX: Final = 256
"""Requests that may be posted at a time: READs, messages, binding and unbinding of windows."""

INLINE_BYTES: Final = 220
RNR_TIMER: Final = 12  # 0.64 ms (IBTA, table 45)
RNR_RETRIES: Final = 6
POLLS: Final = 32


class Done(msgspec.Struct, frozen=True):
    """A request that has ended: `number` is the one it was posted with. `pushed`: the immediate
    value of a push that has come."""

    number: int
    status: int
    size_bytes: int
    pushed: int | None = None


class Endpoint:
    """Owns queue pair, completion queue and message buffers until `close`. For one thread. `lands`:
    the peer may push into the landings, and nowhere else."""

    def __init__(self, device: Device, *, lands: bool = False) -> None:
        self._access = int(verbs.enums.IBV_ACCESS_REMOTE_READ)
        self.device = device
        self.route: Route | None = None
        self.reads_max = 1
        self._packet = secrets.randbits(24)
        self._told = 0
        with contextlib.ExitStack() as opened:
            self._channel, self.fd = _make_channel(device)
            opened.callback(_close_channel, self._channel)
            self._queue = verbs.CQ(device.context, WORK_MAX + BUFFERS, None, self._channel, 0)
            opened.callback(self._queue.close)
            self._memory = mmap.mmap(-1, 2 * BUFFERS * MESSAGE_BYTES_MAX)
            self.buffers = memoryview(self._memory)
            self._address = address_of(self.buffers)
            self._registered = register_host(
                device, self._address, len(self._memory), verbs.enums.IBV_ACCESS_LOCAL_WRITE
            )
            opened.callback(self._registered.close)
            self._landings: _Landings | None = None
            if lands:
                self._landings = _Landings(device)
                opened.callback(self._landings.close)
                self._access |= verbs.enums.IBV_ACCESS_REMOTE_WRITE
            self._pair, self.inline_bytes = self._make_pair()
            opened.callback(self._pair.close)
            self._initialize()
            self._opened = opened.pop_all()

    def _make_pair(self) -> tuple[verbs.QP, int]:
        """A queue pair whose small messages need no buffer, where the device can do that."""
        for inline_bytes in (INLINE_BYTES, 0):
            cap = verbs.QPCap(
                max_send_wr=WORK_MAX,
                max_recv_wr=BUFFERS,
                max_send_sge=1,
                max_recv_sge=1,
                max_inline_data=inline_bytes,
            )
            init = verbs.QPInitAttr(
                qp_type=verbs.enums.IBV_QPT_RC, scq=self._queue, rcq=self._queue, cap=cap
            )
            try:
                return verbs.QP(self.device.domain, init), inline_bytes
            except verbs.PyverbsError as error:
                refusal = error
        raise Unavailable(f"Device {self.device.name} gives no queue pair: {refusal}.")

    def _initialize(self) -> None:
        attributes = verbs.QPAttr(port_num=self.device.port.number)
        attributes.qp_access_flags = self._access
        self._pair.to_init(attributes)
        for number in range(BUFFERS):
            self.post_buffer(number)
        self._queue.req_notify()

    # ---- connecting ------------------------------------------------------------------------

    def card(self) -> Card:
        """How the peer reaches this queue pair: once it is connected, the address that it uses."""
        device, wished = self.device, self.device.settings.mtu_bytes
        first, *others = addresses(device.port, device.settings) or (Address(gid="", kind=""),)
        if self.route is not None and self.route.source is not None:
            source, others = self.route.source, []
            first = Address(gid=source.address, kind=source.kind)
        return Card(
            number=self._pair.qp_num,
            packet=self._packet,
            link=device.port.link,
            lid=device.port.lid,
            gid=first.gid,
            gid_kind=first.kind,
            others=tuple(others),
            mtu=agree_mtu(device.abilities.mtu, device.abilities.mtu, wished),
            reads_answered=device.abilities.reads_answered,
            reads_started=device.abilities.reads_started,
        )

    def connect(self, peer: Card) -> None:
        """From now on requests may be posted. Raises Unavailable when there is no way to the
        peer."""
        device, settings, abilities = self.device, self.device.settings, self.device.abilities
        self.route = choose_route(device.name, device.port, peer, settings)
        self.reads_max = agree_reads(
            abilities.reads_started, peer.reads_answered, settings.reads_max
        )
        attributes = verbs.QPAttr(port_num=device.port.number)
        attributes.qp_access_flags = self._access
        attributes.path_mtu = agree_mtu(abilities.mtu, peer.mtu, settings.mtu_bytes)
        attributes.dest_qp_num = peer.number
        attributes.rq_psn = peer.packet
        attributes.sq_psn = self._packet
        attributes.max_rd_atomic = self.reads_max
        attributes.max_dest_rd_atomic = agree_reads(
            abilities.reads_answered, peer.reads_started, abilities.reads_answered
        )
        attributes.min_rnr_timer = RNR_TIMER
        attributes.timeout = settings.ack_exponent
        attributes.retry_cnt = settings.retries
        attributes.rnr_retry = RNR_RETRIES
        attributes.ah_attr = handle_of(self.route, device.port.number)
        try:
            self._pair.to_rts(attributes)
        except verbs.PyverbsError as error:
            raise Unavailable(f"{device.name} finds no way to the peer: {error}.") from error

    # ---- requests --------------------------------------------------------------------------

    def post_read(
        self, number: int, target: tuple[int, int], size_bytes: int, source: tuple[int, int]
    ) -> None:
        """READs from `source` into `target`, both (address, key)."""
        request = self._request(
            number, verbs.enums.IBV_WR_RDMA_READ, (target[0], size_bytes, target[1])
        )
        request.set_wr_rdma(source[1], source[0])
        self._pair.post_send(request)

    def post_push(self, push: Push, value: int) -> None:
        """WRITEs into the peer's memory, and tells it with an immediate value of 32 bits."""
        kind = verbs.enums.IBV_WR_RDMA_WRITE_WITH_IMM
        address, key = push.source
        request = self._request(push.number, kind, (address, push.size_bytes, key))
        request.imm_data = value
        request.set_wr_rdma(push.target[1], push.target[0])
        self._pair.post_send(request)

    def landing(self, slot: int) -> tuple[int, int]:
        """Where the peer may push to: address and key."""
        assert self._landings is not None, "made with `lands`"
        return self._landings.address + slot * PUSH_BYTES, self._landings.region.rkey

    def landed(self, slot: int, size_bytes: int) -> memoryview:
        """What was pushed there. Valid until the slot is offered again."""
        assert self._landings is not None, "made with `lands`"
        start = slot * PUSH_BYTES
        return self._landings.memory[start : start + size_bytes]

    def post_message(self, number: int, slot: int, content: bytes) -> None:
        """Sends a message out of send buffer `slot`, or without one when it is small."""
        start = (BUFFERS + slot) * MESSAGE_BYTES_MAX
        self.buffers[start : start + len(content)] = content
        where = (self._address + start, len(content), self._registered.lkey)
        flags = verbs.enums.IBV_SEND_INLINE if len(content) <= self.inline_bytes else 0
        self._pair.post_send(self._request(number, verbs.enums.IBV_WR_SEND, where, flags))

    def post_buffer(self, slot: int) -> None:
        """Gives receive buffer `slot` to the adapter; its completion has that number."""
        where = self._address + slot * MESSAGE_BYTES_MAX
        entry = verbs.SGE(where, MESSAGE_BYTES_MAX, self._registered.lkey)
        self._pair.post_recv(verbs.RecvWR(wr_id=slot, sg=[entry], num_sge=1))

    def message(self, slot: int, size_bytes: int) -> bytes:
        """What came into a receive buffer."""
        start = slot * MESSAGE_BYTES_MAX
        return bytes(self.buffers[start : start + min(size_bytes, MESSAGE_BYTES_MAX)])

    def bind(
        self, number: int, window: verbs.MW, memory: Registration, start: int, size: int
    ) -> int:
        """Lets the key that is returned read bytes of registered memory through this queue
        pair."""
        info = verbs.MWBindInfo(memory.region, start, size, verbs.enums.IBV_ACCESS_REMOTE_READ)
        request = self._request(number, verbs.enums.IBV_WR_BIND_MW, None)
        request.set_bind_wr(window, info)  # with the key after the window's
        self._pair.post_send(request)
        return int(request.rkey)

    def unbind(self, number: int, key: int) -> None:
        """Ends a key."""
        request = self._request(number, verbs.enums.IBV_WR_LOCAL_INV, None)
        request.imm_data = key  # one union with the key to invalidate (libibverbs/verbs.h)
        self._pair.post_send(request)

    def _request(
        self, number: int, kind: int, where: tuple[int, int, int] | None, flags: int = 0
    ) -> verbs.SendWR:
        entries = [verbs.SGE(*where)] if where else []
        return verbs.SendWR(
            wr_id=number,
            opcode=kind,
            num_sge=len(entries),
            sg=entries,
            send_flags=flags | verbs.enums.IBV_SEND_SIGNALED,
        )

    # ---- completions -----------------------------------------------------------------------

    def poll(self) -> list[Done]:
        """What has ended by now."""
        found: list[Done] = []
        while True:
            count, completions = self._queue.poll(POLLS)
            found += map(_done, completions)
            if count < POLLS:
                return found

    def wait(self, others: Sequence[int], timeout_s: float) -> set[int]:
        """Sleeps until something has ended, one of the other descriptors can be read, or time is
        up; which descriptors. The next `poll` must follow: only what ends after it wakes again."""
        poll = select.poll()
        for fd in (self.fd, *others):
            poll.register(fd, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(timeout_s * 1000)}
        if self.fd in ready:
            self._channel.get_cq_event(self._queue)
            self._told += 1
            self._queue.req_notify()
        return ready

    def close(self) -> None:
        """Ends the queue pair: when it returns, nothing reads or writes for it any more. Safe to
        repeat."""
        if self._told:
            self._queue.ack_events(self._told)
            self._told = 0
        self._opened.close()


class _Landings:
    """Memory for pushes, the only memory here that a peer may write to."""

    def __init__(self, device: Device) -> None:
        size_bytes = LANDINGS * PUSH_BYTES
        self.memory = memoryview(mmap.mmap(-1, size_bytes))
        self.address = address_of(self.memory)
        access = verbs.enums.IBV_ACCESS_LOCAL_WRITE | verbs.enums.IBV_ACCESS_REMOTE_WRITE
        self.region = register_host(device, self.address, size_bytes, access)

    def close(self) -> None:
        self.region.close()


def handle_of(route: Route, port: int) -> verbs.AHAttr:
    """A way as the verbs want it."""
    if route.source is None:
        return verbs.AHAttr(port_num=port, dlid=route.lid, sl=route.service_level)
    through = verbs.GlobalRoute(
        dgid=verbs.GID(route.gid),
        sgid_index=route.source.index,
        hop_limit=route.hops,
        traffic_class=route.traffic_class,
    )
    return verbs.AHAttr(port_num=port, is_global=1, gr=through, sl=route.service_level)


def _done(completion: verbs.WC) -> Done:
    is_push = (
        completion.status == SUCCESS and completion.opcode == verbs.enums.IBV_WC_RECV_RDMA_WITH_IMM
    )
    return Done(
        completion.wr_id,
        completion.status,
        completion.byte_len,
        completion.imm_data if is_push else None,
    )


def _make_channel(device: Device) -> tuple[verbs.CompChannel, int]:
    """A completion channel and its descriptor, which pyverbs does not tell: the one that is new.
    (Waiting in pyverbs itself would hold up every thread of the process.)"""
    with making:
        before = _event_fds()
        channel = verbs.CompChannel(device.context)
        (fd,) = _event_fds() - before
        os.set_blocking(fd, False)
        return channel, fd


def _close_channel(channel: verbs.CompChannel) -> None:
    """Not while another one is made: it could get the same descriptor."""
    with making:
        channel.close()


def _event_fds() -> set[int]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if "infinibandevent" in os.readlink(f"/proc/self/fd/{name}"):
                found.add(int(name))
    return found
