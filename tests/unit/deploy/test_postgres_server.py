"""How Postgres is started."""

from tensorcast.deploy.options import EmbeddedPostgres
from tensorcast.deploy.postgres_server import command, environment

SERVER = EmbeddedPostgres(
    port=20003, password="pp", admin_password="ap", folder="/pg", programs="/pg/bin"
)


def test_it_is_durable_and_listens_on_this_machine_only():
    words = command(SERVER)
    for setting in (
        "port=20003",
        "fsync=on",
        "synchronous_commit=on",
        "listen_addresses=127.0.0.1",
        "unix_socket_directories=",
        "dynamic_shared_memory_type=mmap",
    ):
        assert words[words.index(setting) - 1] == "-c"


def test_the_url_names_our_role_and_database():
    assert SERVER.url == "postgresql://tensorcast:pp@127.0.0.1:20003/tensorcast"


def test_nothing_of_our_environment_reaches_it():
    assert set(environment()) == {"PATH", "LC_ALL", "TZ", "PGTZ"}
