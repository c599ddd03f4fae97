from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from tensorcast.deploy.backup import Backup, back_up, read_backup, restore
from tensorcast.deploy.home import Layout, save_config
from tensorcast.deploy.options import ClusterConfig, External
from tensorcast.schema.errors import Corrupt, InvalidArgument, NotFound

BACKUP = Backup(
    tensorcast_backup=1,
    cluster="c",
    at=datetime(2030, 1, 1, tzinfo=UTC),
    nodes=1,
    dram_bytes=1 << 30,
    dump_bytes=4,
)


def write(folder, backup: Backup, dump: bytes = b"dump") -> None:
    (folder / "postgres.dump").write_bytes(dump)
    (folder / "backup.json").write_bytes(msgspec.json.encode(backup))


def test_a_backup_that_is_whole_says_what_it_is(tmp_path):
    write(tmp_path, BACKUP)
    assert read_backup(tmp_path) == BACKUP


def test_what_is_no_backup_is_not_restored(tmp_path):
    home = tmp_path / "home"
    with pytest.raises(NotFound, match="no backup that is whole"):
        restore(tmp_path, home)
    (tmp_path / "postgres.dump").write_bytes(b"dump")
    with pytest.raises(NotFound):
        restore(tmp_path, home)
    write(tmp_path, BACKUP, b"du")
    with pytest.raises(Corrupt, match="2 bytes of 4"):
        restore(tmp_path, home)
    write(tmp_path, msgspec.structs.replace(BACKUP, tensorcast_backup=2))
    with pytest.raises(InvalidArgument, match="newer"):
        restore(tmp_path, home)
    (tmp_path / "backup.json").write_text("{}")
    with pytest.raises(Corrupt):
        restore(tmp_path, home)
    assert not home.exists()


def test_a_home_without_a_cluster_or_without_a_postgres_of_its_own(tmp_path):
    layout = Layout(tmp_path / "home")
    with pytest.raises(NotFound):
        back_up(layout.home, tmp_path / "backup")
    layout.home.mkdir()
    save_config(
        layout,
        ClusterConfig(
            cluster="c",
            context="c",
            nats=External(url="nats://h"),
            postgres=External(url="postgresql://h/db"),
            nodes=(),
            sockets="/tmp",
        ),
    )
    with pytest.raises(InvalidArgument, match="your own"):
        back_up(layout.home, tmp_path / "backup")
    assert not (tmp_path / "backup").exists()
