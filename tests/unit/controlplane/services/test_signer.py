"""The key of signed heads: made once; the one before goes on to count when it is lost."""

import pytest

from tensorcast.controlplane.services.signer import HeadFile
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.heads import public_key_of


def public(file):
    return public_key_of(file.load_key())


def test_a_key_is_made_once(tmp_path):
    file = HeadFile(tmp_path)
    key = public(file)
    assert public(HeadFile(tmp_path)) == key
    assert (tmp_path / "heads.pub").read_text().strip() == key
    assert file.former_keys() == ()


def test_a_key_that_was_lost_goes_on_to_count(tmp_path):
    file = HeadFile(tmp_path)
    first = public(file)
    (tmp_path / "heads.key").unlink()
    second = public(file)
    assert second != first
    assert (tmp_path / "heads.pub").read_text().strip() == second
    assert file.former_keys() == (first,)
    (tmp_path / "heads.key").unlink()
    assert public(file) not in (first, second)
    assert file.former_keys() == (first, second)


def test_what_is_no_key_does_not_count(tmp_path):
    file = HeadFile(tmp_path)
    (tmp_path / "heads.former").write_text("nothing\n\n" + "AB" * 32 + "\n")
    assert file.former_keys() == ("ab" * 32,)


def test_a_damaged_key_is_refused(tmp_path):
    (tmp_path / "heads.key").write_text("nothing")
    with pytest.raises(Corrupt, match="holds no key"):
        HeadFile(tmp_path).load_key()
