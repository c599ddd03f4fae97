import pytest
import torch

from tensorcast.client.layout import take_in_tensors
from tensorcast.client.spec import lay_out_spec
from tensorcast.schema.errors import InvalidArgument


def test_the_layout_is_that_of_a_put():
    tensors = {
        "a": torch.zeros(3, 5),
        "half": torch.zeros(7, dtype=torch.bfloat16),
        "empty": torch.zeros(0, 4),
        "scalar": torch.tensor(1),
        "flag": torch.tensor([True]),
    }
    intake = take_in_tensors(tensors)
    wanted = (intake.index, intake.size_bytes)
    assert lay_out_spec(tensors) == wanted
    assert lay_out_spec({n: t.to("meta") for n, t in tensors.items()}) == wanted
    assert lay_out_spec({n: (t.shape, t.dtype) for n, t in tensors.items()}) == wanted
    assert lay_out_spec(intake.index) == wanted


def test_a_shape_alone_is_of_the_default_dtype():
    index, size_bytes = lay_out_spec({"a": torch.Size([2, 3]), "b": (4,), "c": [5], "d": ()})
    assert [(spec.dtype, spec.shape) for spec in index] == [
        ("F32", (2, 3)),
        ("F32", (4,)),
        ("F32", (5,)),
        ("F32", ()),
    ]
    assert size_bytes == 196


def test_tied_tensors_of_an_index_stay_tied():
    whole = torch.arange(12.0)
    index = take_in_tensors({"a": whole, "b": whole.view(3, 4).t()}).index
    assert lay_out_spec(index) == (index, 48)


@pytest.mark.parametrize(
    "spec",
    [
        {"a": "text"},
        {"a": ((2,), torch.qint8)},
        {"a": ((-1,), torch.float32)},
        {"a": 3.5},
        {"a/b": (2,)},
        {"": (2,)},
        ("not a spec",),
        {1: (2,)},
        None,
        5,
    ],
)
def test_what_is_no_spec_is_told(spec):
    with pytest.raises(InvalidArgument):
        lay_out_spec(spec)


def test_nothing_is_an_index_too():
    assert lay_out_spec({}) == ((), 0)
