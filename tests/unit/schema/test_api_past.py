"""What is said about the past comes back from JSON as it was, whatever the fields hold."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tensorcast.schema.api_past import Change, DiffInfo, FieldChange
from tensorcast.schema.ids import Seq

json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(before=json, after=json)
def test_a_difference_comes_back_as_it_was(before, after):
    field = FieldChange(name="labels", before=before, after=after)
    change = Change(kind="artifact", id="a", change="changed", fields=(field,), seq=Seq(3))
    info = DiffInfo(from_seq=Seq(1), to_seq=Seq(4), total=1, changes=(change,))
    assert msgspec.json.decode(msgspec.json.encode(info), type=DiffInfo) == info
