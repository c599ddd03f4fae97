"""The messages of services."""

import pytest

from tensorcast.deploy.notify import Notice, parse_notice


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"READY=1\nSTATUS=serving", Notice(ready=True, status="serving")),
        (b"READY=0", Notice()),
        (b"STATUS=a=b", Notice(status="a=b")),
        (b"FDSTORE=1\nFDNAME=seg-1", Notice(stores=True, name="seg-1")),
        (b"FDSTOREREMOVE=1\nFDNAME=seg-1", Notice(removes=True, name="seg-1")),
        (b"FDSTORE=1", Notice(stores=True, name="stored")),
        (b"FDSTORE=1\nFDNAME=a:b", Notice(stores=True, name="stored")),
        (b"FDSTORE=1\nFDNAME=" + b"a" * 256, Notice(stores=True, name="stored")),
        (b"BARRIER=1", Notice()),
        (b"\xff\xfe nonsense", Notice()),
        (b"", Notice()),
    ],
)
def test_parse(data, expected):
    assert parse_notice(data) == expected
