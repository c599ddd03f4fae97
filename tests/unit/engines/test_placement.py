"""Parameters move into mapped bytes, or get copies of them: never anything else."""

from __future__ import annotations

import mmap

import pytest
import torch
from torch import nn

from tensorcast.engines.placement import Memory, Placement

ROWS, COLUMNS = 64, 32


class Linear(nn.Module):
    """A parameter that owns its memory, as engines make them."""

    def __init__(self, rows: int = ROWS, columns: int = COLUMNS, dtype=torch.float32) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, columns, dtype=dtype), requires_grad=False)


@pytest.fixture
def replica():
    """Mapped bytes, the tensors w0..w3 in it one after another, and what they hold."""
    size = ROWS * COLUMNS
    memory = memoryview(mmap.mmap(-1, 4 * size * 4))
    flat = torch.frombuffer(memory, dtype=torch.float32)
    flat.copy_(torch.randn(flat.shape, generator=torch.Generator().manual_seed(0)))
    tensors = [flat[n * size : (n + 1) * size].view(ROWS, COLUMNS) for n in range(4)]
    return Memory(memory), tensors


def lies_in(memory: Memory, tensor: torch.Tensor) -> bool:
    return memory.holds(tensor)


def test_a_whole_tensor_is_used_where_it_lies(replica):
    memory, tensors = replica
    model = Linear()
    kept = model.weight
    with Placement(model, memory) as placement:
        model.weight.data.copy_(tensors[1])
    assert kept is model.weight
    assert model.weight.data_ptr() == tensors[1].data_ptr()
    assert torch.equal(model.weight, tensors[1])
    assert placement.placed() == (1, ROWS * COLUMNS * 4, 0, 0)


def test_parts_that_follow_each_other_become_one_whatever_comes_first(replica):
    memory, tensors = replica
    model = Linear(rows=2 * ROWS)
    with Placement(model, memory):
        model.weight.data.narrow(0, ROWS, ROWS).copy_(tensors[2])
        model.weight.data.narrow(0, 0, ROWS).copy_(tensors[1])
    assert model.weight.data_ptr() == tensors[1].data_ptr()
    assert torch.equal(model.weight, torch.cat([tensors[1], tensors[2]]))


def test_parts_in_another_order_are_copied(replica):
    memory, tensors = replica
    model = Linear(rows=2 * ROWS)
    with Placement(model, memory) as placement:
        model.weight.data[:ROWS].copy_(tensors[2])
        model.weight.data[ROWS:].copy_(tensors[1])
    assert not lies_in(memory, model.weight)
    assert torch.equal(model.weight, torch.cat([tensors[2], tensors[1]]))
    assert placement.placed() == (0, 0, 2 * ROWS * COLUMNS * 4, 0)


def test_a_rank_uses_its_rows_in_place_and_copies_its_columns(replica):
    memory, tensors = replica
    rows, columns = Linear(rows=ROWS // 2), Linear(columns=COLUMNS // 2)
    model = nn.ModuleList([rows, columns])
    with Placement(model, memory):
        rows.weight.data.copy_(tensors[0].narrow(0, ROWS // 2, ROWS // 2))
        columns.weight.data.copy_(tensors[3].narrow(1, COLUMNS // 2, COLUMNS // 2))
    assert rows.weight.data_ptr() == tensors[0][ROWS // 2 :].data_ptr()
    assert torch.equal(columns.weight, tensors[3][:, COLUMNS // 2 :])
    assert not lies_in(memory, columns.weight)


def test_writing_to_a_placed_parameter_leaves_file_and_others_alone(tmp_path):
    path = tmp_path / "segment"
    path.write_bytes(bytes(range(256)) * 16)
    models = []
    for _ in range(2):
        with path.open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), 4096, flags=mmap.MAP_PRIVATE)
        memory = Memory(memoryview(mapped))
        source = torch.frombuffer(mapped, dtype=torch.uint8).view(64, 64)
        model = Linear(64, 64, torch.uint8)
        with Placement(model, memory):
            model.weight.data.copy_(source)
        models.append(model)
    del mapped, memory, source
    models[0].weight.data.zero_()
    assert bytes(models[1].weight.flatten().tolist()) == path.read_bytes()


def test_another_dtype_is_converted_by_the_model(replica):
    memory, tensors = replica
    model = Linear(dtype=torch.bfloat16)
    with Placement(model, memory) as placement:
        model.weight.data.copy_(tensors[0])
    assert torch.equal(model.weight, tensors[0].bfloat16())
    assert placement.placed().other_bytes == ROWS * COLUMNS * 2


def test_what_is_read_or_changed_meanwhile_is_there_before(replica):
    memory, tensors = replica
    model = Linear(rows=2 * ROWS)
    with Placement(model, memory):
        model.weight.data[:ROWS].copy_(tensors[1])
        assert torch.equal(model.weight.data[:ROWS], tensors[1])
        model.weight.data[:ROWS].mul_(2)
        model.weight.data[ROWS:].copy_(tensors[2])
    assert torch.equal(model.weight, torch.cat([tensors[1] * 2, tensors[2]]))


def test_the_last_of_two_copies_to_one_place_counts(replica):
    memory, tensors = replica
    model = Linear(rows=2 * ROWS)
    with Placement(model, memory):
        model.weight.data[:ROWS].copy_(tensors[0])
        model.weight.data[:ROWS].copy_(tensors[2])
        model.weight.data[ROWS:].copy_(tensors[3])
    assert torch.equal(model.weight, torch.cat([tensors[2], tensors[3]]))


def test_a_placed_parameter_can_be_loaded_again(replica):
    memory, tensors = replica
    model = Linear()
    with Placement(model, memory):
        model.weight.data.copy_(tensors[0])
        model.weight.data.copy_(tensors[1])
    assert torch.equal(model.weight, tensors[1])


def test_a_part_that_is_never_filled_keeps_what_it_had(replica):
    memory, tensors = replica
    model = Linear(rows=2 * ROWS)
    model.weight.data.fill_(7)
    with Placement(model, memory):
        model.weight.data[:ROWS].copy_(tensors[0])
    assert torch.equal(model.weight[:ROWS], tensors[0])
    assert bool((model.weight[ROWS:] == 7).all())


@pytest.mark.parametrize("how", ["buffer", "parameter", "hidden"])
def test_memory_that_somebody_shares_stays_where_it_is(replica, how):
    memory, tensors = replica
    model = Linear()
    alias = model.weight.data.view(-1)
    if how == "buffer":
        model.register_buffer("alias", alias)
    elif how == "parameter":
        model.other = nn.Parameter(alias, requires_grad=False)
    with Placement(model, memory):
        model.weight.data.copy_(tensors[0])
    assert not lies_in(memory, model.weight)
    assert torch.equal(alias, tensors[0].view(-1))


def test_tied_parameters_stay_tied(replica):
    memory, tensors = replica
    embed, head = Linear(), Linear()
    head.weight = embed.weight
    with Placement(nn.ModuleList([embed, head]), memory):
        embed.weight.data.copy_(tensors[2])
    assert head.weight.data_ptr() == embed.weight.data_ptr() == tensors[2].data_ptr()


def test_after_an_error_nothing_is_done_later(replica):
    memory, tensors = replica
    model = Linear(rows=2 * ROWS)
    model.weight.data.fill_(1)

    def break_off() -> None:
        with Placement(model, memory):
            model.weight.data[:ROWS].copy_(tensors[0])
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        break_off()
    assert bool((model.weight == 1).all())


def test_a_parameter_that_got_other_memory_is_left_alone(replica):
    memory, tensors = replica
    model = Linear(rows=2 * ROWS)
    with Placement(model, memory):
        model.weight.data[:ROWS].copy_(tensors[0])
        model.weight.data = torch.zeros(2 * ROWS, COLUMNS)
        model.weight.data[:ROWS].copy_(tensors[1])
    assert torch.equal(model.weight[:ROWS], tensors[1])
    assert bool((model.weight[ROWS:] == 0).all())


def test_scalars_are_broadcast_by_the_model(replica):
    memory, tensors = replica
    model = Linear(rows=1, columns=3)
    with Placement(model, memory):
        model.weight.data.copy_(tensors[0][0, 0])
    assert model.weight.flatten().tolist() == [float(tensors[0][0, 0])] * 3


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int32, torch.int8])
def test_quantised_weights_are_placed_and_copied_bit_for_bit(dtype):
    size_bytes = 64 * 64 * dtype.itemsize
    buffer = memoryview(mmap.mmap(-1, 2 * size_bytes))
    everything = torch.frombuffer(buffer, dtype=torch.uint8)
    everything.copy_(torch.arange(len(buffer)) % 251)
    flat = everything.view(dtype)
    first, second = flat[: 64 * 64].view(64, 64), flat[64 * 64 :].view(64, 64)
    memory = Memory(buffer)
    placed, copied = Linear(64, 64, dtype), Linear(64, 32, dtype)
    with Placement(nn.ModuleList([placed, copied]), memory):
        placed.weight.data.copy_(first)
        copied.weight.data.copy_(second.narrow(1, 32, 32))
    assert placed.weight.data_ptr() == first.data_ptr()
    assert not lies_in(memory, copied.weight)
    assert torch.equal(
        copied.weight.data.view(torch.uint8), second[:, 32:].contiguous().view(torch.uint8)
    )


# ---- where only a part is there ----------------------------------------------------------------


@pytest.fixture
def asked(replica):
    """A memory of which everything must be asked for, and the numbers of what was asked for."""
    memory, tensors = replica
    places = []
    partial = Memory(memory._buffer, places.extend)
    return partial, tensors, places


def rows(places) -> list[tuple[int, int]]:
    """Places as first and last row of the four tensors, one after another."""
    return [(one.offset // (COLUMNS * 4), one.end // (COLUMNS * 4)) for one in places]


def test_what_is_placed_and_what_is_copied_is_brought_at_the_end(asked):
    memory, tensors, places = asked
    placed, copied = Linear(), Linear(columns=COLUMNS // 2)
    with Placement(nn.ModuleList([placed, copied]), memory):
        placed.weight.data.copy_(tensors[1])
        copied.weight.data.copy_(tensors[3].narrow(1, 0, COLUMNS // 2))
        assert places == []
    assert (ROWS, 2 * ROWS) in rows(places)
    assert rows(places)[-1] == (3 * ROWS, 4 * ROWS - 1)
    assert torch.equal(copied.weight, tensors[3][:, : COLUMNS // 2])


def test_what_is_read_otherwise_is_brought_before(asked):
    memory, tensors, places = asked
    model = Linear(dtype=torch.bfloat16)
    with Placement(model, memory):
        model.weight.data.copy_(tensors[2])
        assert rows(places) == [(2 * ROWS, 3 * ROWS)]
        tensors[0][:4].sum()
        assert rows(places)[1:] == [(0, 4)]


def test_a_tensor_that_a_model_keeps_is_brought_too(asked):
    memory, tensors, places = asked
    model = Linear()
    with Placement(model, memory):
        model.weight = nn.Parameter(tensors[3], requires_grad=False)
    assert rows(places) == [(3 * ROWS, 4 * ROWS)]


def test_of_tensors_whose_parts_lie_far_apart_only_these_are_brought():
    memory = memoryview(mmap.mmap(-1, 16 << 20))
    places = []
    partial = Memory(memory, places.extend)
    whole = torch.frombuffer(memory, dtype=torch.float32).view(4, 1 << 20)
    partial.bring([whole.narrow(1, 1 << 18, 1 << 10)])
    mib = 1 << 20
    assert [(one.offset, one.size) for one in places] == [
        (row * 4 * mib + mib, 4096) for row in range(4)
    ]
