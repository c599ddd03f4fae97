"""A whole cluster is backed up while it runs, and made anew elsewhere."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import asyncpg
import pytest
import torch
from safetensors.torch import save_file

from cluster import Cluster, running_cluster
from tensorcast.deploy.home import Layout, load_config

pytestmark = [pytest.mark.slow, pytest.mark.failover, pytest.mark.timeout(400)]


ARCHIVED = (
    "INSERT INTO archives VALUES (99, 1, 1, '{}', 'old.parquet', 10, '', now(), now(), now(),"
    " now(), now())"
)
"""Of another life of the log: nobody asks for it."""


def ask_database(cluster: Cluster, statement: str) -> list[str]:
    config = load_config(Layout(cluster.home))

    async def ask() -> list[str]:
        connection = await asyncpg.connect(config.postgres.url)
        rows = await connection.fetch(statement)
        await connection.close()
        return [row[0] for row in rows]

    return asyncio.run(ask())


def facts(events: list[dict]) -> list[tuple]:
    return [(one["seq"], one["id"], one["type"], one["data"]) for one in events]


def test_a_cluster_comes_back_from_its_backup(tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    checkpoint = tmp_path / "model.safetensors"
    save_file({"w": torch.arange(1000)}, checkpoint)
    with running_cluster(tmp_path / "first", 1) as first:
        put = first.ask("put", str(checkpoint), "--key", "m@1", "--node", "n1")
        (tmp_path / "old.parquet").write_bytes(b"old events")
        ask_database(first, ARCHIVED.format(tmp_path))
        made = first.ask("backup", str(backup), "--data-dir", str(first.home))
        assert (backup / "archive" / "old.parquet").read_bytes() == b"old events"
        assert made["bytes"] == (backup / "postgres.dump").stat().st_size
        again = first.tcctl("backup", str(backup), "--data-dir", str(first.home), code=None)
        assert "is not empty" in again.err
        before = first.ask("audit", "log")
        refused = first.tcctl("restore", str(backup), "--data-dir", str(first.home), code=None)
        assert "has a cluster already" in refused.err
    env = {**first.env, "TENSORCAST_HOME": str(tmp_path / "second" / "home")}
    env["TENSORCAST_CONFIG_DIR"] = str(tmp_path / "second" / "config")
    second = Cluster(tmp_path / "second" / "home", env)
    second.tcctl("restore", str(backup), "--data-dir", str(second.home))
    try:
        second.up(1)
        after = second.ask("audit", "log")
        kept = next(one for one in after if one["data"].get("topic") == "tensorcast.log.restored")
        copied = kept["data"]["data"]["restored"]
        assert copied >= put["seq"] if "seq" in put else copied > 0
        assert facts(after[:copied]) == facts(before[:copied])
        assert second.ask("key", "show", "m@1")["artifact"] == put["id"]
        second.tcctl("put", str(checkpoint), "--key", "m@2", "--node", "n1")
        second.tcctl("artifact", "show", "m@2")
        [folder] = ask_database(second, "SELECT folder FROM archives WHERE log_epoch = 99")
        assert (Path(folder) / "old.parquet").read_bytes() == b"old events"
        assert Path(folder) == second.home / "archive"
    finally:
        second.tcctl("down", "--data-dir", str(second.home), "--purge", "--yes", code=None)
    shutil.rmtree(backup)
