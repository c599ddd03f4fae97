"""The configuration of nats-server."""

from pathlib import Path

import pytest

from tensorcast.deploy.nats_server import parse_version, render_config
from tensorcast.deploy.options import EmbeddedNats

NATS = EmbeddedNats(port=20001, monitor_port=20002, user="tc", password="secret")


def test_an_acknowledged_event_is_on_disk_and_only_this_machine_is_served():
    text = render_config(NATS, cluster="demo", store=Path("/d/jetstream"))
    assert "sync_interval: always" in text
    assert "max_payload: 8MB" in text
    assert "host: 127.0.0.1\nport: 20001" in text
    assert 'http: "127.0.0.1:20002"' in text
    assert 'user: "tc", password: "secret"' in text


def test_a_path_cannot_break_out_of_its_quotes():
    text = render_config(NATS, cluster="demo", store=Path('/a "b"/c'))
    assert 'store_dir: "/a \\"b\\"/c"' in text


@pytest.mark.parametrize(
    ("text", "version"),
    [("nats-server: v2.15.1", (2, 15, 1)), ("nats-server: v2.9.10\n", (2, 9, 10)), ("?", ())],
)
def test_parse_version(text, version):
    assert parse_version(text) == version
