"""The fake GPU keeps the rules of a real one, and says which was broken."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tensorcast.gpu.fake import FakeGpu, MisuseError
from tensorcast.gpu.port import GRANULE_BYTES, HANDLE_BYTES
from tensorcast.schema.errors import Corrupt, OutOfCapacity, Unavailable
from tensorcast.storage.memory import address_of

SIZE = 4096


@pytest.fixture
def gpu():
    gpu = FakeGpu(total_bytes=4 * GRANULE_BYTES)
    yield gpu
    gpu.close()


def put(gpu, address, content):
    cuda_stream, buffer = gpu.open_stream(), gpu.pin(len(content))
    buffer[:] = content
    cuda_stream.copy_in(address, buffer)
    cuda_stream.record().synchronize()
    gpu.unpin(buffer)


def take(gpu, address, size):
    cuda_stream, buffer = gpu.open_stream(), gpu.pin(size)
    cuda_stream.copy_out(buffer, address)
    cuda_stream.record().synchronize()
    found = bytes(buffer)
    gpu.unpin(buffer)
    return found


def test_bytes_go_in_within_and_out(gpu):
    first, second = gpu.allocate(SIZE), gpu.allocate(SIZE)
    put(gpu, first, b"ab" * (SIZE // 2))
    gpu.open_stream().copy_within(second, first, SIZE)
    for cuda_stream in gpu._streams:
        cuda_stream.record().synchronize()
    assert take(gpu, second, SIZE) == b"ab" * (SIZE // 2)


def test_nothing_moves_before_somebody_waits(gpu):
    address, buffer, cuda_stream = gpu.allocate(SIZE), gpu.pin(SIZE), gpu.open_stream()
    put(gpu, address, b"x" * SIZE)
    cuda_stream.copy_out(buffer, address)
    event = cuda_stream.record()
    assert bytes(buffer) == bytes(SIZE)
    assert event.is_done()
    assert bytes(buffer) == b"x" * SIZE


def test_its_memory_has_an_end(gpu):
    kept = [gpu.allocate(1) for _ in range(4)]
    with pytest.raises(OutOfCapacity):
        gpu.allocate(1)
    gpu.free(kept.pop())
    gpu.allocate(GRANULE_BYTES)


def test_memory_that_is_gone_is_not_used(gpu):
    address, buffer, cuda_stream = gpu.allocate(SIZE), gpu.pin(SIZE), gpu.open_stream()
    gpu.free(address)
    for misuse in (
        lambda: gpu.free(address),
        lambda: gpu.export(address),
        lambda: cuda_stream.copy_in(address, buffer),
        lambda: cuda_stream.copy_out(memoryview(bytearray(SIZE)), gpu.allocate(SIZE)),
        lambda: cuda_stream.copy_in(gpu.allocate(SIZE) + GRANULE_BYTES - 1, buffer),
        lambda: gpu.release(address),
    ):
        with pytest.raises(MisuseError):
            misuse()


def test_what_a_copy_needs_stays_until_it_is_done(gpu):
    address, buffer, cuda_stream = gpu.allocate(SIZE), gpu.pin(SIZE), gpu.open_stream()
    cuda_stream.copy_in(address, buffer)
    with pytest.raises(MisuseError, match="not done"):
        gpu.unpin(buffer)
    with pytest.raises(MisuseError, match="not done"):
        gpu.free(address)
    cuda_stream.record().synchronize()
    gpu.unpin(buffer)
    gpu.free(address)


def test_two_streams_need_an_event_between_them(gpu):
    address, one, other = gpu.allocate(SIZE), gpu.pin(SIZE), gpu.pin(SIZE)
    first, second = gpu.open_stream(), gpu.open_stream()
    one[:] = b"1" * SIZE
    first.copy_in(address, one)
    with pytest.raises(MisuseError, match="no order"):
        second.copy_out(other, address)
    second.wait_for(first.record())
    second.copy_out(other, address)
    second.record().synchronize()
    assert bytes(other) == b"1" * SIZE


def test_another_process_uses_what_was_exported_until_it_is_freed(gpu):
    reader, address = FakeGpu(), gpu.allocate(SIZE)
    put(gpu, address, b"y" * SIZE)
    handle = gpu.export(address)
    assert len(handle) == HANDLE_BYTES
    with pytest.raises(MisuseError, match="its own handle"):
        gpu.adopt(handle)
    adopted = reader.adopt(handle)
    assert take(reader, adopted, SIZE) == b"y" * SIZE
    with pytest.raises(MisuseError, match="still uses"):
        gpu.free(address)
    reader.release(adopted)
    gpu.free(address)
    with pytest.raises(Unavailable, match=r"freed|gone"):
        reader.adopt(handle)
    with pytest.raises(Corrupt):
        reader.adopt(b"?" * HANDLE_BYTES)
    reader.close()


def test_a_dmabuf_is_of_whole_pages_that_are_allocated(gpu):
    with pytest.raises(Unavailable):
        gpu.open_dmabuf(gpu.allocate(SIZE), SIZE)
    able = FakeGpu(dmabuf=True)
    address = able.allocate(SIZE)
    os.close(able.open_dmabuf(address, SIZE))
    for start, size in ((address + 1, SIZE), (address, SIZE + 1), (address + SIZE, SIZE)):
        with pytest.raises(MisuseError):
            able.open_dmabuf(start, size)
    able.close()


class Lifetimes(RuleBasedStateMachine):
    """Two processes that allocate, share, copy and free in any order: what the rules allow works
    and brings the right bytes, and what they forbid is refused and changes nothing."""

    def __init__(self):
        super().__init__()
        self.owner, self.reader = FakeGpu(total_bytes=3 * GRANULE_BYTES), FakeGpu()
        self.contents: dict[int, bytes] = {}
        self.handles: dict[int, bytes] = {}
        self.adopted: dict[int, int] = {}
        self.freed: list[int] = []
        self.flying: dict[int, tuple] = {}
        self.cuda_stream = self.owner.open_stream()
        self.count = 0

    def some(self, data, places):
        return data.draw(st.sampled_from(sorted(places)))

    @rule()
    def allocate(self):
        if len(self.contents) == 3:
            with pytest.raises(OutOfCapacity):
                self.owner.allocate(SIZE)
            return
        address = self.owner.allocate(SIZE)
        self.freed = [one for one in self.freed if one != address]
        put(self.owner, address, b"\0" * SIZE)
        self.contents[address] = b"\0" * SIZE

    @precondition(lambda self: self.contents)
    @rule(data=st.data())
    def copy_in(self, data):
        address = self.some(data, self.contents)
        self.count += 1
        buffer = self.owner.pin(SIZE)
        buffer[:] = self.count.to_bytes(4, "big") * (SIZE // 4)
        self.cuda_stream.copy_in(address, buffer)
        self.contents[address] = bytes(buffer)
        self.flying[address_of(buffer)] = buffer, address

    @precondition(lambda self: self.flying)
    @rule()
    def give_a_buffer_back(self):
        buffer, _ = next(iter(self.flying.values()))
        with pytest.raises(MisuseError):
            self.owner.unpin(buffer)

    @rule()
    def wait(self):
        self.cuda_stream.record().synchronize()
        for buffer, _ in self.flying.values():
            self.owner.unpin(buffer)
        self.flying.clear()

    @precondition(lambda self: self.contents)
    @rule(data=st.data())
    def export_and_adopt(self, data):
        address = self.some(data, self.contents)
        self.handles[address] = self.owner.export(address)
        if address not in self.adopted:
            self.adopted[address] = self.reader.adopt(self.handles[address])

    @precondition(lambda self: self.adopted)
    @rule(data=st.data())
    def read_as_the_other(self, data):
        address = self.some(data, self.adopted)
        self.wait()
        assert take(self.reader, self.adopted[address], SIZE) == self.contents[address]

    @precondition(lambda self: self.adopted)
    @rule(data=st.data())
    def release(self, data):
        address = self.some(data, self.adopted)
        self.reader.release(self.adopted.pop(address))

    @precondition(lambda self: self.contents)
    @rule(data=st.data())
    def free(self, data):
        address = self.some(data, self.contents)
        is_flying = any(target == address for _, target in self.flying.values())
        if address in self.adopted or is_flying:
            with pytest.raises(MisuseError):
                self.owner.free(address)
            return
        self.owner.free(address)
        del self.contents[address]
        self.freed.append(address)
        if handle := self.handles.pop(address, None):
            with pytest.raises(Unavailable):
                self.reader.adopt(handle)

    @precondition(lambda self: self.freed)
    @rule()
    def use_after_free(self):
        buffer = self.owner.pin(SIZE)
        with pytest.raises(MisuseError):
            self.cuda_stream.copy_out(buffer, self.freed[-1])
        self.owner.unpin(buffer)

    @invariant()
    def what_is_taken_is_counted(self):
        assert self.owner.used_bytes == len(self.contents) * GRANULE_BYTES

    def teardown(self):
        self.wait()
        for address, content in self.contents.items():
            assert take(self.owner, address, SIZE) == content
        self.reader.close()
        self.owner.close()


TestLifetimes = Lifetimes.TestCase
TestLifetimes.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
