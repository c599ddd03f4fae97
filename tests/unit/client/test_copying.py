import pytest
import torch

from tensorcast.client import copying
from tensorcast.client.copying import Copies, copy_all


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return torch.arange(count).to(dtype).view(shape)


@pytest.mark.parametrize(
    "source",
    [
        numbers(3_000_000),
        numbers(40, 30).t(),
        numbers(5, 7)[:, 2:4],
        numbers(0, 3),
        torch.tensor(7),
        numbers(9).to(torch.float8_e4m3fn),
        torch.view_as_complex(numbers(6, 2)).conj(),
    ],
)
def test_a_copy_has_the_bits_and_its_own_memory(source):
    copies = Copies()
    target = copies.of(source)
    copies.carry_out()
    assert (target.dtype, target.shape) == (source.dtype, source.shape)
    assert target.is_contiguous()
    assert target.flatten().tolist() == source.flatten().tolist()
    assert source.numel() == 0 or target.data_ptr() != source.data_ptr()


def test_targets_are_written_where_they_are():
    whole, plain = torch.zeros(100, 100), torch.ones(1000)
    copy_all([(numbers(100), whole[3]), (numbers(100), whole[:, 5]), (numbers(1000), plain)])
    assert whole[3, 99] == 99
    assert whole[:, 5].tolist() == list(range(100))
    assert torch.equal(plain, numbers(1000))


def test_small_copies_lie_beside_each_other_and_large_ones_do_not():
    copies = Copies()
    sources = [numbers(n) for n in (1000, 5_000_000, 3, 2_000_000, 7)]
    targets = [copies.of(source) for source in sources]
    copies.carry_out()
    assert all(torch.equal(s, t) for s, t in zip(sources, targets, strict=True))
    places = [target.data_ptr() for target in targets]
    assert [place % 64 for place in places] == [0] * 5
    assert [places[n] - places[0] for n in (2, 3, 4)] == [4032, 4096, 8_004_096]
    assert not 0 < places[1] - places[0] < copying.SLAB_BYTES


def test_the_first_error_is_told():
    with pytest.raises(RuntimeError):
        copy_all([(numbers(10), torch.zeros(11)[::2])])
