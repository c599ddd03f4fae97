from __future__ import annotations

import pytest

from tensorcast.schema.servers import name_servers, split_servers


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("nats://h1:4222", ("nats://h1:4222",)),
        ("nats://a:b@h1:1,h2:2", ("nats://a:b@h1:1", "nats://a:b@h2:2")),
        ("nats://a:b@h1:1, tls://c:d@h2:2", ("nats://a:b@h1:1", "tls://c:d@h2:2")),
        ("tls://h1,h2,h3", ("tls://h1", "tls://h2", "tls://h3")),
        ("", ("",)),
    ],
)
def test_several_servers_in_one_text(text, urls):
    assert split_servers(text) == urls


def test_servers_are_named_without_their_passwords():
    assert name_servers("nats://ada:hidden@h1:1,nats://ada:hidden@h2:2") == "h1:1,h2:2"
    assert name_servers("nonsense") == "nonsense"
