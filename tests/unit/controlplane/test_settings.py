import pytest

from tensorcast.controlplane.settings import SERVICES, read_settings
from tensorcast.schema.errors import InvalidArgument

ALL = ",".join(SERVICES)
GOOD = {
    "TENSORCAST_NATS_URL": "nats://u:p@h:1",
    "TENSORCAST_POSTGRES_URL": "postgresql://u:p@h:1/d",
}


def test_defaults():
    settings = read_settings(GOOD, ALL)
    assert (settings.cluster, settings.heartbeat_s, settings.node_timeout_s) == ("default", 1, 5)
    assert settings.services == set(SERVICES)
    assert settings.notify_socket is None


def test_everything_can_be_set():
    environ = GOOD | {
        "TENSORCAST_CLUSTER": "c1",
        "TENSORCAST_HEARTBEAT_S": "0.1",
        "TENSORCAST_NODE_TIMEOUT_S": "0.5",
        "NOTIFY_SOCKET": "/run/x",
        "TENSORCAST_PARTITION_EVENTS": "4096",
        "TENSORCAST_ARCHIVE_DIR": "/old",
        "TENSORCAST_RETENTION": "30d, 1.5GiB",
    }
    settings = read_settings(environ, " scheduler, timers,")
    assert settings.cluster == "c1"
    assert settings.services == {"scheduler", "timers"}
    assert (settings.heartbeat_s, settings.node_timeout_s) == (0.1, 0.5)
    assert settings.notify_socket == "/run/x"
    assert (settings.partition_events, settings.archive_dir) == (4096, "/old")
    assert (settings.retention_s, settings.retention_bytes) == (30 * 86_400, 3 << 29)


def test_services_without_postgres_need_no_url_of_it():
    environ = {"TENSORCAST_NATS_URL": "nats://h:1"}
    assert read_settings(environ, "scheduler,timers").postgres_url == ""


@pytest.mark.parametrize(
    ("change", "services", "words"),
    [
        ({"TENSORCAST_NATS_URL": ""}, ALL, "TENSORCAST_NATS_URL"),
        ({"TENSORCAST_NATS_URL": "http://h"}, ALL, "nats://"),
        ({"TENSORCAST_POSTGRES_URL": "mysql://h"}, "api", "TENSORCAST_POSTGRES_URL"),
        ({"TENSORCAST_CLUSTER": "No.Name"}, ALL, "cluster name"),
        ({"TENSORCAST_HEARTBEAT_S": "soon"}, ALL, "TENSORCAST_HEARTBEAT_S"),
        ({"TENSORCAST_NODE_TIMEOUT_S": "nan"}, ALL, "TENSORCAST_NODE_TIMEOUT_S"),
        ({"TENSORCAST_NODE_TIMEOUT_S": "1.5"}, ALL, "two missed heartbeats"),
        ({"TENSORCAST_PARTITION_EVENTS": "1000"}, ALL, "TENSORCAST_PARTITION_EVENTS"),
        ({"TENSORCAST_PARTITION_EVENTS": "1e6"}, ALL, "TENSORCAST_PARTITION_EVENTS"),
        ({"TENSORCAST_RETENTION": "30d"}, ALL, "TENSORCAST_ARCHIVE_DIR"),
        ({"TENSORCAST_RETENTION": "30", "TENSORCAST_ARCHIVE_DIR": "a"}, ALL, "30d,100GiB"),
        ({"TENSORCAST_RETENTION": "30d;", "TENSORCAST_ARCHIVE_DIR": "a"}, ALL, "30d,100GiB"),
        ({}, "scheduler,dancer", "dancer"),
        ({}, " ,", "service"),
    ],
)
def test_errors_are_said_in_words(change, services, words):
    with pytest.raises(InvalidArgument, match=words):
        read_settings(GOOD | change, services)
