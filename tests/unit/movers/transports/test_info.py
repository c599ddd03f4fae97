import socket
import struct

from hypothesis import given
from hypothesis import strategies as st

from tensorcast.movers.transports.tcp.info import INFO_BYTES, Info, parse_info, read_info


def test_the_figures_of_a_connection():
    packed = bytearray(INFO_BYTES)
    struct.pack_into("=I", packed, 68, 30_000)
    struct.pack_into("=I", packed, 92, 20_000)
    struct.pack_into("=I", packed, 148, 5_000)
    struct.pack_into("=I", packed, 152, 1000)
    struct.pack_into("=QQ", packed, 200, 10_000, 100)
    struct.pack_into("=I", packed, 224, 50)
    assert parse_info(bytes(packed)) == Info(
        rtt_s=0.02, least_rtt_s=0.005, resent=0.01, disordered=0.05
    )
    assert parse_info(bytes(packed[:104])) == Info(
        rtt_s=0.02, least_rtt_s=0.0, resent=0.0, disordered=0.0
    )
    struct.pack_into("=I", packed, 148, 0xFFFFFFFF)
    assert parse_info(bytes(packed)).least_rtt_s == 0


@given(st.binary(max_size=300))
def test_any_length_is_read(packed):
    info = parse_info(packed)
    assert info.rtt_s >= 0
    assert info.resent >= 0
    assert info.disordered >= 0


def test_the_kernel_tells_of_a_connection():
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as ours,
        listening.accept()[0] as theirs,
    ):
        theirs.sendall(b"x" * 100_000)
        ours.recv(100_000, socket.MSG_WAITALL)
        assert 0 < read_info(ours).rtt_s < 1
        assert 0 < read_info(theirs).least_rtt_s < 1
        assert read_info(theirs).resent < 1
