"""What the kernel knows of a connection: TCP_INFO (Linux, include/uapi/linux/tcp.h)."""

from __future__ import annotations

import socket
import struct
from typing import Final

import msgspec

INFO_BYTES: Final = 232

_NUMBER = struct.Struct("=I")
_RTT_AT: Final = 68
_RCV_RTT_AT: Final = 92
_LEAST_RTT_AT: Final = 148
_UNKNOWN: Final = (1 << 32) - 1
_DATA_SEGMENTS_IN_AT: Final = 152
_BYTES_SENT = struct.Struct("=QQ")
_BYTES_SENT_AT: Final = 200
_OUT_OF_ORDER_AT: Final = 224


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """Round trip as each side measures it, and the shortest one; the shares of data that was sent
    again, and that came out of order because something before it was lost. Zero where the kernel
    does not say."""

    rtt_s: float
    least_rtt_s: float
    resent: float
    disordered: float


def parse_info(packed: bytes) -> Info:
    """The figures of a TCP_INFO, which older kernels give in part."""
    full = packed.ljust(INFO_BYTES, b"\0")
    rtt_us = _number(full, _RTT_AT)
    rcv_rtt_us = _number(full, _RCV_RTT_AT)
    least_us = _number(full, _LEAST_RTT_AT)
    segments_in = _number(full, _DATA_SEGMENTS_IN_AT)
    sent, resent = _BYTES_SENT.unpack_from(full, _BYTES_SENT_AT)
    return Info(
        rtt_s=min(rtt_us, rcv_rtt_us or rtt_us) / 1e6,
        least_rtt_s=least_us / 1e6 if least_us != _UNKNOWN else 0.0,
        resent=resent / sent if sent else 0.0,
        disordered=_number(full, _OUT_OF_ORDER_AT) / segments_in if segments_in else 0.0,
    )


def read_info(connected: socket.socket) -> Info:
    """What the kernel knows now. Raises OSError when the connection is closed."""
    return parse_info(connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES))


def _number(packed: bytes, at: int) -> int:
    return int(_NUMBER.unpack_from(packed, at)[0])
