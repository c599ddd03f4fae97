"""Put and get against a real mover, without a control plane: the data path needs none."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import load_file, save_file

import tensorcast as tc
from stack import running_stack

MIB = 1 << 20


@pytest.fixture(scope="module")
def stack():
    with running_stack(None) as running:
        running.start_mover("n1")
        yield running


@pytest.fixture
def client(stack):
    with stack.connect() as connected:
        yield connected


def state_dict(seed: int = 0, mib: int = 4) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn((mib * MIB // 8,), generator=generator)
    return {
        "embed": shared.view(-1, 64),
        "head": shared.view(-1, 64),
        "turned": torch.randn((100, 30), generator=generator).t(),
        "half": torch.randn((mib * MIB // 8,), generator=generator).to(torch.bfloat16),
        "fp8": torch.randn((1000,), generator=generator).to(torch.float8_e4m3fn),
        "scalar": torch.tensor(seed),
        "empty": torch.zeros((0, 7)),
        "flags": torch.tensor([True, False]),
    }


def assert_same(first, second) -> None:
    assert list(first) == list(second)
    for name in first:
        assert first[name].dtype == second[name].dtype, name
        left, right = first[name].contiguous(), second[name].contiguous()
        if left.element_size() == 1:
            left, right = left.view(torch.uint8), right.view(torch.uint8)
        assert torch.equal(left, right), name


def wait_for(what, timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def private_bytes() -> int:
    """Memory of this process that it shares with nobody."""
    total = 0
    with open("/proc/self/smaps_rollup") as lines:
        for line in lines:
            if line.startswith(("Private_Clean", "Private_Dirty")):
                total += int(line.split()[1]) * 1024
    return total


def test_what_was_put_comes_back_bit_by_bit(client):
    tensors = state_dict(1)
    artifact = client.put(tensors, key="exact", labels={"step": "1"})
    assert (artifact.kind, artifact.labels) == ("weights", {"step": "1"})
    assert [spec.name for spec in artifact.index] == list(tensors)
    assert_same(client.get("exact"), tensors)
    assert_same(client.get(artifact.id), tensors)
    assert_same(client.get("exact", copy=True), tensors)
    assert_same(artifact.tensors(), tensors)


def test_only_some_tensors_or_a_view(client):
    tensors = state_dict(2)
    artifact = client.put(tensors)
    assert list(artifact.tensors(["scalar", "half"])) == ["scalar", "half"]
    part = client.get(artifact.id, view=tc.View.slice("embed", dim=0, start=5, length=3))
    assert torch.equal(part["embed"], tensors["embed"][5:8])
    with pytest.raises(tc.NotFound, match="No tensor is named"):
        client.get(artifact.id, names=["nix"])
    with pytest.raises(tc.InvalidArgument, match="exclude each other"):
        client.get(artifact.id, names=["half"], view=tc.View())


def test_content_keeps_the_kind_and_labels_of_its_first_put(client):
    client.put(state_dict(23), kind="adapter", labels={"step": "1"})
    again = client.put(state_dict(23), labels={"step": "2"})
    assert (again.kind, again.labels) == ("adapter", {"step": "1"})


def test_an_artifact_names_itself(client):
    old, new = client.put(state_dict(21), key="itself"), state_dict(22)
    assert_same(client.get(old), state_dict(21))
    moved = client.put(new, key="itself", expect=old)
    assert_same(client.get("itself"), new)
    assert list(client.get(moved, names="scalar")) == ["scalar"]
    with pytest.raises(tc.InvalidArgument, match="NoneType does not name an artifact"):
        client.get(None)
    with pytest.raises(tc.InvalidArgument, match="not a view"):
        client.get(moved, view="half")
    with pytest.raises(tc.NotFound) as caught:
        client.get("no such key")
    assert caught.value.artifact == "no such key"


def test_tied_weights_come_back_tied(client):
    client.put(state_dict(3), key="tied")
    found = client.get("tied")
    found["embed"][0, 0] = 42
    assert found["head"][0, 0] == 42


def test_writing_to_tensors_changes_nobody_elses(client):
    tensors = state_dict(4)
    client.put(tensors, key="mine")
    first, second = client.get("mine"), client.get("mine")
    first["embed"].zero_()
    assert_same(second, tensors)
    assert_same(client.get("mine"), tensors)


def test_get_copies_nothing(client):
    size = 64 * MIB
    client.put({"big": torch.ones(size, dtype=torch.uint8)}, key="big")
    client.get("big")
    gc.collect()
    before = private_bytes()
    found = client.get("big")
    assert found["big"].sum() == size
    assert private_bytes() - before < 4 * MIB


def test_tensors_outlive_their_client_and_the_reader_is_counted(stack, client):
    tensors = state_dict(5)
    with stack.connect() as other:
        other.put(tensors, key="outlive")
        gc.collect()
        wait_for(lambda: client.stats().readers == 0)
        found = other.get("outlive")
    assert_same(found, tensors)
    assert client.stats().readers == 1
    kept = found["embed"]
    del found
    gc.collect()
    assert client.stats().readers == 1
    del kept
    gc.collect()
    wait_for(lambda: client.stats().readers == 0)


def test_get_into_fills_a_module(client):
    source, target = torch.nn.Linear(64, 32), torch.nn.Linear(64, 32)
    client.put(source.state_dict(), key="module")
    place = target.weight.data_ptr()
    client.get_into("module", target.state_dict())
    assert torch.equal(target.weight, source.weight)
    assert target.weight.data_ptr() == place
    with pytest.raises(tc.InvalidArgument, match=r"'weight' is torch\.float32"):
        client.get_into("module", torch.nn.Linear(3, 3).state_dict())


def test_a_key_moves_only_from_where_it_is_expected(client):
    first = client.put({"a": torch.ones(3)}, key="moving")
    assert client.put({"a": torch.ones(3)}, key="moving").id == first.id
    with pytest.raises(tc.Conflict, match="moving") as caught:
        client.put({"a": torch.zeros(3)}, key="moving")
    assert not caught.value.retryable
    second = client.put({"a": torch.zeros(3)}, key="moving", expect=first.id)
    assert client.get("moving")["a"].sum() == 0
    assert second.id != first.id


def test_a_refused_put_leaves_nothing_behind(client):
    client.put({"a": torch.ones(3)}, key="guarded")
    before = client.stats()
    for _ in range(3):
        with pytest.raises(tc.Conflict):
            client.put({"a": torch.full((3 * MIB,), 7.0)}, key="guarded")
    wait_for(lambda: client.stats().puts_open == 0)
    assert client.stats().replicas == before.replicas
    assert client.stats().used_bytes == before.used_bytes


def test_what_is_there_needs_no_memory_when_it_is_put_again():
    """Neither does a conflict: no other artifact may have to go for them."""
    with running_stack(None) as stack:
        stack.start_mover("n1", dram_bytes=96 * MIB)
        with stack.connect() as client:
            tensors = {"a": torch.arange(16 * MIB), "turned": torch.ones((2000, 1000)).t()}
            first = client.put({"a": tensors["a"].to(torch.int32), "t": tensors["turned"]}, key="k")
            before = client.stats()
            began = time.monotonic()
            again = client.put({"a": tensors["a"].to(torch.int32), "t": tensors["turned"]}, key="k")
            other = client.put({"a": tensors["a"].to(torch.int32), "t": tensors["turned"]}, key="l")
            with pytest.raises(tc.Conflict, match="'k' points to"):
                client.put({"a": torch.ones(16 * MIB)}, key="k")
            with pytest.raises(tc.Conflict, match="does not exist"):
                client.put({"a": torch.ones(16 * MIB)}, key="new", expect=first.id)
            assert time.monotonic() - began < 8
            assert again.id == other.id == first.id
            assert client.get("l").keys() == {"a", "t"}
            after = client.stats()
            assert (after.segments, after.used_bytes) == (before.segments, before.used_bytes)


def test_no_tensors_are_an_artifact_too(client):
    artifact = client.put({}, key="nothing")
    assert artifact.index == ()
    assert client.get("nothing") == {}


def test_bad_arguments_are_refused_before_bytes_are_moved(client):
    before = client.stats()
    for arguments, told in [
        ({"key": " x "}, "is not a key"),
        ({"kind": "song"}, "not a kind"),
        ({"labels": {"a": 1}}, "is not text"),
    ]:
        with pytest.raises(tc.InvalidArgument, match=told):
            client.put({"a": torch.ones(3)}, **arguments)
    with pytest.raises(tc.InvalidArgument, match="'a' is of type"):
        client.put({"a": {"b": torch.ones(3)}})
    assert client.stats().segments == before.segments


def test_an_unknown_key_is_told(client):
    with pytest.raises(tc.NotFound, match="nobody") as caught:
        client.get("nobody", timeout=5)
    assert not caught.value.retryable


def test_what_does_not_fit_is_told(client):
    with pytest.raises(tc.OutOfCapacity):
        client.put({"a": torch.empty(300 * MIB, dtype=torch.uint8)})
    assert client.stats().puts_open == 0


def test_files_in_and_out(client, tmp_path):
    tensors = {"a": torch.randn(1000, 50), "b": torch.ones(3, dtype=torch.bfloat16)}
    save_file(tensors, tmp_path / "in.safetensors")
    seen: list[tuple[int, int]] = []
    artifact = client.put(
        tmp_path / "in.safetensors", key="file", progress=lambda *now: seen.append(now)
    )
    assert seen[-1][0] == seen[-1][1] > 0
    written = client.export("file", tmp_path / "out.safetensors")
    found = load_file(written)
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    assert client.put(written).id == artifact.id
    view = tc.View.tensors(next(iter(tensors)))
    part = client.put(client.export("file", tmp_path / "part.safetensors", view=view))
    assert part.labels["made-from"] == artifact.id
    assert part.labels["made-by"] == f"view names={next(iter(tensors))}"
    (tmp_path / "bad.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(tc.Corrupt, match=r"bad\.safetensors"):
        client.put(tmp_path / "bad.safetensors", key="bad")
    with pytest.raises(tc.NotFound):
        client.get("bad", timeout=5)


def test_a_full_disk_leaves_no_file(client, tmp_path):
    """A file size limit stands for the full disk: the system answers alike."""
    client.put({"a": torch.ones(MIB)}, key="large")
    child = multiprocessing.get_context("fork").Process(
        target=export_with_little_room, args=(client, tmp_path)
    )
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert list(tmp_path.iterdir()) == []


def export_with_little_room(client, folder) -> None:
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, MIB))
    try:
        client.export("large", folder / "out.safetensors")
    except tc.OutOfCapacity:
        os._exit(0)
    os._exit(1)


def test_many_threads_share_a_client(client):
    tensors = [state_dict(seed, mib=1) for seed in range(10, 18)]

    def work(number: int) -> None:
        for _ in range(3):
            client.put(tensors[number], key=f"thread/{number}")
            assert_same(client.get(f"thread/{number}"), tensors[number])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert client.stats().puts_open == 0


def test_a_forked_child_connects_anew_and_keeps_its_tensors(client):
    tensors = state_dict(20)
    client.put(tensors, key="forked")
    inherited = client.get("forked")
    child = multiprocessing.get_context("fork").Process(
        target=use_in_child, args=(client, tensors, inherited)
    )
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert_same(client.get("forked"), tensors)
    assert_same(client.get("child"), {"made": torch.full((5,), 3.0)})


def use_in_child(client, tensors, inherited) -> None:
    torch.set_num_threads(1)  # the threads of torch itself do not survive a fork
    assert_same(inherited, tensors)
    assert_same(client.get("forked"), tensors)
    client.put({"made": torch.full((5,), 3.0)}, key="child")
    client.close()
    assert_same(inherited, tensors)


READ_ALONE = """
import sys, tensorcast as tc
from safetensors.torch import save_file
with tc.connect() as client:
    tensors = client.get("many")
save_file({name: tensor.clone() for name, tensor in tensors.items()}, sys.argv[1])
"""


def test_processes_of_their_own_read_the_same_bytes(stack, client, tmp_path):
    tensors = state_dict(21)
    client.put(tensors, key="many")
    environ = {
        **os.environ,
        "TENSORCAST_NATS_URL": stack.nats.url,
        "TENSORCAST_CLUSTER": "test",
        "TENSORCAST_SOCKET": str(stack.socket("n1")),
    }
    paths = [tmp_path / "first", tmp_path / "second"]
    children = [
        subprocess.Popen([sys.executable, "-c", READ_ALONE, str(path)], env=environ)
        for path in paths
    ]
    assert [child.wait(60) for child in children] == [0, 0]
    for path in paths:
        found = load_file(path)
        assert_same({name: found[name] for name in tensors}, tensors)


def test_a_process_that_is_killed_reads_no_more(stack, client):
    client.put(state_dict(22), key="killed")
    gc.collect()
    wait_for(lambda: client.stats().readers == 0)
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    child = context.Process(target=hold, args=(stack.context(), ready))
    child.start()
    assert ready.wait(30)
    assert client.stats().readers == 1
    child.kill()
    child.join()
    wait_for(lambda: client.stats().readers == 0)


def hold(context, ready) -> None:
    torch.set_num_threads(1)
    with tc.connect(context) as client:
        kept = client.get("killed")
        ready.set()
        time.sleep(60)
        del kept


def test_an_interrupted_put_gives_its_segment_back(client):
    """Ctrl-C in the main thread while bytes are copied."""
    before = client.stats()
    main = threading.get_ident()

    def interrupt(done: int, total: int) -> None:
        if not pressed.is_set():
            pressed.set()
            signal.pthread_kill(main, signal.SIGINT)

    pressed = threading.Event()
    with pytest.raises(KeyboardInterrupt):
        client.put({"a": torch.ones(16 * MIB)}, key="never", progress=interrupt)
    wait_for(lambda: client.stats().puts_open == 0)
    wait_for(lambda: client.stats().used_bytes == before.used_bytes)
    with pytest.raises(tc.NotFound):
        client.get("never", timeout=5)


def test_a_process_without_free_descriptors_is_told(stack, client):
    client.put({"a": torch.ones(MIB)}, key="descriptors")
    child = multiprocessing.get_context("fork").Process(
        target=get_until_full, args=(stack.context(),)
    )
    child.start()
    child.join(30)
    assert child.exitcode == 0


def get_until_full(context) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    with tc.connect(context) as client:
        kept = []
        try:
            for _ in range(200):
                kept.append(client.get("descriptors"))  # noqa: PERF401 - it shall fail midway
        except tc.OutOfCapacity:
            kept.clear()
            gc.collect()
            client.get("descriptors")
            os._exit(0)
    os._exit(1)


def test_a_closed_client_says_so(stack):
    client = stack.connect()
    client.stats()
    client.close()
    client.close()
    with pytest.raises(tc.Unavailable, match="closed"):
        client.get("exact")


async def test_the_async_client_has_the_same_surface(stack):
    tensors = state_dict(30)
    async with tc.connect_async(stack.context()) as client:
        artifact = await client.put(tensors, key="async")
        gets = await asyncio.gather(*(client.get("async") for _ in range(5)))
        for found in gets:
            assert_same(found, tensors)
        assert_same(await artifact.tensors(), tensors)
        targets = {name: torch.empty_like(t) for name, t in tensors.items()}
        await client.get_into("async", targets)
        assert_same(targets, tensors)


async def test_a_cancelled_put_gives_its_segment_back(stack):
    async with tc.connect_async(stack.context()) as client:
        loop, started = asyncio.get_running_loop(), asyncio.Event()
        putting = asyncio.create_task(
            client.put(
                {"a": torch.ones(16 * MIB)},
                progress=lambda *_: loop.call_soon_threadsafe(started.set),
            )
        )
        await started.wait()
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting
        for _ in range(100):
            if (await client.stats()).puts_open == 0:
                break
            await asyncio.sleep(0.05)
        assert (await client.stats()).puts_open == 0


def test_without_a_mover_the_way_out_is_told(stack):
    with tc.connect(stack.context("n3")) as client, pytest.raises(tc.Unavailable) as caught:
        client.get("exact")
    assert "node n3 is not running" in caught.value.message
    assert "tcctl" in caught.value.hint
    assert caught.value.retryable


def test_without_a_control_plane_the_way_out_is_told_at_once(client):
    started = time.monotonic()
    with pytest.raises(tc.Unavailable, match=r"control plane is not running.*tcctl"):
        client.artifact("exact")
    assert time.monotonic() - started < 2
