import textwrap

import pytest

from tensorcast.controlplane.services.policy_files import load_catalog, load_file
from tensorcast.schema.errors import InvalidArgument, NotFound

GOOD = """
from tensorcast.controlplane.core.policies.base import Configured, Parameters

class {cls}Parameters(Parameters, frozen=True, kw_only=True):
    many: int = 1

class {cls}(Configured[{cls}Parameters]):
    '''Says nothing.'''

    name = "{name}"
    Parameters = {cls}Parameters

    def react(self, view, recorded):
        return ()
"""


def write(folder, name, text):
    path = folder / f"{name}.py"
    path.write_text(textwrap.dedent(text))
    return path


def test_a_file_and_a_folder_of_files(tmp_path):
    one = write(tmp_path, "one", GOOD.format(cls="One", name="one"))
    write(tmp_path, "two", GOOD.format(cls="Two", name="two"))
    (kind,) = load_file(one)
    assert (kind.name, kind.about, kind.origin, kind.is_on) == (
        "one",
        "Says nothing.",
        str(one),
        False,
    )
    assert kind.make(kind.parameters(many=3)).parameters.many == 3
    assert [kind.name for kind in load_file(tmp_path)] == ["one", "two"]
    catalog = load_catalog(("rack",), [tmp_path])
    assert list(catalog.kinds)[-2:] == ["one", "two"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "no policy"),
        ("def f(:", "cannot be loaded"),
        ("raise ValueError('no')", "cannot be loaded"),
        (GOOD.format(cls="Evict", name="evict"), "two policies"),
        (GOOD.format(cls="Odd", name="No Name"), "not a name"),
    ],
)
def test_what_cannot_be_used_is_told(tmp_path, text, message):
    with pytest.raises(InvalidArgument, match=message):
        load_catalog((), [write(tmp_path, "bad", text)])


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(NotFound):
        load_file(tmp_path / "nothing.py")
