"""State dicts into a byte space and back, through a plain memfd: no mover is needed."""

from __future__ import annotations

import gc
import os
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from intakes import written
from tensorcast.client.filling import Intake, Sealed, digest
from tensorcast.client.layout import take_in_tensors
from tensorcast.client.memory import Mapping, map_segment
from tensorcast.client.tensors import TORCH_NAMES, build_tensors, copy_into
from tensorcast.schema.chunks import chunk_range
from tensorcast.schema.errors import Corrupt, InvalidArgument
from tensorcast.schema.tensors import TensorSpec, check_manifest, derive_artifact_id
from tensorcast.schema.views import Selected, View, resolve

DTYPES = {
    name: getattr(torch, torch_name)
    for name, torch_name in TORCH_NAMES.items()
    if hasattr(torch, torch_name)
}
PLAIN = sorted(set(DTYPES) - {"F4"})


def write(intake: Intake, *, dirt: bytes = b"") -> tuple[Sealed, Mapping | None]:
    """Fills a memfd (with `dirt` in it before) as a put would, and maps it as a get would."""
    segment = os.memfd_create("test")
    os.ftruncate(segment, max(1, intake.size_bytes))
    found, sealed = written(intake, dirt)
    os.pwrite(segment, found, 0)
    read, lifeline = os.pipe()
    os.close(read)
    return sealed, map_segment((segment, lifeline), intake.size_bytes)


def round_trip(tensors, *, copy=False, view=None, dirt=b""):
    intake = take_in_tensors(tensors)
    sealed, memory = write(intake, dirt=dirt)
    check_manifest(sealed.manifest)
    return build_tensors(memory, resolve(view or View(), intake.index), copy=copy)


def same(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Equal bit by bit, whatever the dtype (NaN too)."""
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    return bits(first) == bits(second)


def bits(tensor: torch.Tensor) -> bytes:
    if tensor.numel() == 0:
        return b""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous()
    flat = flat.as_strided((tensor.numel(),), (1,))  # a lone element may have any stride
    return bytes(flat.view(torch.uint8).tolist())


def make(name: str, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    dtype = DTYPES[name]
    count = torch.Size(shape).numel() * dtype.itemsize
    raw = torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator)
    if name == "BOOL":
        raw = raw % 2
    return raw.view(dtype).view(shape)


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_dtype_comes_back_bit_by_bit(name, copy):
    tensors = {"a": make(name, (3, 4)), "b": make(name, (5,), seed=1), "empty": make(name, (0, 3))}
    found = round_trip(tensors, copy=copy)
    assert list(found) == ["a", "b", "empty"]
    assert all(same(tensors[key], found[key]) for key in tensors)


def test_a_packed_dtype_counts_values_in_the_index():
    [spec] = take_in_tensors({"a": make("F4", (3, 4))}).index
    assert (spec.dtype, spec.shape, spec.size_bytes) == ("F4", (3, 8), 12)


@pytest.mark.parametrize("name", PLAIN)
def test_a_scalar_has_no_dimension(name):
    tensor = make(name, (1,)).reshape(())
    assert same(round_trip({"a": tensor})["a"], tensor)


def test_no_tensors_make_an_empty_artifact():
    intake = take_in_tensors({})
    assert (intake.index, intake.size_bytes) == ((), 0)
    assert round_trip({}) == {}


@st.composite
def state_dicts(draw):
    """A few tensors: whole ones, and views of shared ones by every way of viewing."""
    tensors: dict[str, torch.Tensor] = {}
    for group in range(draw(st.integers(1, 3))):
        shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
        base = make(draw(st.sampled_from(PLAIN)), shape, seed=group)
        for member in range(draw(st.integers(1, 3))):
            tensors[f"{group}.{member}"] = draw(views_of(base))
    names = draw(st.permutations(sorted(tensors)))
    return {name: tensors[name] for name in names}


@st.composite
def views_of(draw, base):
    view = base
    for _ in range(draw(st.integers(0, 2))):
        if view.dim() == 0:
            return view
        dim = draw(st.integers(0, view.dim() - 1))
        length = view.shape[dim]
        match draw(st.sampled_from(["slice", "step", "transpose", "expand", "unfold"])):
            case "slice":
                start = draw(st.integers(0, length))
                view = view.narrow(dim, start, draw(st.integers(0, length - start)))
            case "step":
                view = view[(slice(None),) * dim + (slice(None, None, 2),)]
            case "transpose":
                view = view.transpose(dim, draw(st.integers(0, view.dim() - 1)))
            case "expand":
                view = view.unsqueeze(0).expand(2, *view.shape)
            case "unfold" if length >= 2:
                view = view.unfold(dim, 2, 1)
    return view


@given(state_dicts(), st.booleans(), st.sampled_from([b"", b"\xa5\x5a"]))
def test_any_state_dict_comes_back_bit_by_bit(tensors, copy, dirt):
    found = round_trip(tensors, copy=copy, dirt=dirt)
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        assert same(found[name], tensor), name


@given(state_dicts())
def test_digesting_alone_gives_the_same_identity(tensors):
    intake = take_in_tensors(tensors)
    assert digest(intake, stop=threading.Event()) == write(intake, dirt=b"\xff")[0]


def test_digesting_alone_over_many_chunks_with_gaps_and_blocks():
    base = make("F32", (300, 3000))
    tensors = {
        "plain": make("U8", (5 << 20,)),
        "turned": make("BF16", (1500, 1500)).t(),
        "window": base[1:, ::2],
        "other": base[:, 7:],
        "odd": make("U8", (3,)),
        "last": make("F64", (200_000,)),
    }
    intake = take_in_tensors(tensors)
    assert len(intake.blocks) == 2
    done: list[tuple[int, int]] = []
    found = digest(
        intake, stop=threading.Event(), progress=lambda now, total: done.append((now, total))
    )
    assert found == write(intake, dirt=b"\xa5")[0]
    assert found.manifest.chunks_total == len(done) > 8
    assert done[-1] == (intake.size_bytes, intake.size_bytes)
    tensors["window"].zero_()
    assert digest(intake, stop=threading.Event()).artifact != found.artifact


@given(state_dicts())
def test_the_bytes_do_not_depend_on_what_the_segment_held_before(tensors):
    intake = take_in_tensors(tensors)
    clean, _ = write(intake)
    dirty, _ = write(intake, dirt=b"\xff")
    assert clean.artifact == dirty.artifact
    assert clean.manifest.digests == dirty.manifest.digests


def test_tied_weights_come_back_tied():
    weight = torch.arange(12.0).view(3, 4)
    found = round_trip({"embed": weight, "head": weight, "other": torch.ones(2)})
    assert found["embed"].data_ptr() == found["head"].data_ptr()
    found["embed"][1, 2] = -7
    assert found["head"][1, 2] == -7
    storages = {t.untyped_storage().data_ptr() for t in found.values()}
    assert len(storages) == 2


@pytest.mark.parametrize("copy", [False, True])
def test_views_of_one_storage_see_each_others_writes(copy):
    base = torch.arange(24.0).view(4, 6)
    tensors = {"whole": base, "turned": base.t(), "rows": base[1:3], "column": base[:, 2]}
    found = round_trip(tensors, copy=copy)
    found["turned"][2, 1] = -1
    assert found["whole"][1, 2] == found["rows"][0, 2] == found["column"][1] == -1
    assert take_in_tensors(tensors).size_bytes == 96


def test_overlapping_parts_of_a_larger_storage_take_only_what_they_span():
    base = torch.arange(1000.0)
    intake = take_in_tensors({"a": base[100:110], "b": base[105:120]})
    assert intake.size_bytes == 80
    found = round_trip({"a": base[100:110], "b": base[105:120]})
    found["a"][9] = -1
    assert found["b"][4] == -1


def test_parts_that_do_not_overlap_are_tensors_of_their_own():
    base = torch.arange(8.0)
    apart = take_in_tensors({"a": base[:4], "b": base[4:]})
    alone = take_in_tensors({"a": base[:4].clone(), "b": base[4:].clone()})
    assert apart.index == alone.index
    assert write(apart)[0].artifact == write(alone)[0].artifact


def test_elements_that_no_tensor_shows_do_not_travel():
    base = torch.full((8,), 7, dtype=torch.uint8)
    tensors = {"a": base[::4], "b": base[::2]}
    intake = take_in_tensors(tensors)
    _, memory = write(intake, dirt=b"\xff")
    assert bytes(memory) == bytes([7, 0, 7, 0, 7, 0, 7])


def test_a_tensor_alone_is_made_contiguous():
    turned = torch.arange(6.0).view(2, 3).t()
    intake = take_in_tensors({"a": turned})
    assert intake.index[0].strides is None
    assert (
        write(intake)[0].artifact == write(take_in_tensors({"a": turned.contiguous()}))[0].artifact
    )


def test_dtypes_that_share_bytes_stay_shared():
    base = torch.arange(8, dtype=torch.int32)
    found = round_trip({"bytes": base.view(torch.uint8)[3:20], "words": base[1:]})
    found["words"][0] = 0x04030201
    assert found["bytes"][1:5].tolist() == [1, 2, 3, 4]


def test_a_lazily_conjugated_tensor_is_put_as_it_reads():
    tensor = torch.tensor([1 + 2j, 3 - 4j]).conj()
    assert round_trip({"a": tensor})["a"].tolist() == [1 - 2j, 3 + 4j]


def test_parameters_come_back_as_plain_tensors():
    module = torch.nn.Linear(3, 2)
    found = round_trip(dict(module.named_parameters()))
    assert same(found["weight"], module.weight)
    assert not found["weight"].requires_grad


def test_writing_changes_nobody_elses_tensors():
    intake = take_in_tensors({"a": torch.zeros(1000)})
    _, memory = write(intake)
    other = build_tensors(memory, resolve(View(), intake.index), copy=True)["a"]
    mine = build_tensors(memory, resolve(View(), intake.index))["a"]
    mine.fill_(5)
    assert other.sum() == 0


def test_a_copy_needs_the_mapping_no_more():
    segment = os.memfd_create("test")
    os.ftruncate(segment, 64)
    read, lifeline = os.pipe()
    memory = map_segment((segment, lifeline), 64)
    spec = TensorSpec(name="a", dtype="F32", shape=(16,), offset=0)
    copied = build_tensors(memory, [Selected(spec)], copy=True)
    del memory
    gc.collect()
    assert os.read(read, 1) == b""
    os.close(read)
    assert copied["a"].sum() == 0


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"x": torch.ones(1)}, "of type dict"),
        (3, "of type int"),
        (None, "of type NoneType"),
        (torch.ones(2, device="meta"), "a meta tensor"),
        (torch.ones(2).to_sparse(), "a sparse tensor"),
        (torch.ones(2, dtype=torch.complex128), "complex128"),
    ],
    ids=["dict", "int", "none", "meta", "sparse", "dtype"],
)
def test_what_is_no_plain_tensor_is_refused_by_name(value, told):
    with pytest.raises(InvalidArgument, match=r"'the\.name'") as caught:
        take_in_tensors({"fine": torch.ones(1), "the.name": value})
    assert told in caught.value.message


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_quantized_tensor_is_refused():
    value = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    with pytest.raises(InvalidArgument, match="'a' is a quantized tensor"):
        take_in_tensors({"a": value})


def test_a_name_must_be_text():
    with pytest.raises(InvalidArgument, match="3 is not text"):
        take_in_tensors({3: torch.ones(1)})


def test_names_that_no_index_can_hold_are_refused():
    with pytest.raises(InvalidArgument, match="1 to 1024 bytes"):
        take_in_tensors({"": torch.ones(1)})


def test_chunks_are_digested_where_they_lie():
    tensors = {"a": make("U8", (3_000_000,)), "b": make("F32", (500_000,), seed=2).t()}
    intake = take_in_tensors(tensors)
    sealed, memory = write(intake)
    manifest = sealed.manifest
    import blake3
    import xxhash

    parts = [
        bytes(memory)[r.offset : r.end]
        for r in (
            chunk_range(n, manifest.size_bytes, manifest.chunk_bytes)
            for n in range(manifest.chunks_total)
        )
    ]
    assert manifest.digests == b"".join(xxhash.xxh3_64_digest(part) for part in parts)
    content = [blake3.blake3(part).digest() for part in parts]
    assert sealed.artifact == derive_artifact_id(intake.index, intake.size_bytes, content)


def test_views_are_cut_without_a_copy():
    base = torch.arange(24.0).view(4, 6)
    found = round_trip(
        {"a": base, "b": base.clone()}, view=View.slice("a", dim=1, start=2, length=3)
    )
    assert same(found["a"], base[:, 2:5])
    assert found["a"].stride() == (6, 1)
    shard = round_trip({"a": base}, view=View.shard(rank=1, world=2, rules={"a": 0}))
    assert same(shard["a"], base[2:])


def test_copy_into_checks_all_before_it_writes():
    intake = take_in_tensors({"a": torch.ones(3), "b": torch.ones(2)})
    _, memory = write(intake)
    selected = resolve(View(), intake.index)
    targets = {"a": torch.zeros(3), "b": torch.zeros(3)}
    with pytest.raises(InvalidArgument, match=r"'b' is torch\.float32 \[2\]"):
        copy_into(memory, selected, targets, strict=True)
    assert targets["a"].sum() == 0
    with pytest.raises(InvalidArgument, match="no target for tensor 'b'"):
        copy_into(memory, selected, {"a": torch.zeros(3)}, strict=True)
    with pytest.raises(InvalidArgument, match="no tensor 'c'"):
        copy_into(memory, selected, {**targets, "c": torch.zeros(1)}, strict=True)
    copy_into(memory, selected, {"a": targets["a"], "c": torch.zeros(1)}, strict=False)
    assert targets["a"].sum() == 3


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_copy_into_moves_every_dtype_into_any_layout(name):
    tensor = make(name, (4, 6))
    intake = take_in_tensors({"a": tensor})
    _, memory = write(intake)
    target = torch.zeros(24 * tensor.element_size(), dtype=torch.uint8).view(tensor.dtype)
    target = target.view(6, 4).t() if name != "F4" else target.view(4, 6)
    copy_into(memory, resolve(View(), intake.index), {"a": target}, strict=True)
    assert same(target, tensor)


def test_copy_into_fills_parameters_that_learn():
    module = torch.nn.Linear(3, 2)
    intake = take_in_tensors({"weight": torch.ones(2, 3), "bias": torch.ones(2)})
    _, memory = write(intake)
    copy_into(memory, resolve(View(), intake.index), dict(module.named_parameters()), strict=True)
    assert module.weight.sum() == 6


def test_a_place_within_an_element_is_refused():
    specs = [
        TensorSpec(name="a", dtype="F32", shape=(4,), offset=0),
        TensorSpec(name="b", dtype="F32", shape=(2,), offset=2),
    ]
    segment = os.memfd_create("test")
    os.ftruncate(segment, 64)
    read, lifeline = os.pipe()
    os.close(read)
    memory = map_segment((segment, lifeline), 64)
    with pytest.raises(Corrupt, match="within an element"):
        build_tensors(memory, [Selected(spec) for spec in specs])
