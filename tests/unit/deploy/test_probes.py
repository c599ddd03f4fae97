"""What a Postgres client says first."""

from tensorcast.deploy.probes import startup_message


def test_startup_message():
    message = startup_message("tc", "db")
    assert len(message) == int.from_bytes(message[:4], "big")
    assert message[4:8] == (3 << 16).to_bytes(4, "big")
    assert message[8:] == b"user\0tc\0database\0db\0\0"
