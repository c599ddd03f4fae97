"""Files that travel with tensors."""

import pytest

from tensorcast.schema.errors import Corrupt, InvalidArgument
from tensorcast.schema.files import file_name, files_of, is_file, tensor_name, without_files
from tensorcast.schema.tensors import TensorSpec, lay_out
from tensorcast.schema.views import View, resolve

INDEX, _ = lay_out(
    [("a", "F32", (2,)), (tensor_name("config.json"), "U8", (9,)), ("b", "U8", (3,))]
)


def test_files_and_tensors_are_told_apart():
    assert [is_file(spec) for spec in INDEX] == [False, True, False]
    assert files_of(INDEX) == {"config.json": INDEX[1]}
    assert without_files(INDEX) == (INDEX[0], INDEX[2])


@pytest.mark.parametrize("view", [View(), View.tensors(".*"), View.tensors("a", "b")])
def test_no_selection_brings_a_file(view):
    assert [item.spec.name for item in resolve(view, INDEX)] == ["a", "b"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "..\\x", "a\nb", "\0", "x" * 2000])
def test_a_name_that_leads_elsewhere_is_refused(name):
    with pytest.raises(InvalidArgument):
        tensor_name(name)
    with pytest.raises(Corrupt):
        file_name(TensorSpec(name=f"__file__:{name}", dtype="U8", shape=(1,), offset=0))


def test_a_file_is_bytes():
    for dtype, shape, strides in [("F32", (1,), None), ("U8", (1, 1), None), ("U8", (1,), (2,))]:
        spec = TensorSpec(
            name=tensor_name("x"), dtype=dtype, shape=shape, offset=0, strides=strides
        )
        with pytest.raises(Corrupt):
            file_name(spec)
