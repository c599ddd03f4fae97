"""What `tcctl up` draws in secret is in its private files and nowhere else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cluster import TCCTL
from tensorcast.deploy.home import Layout, load_config

pytestmark = [pytest.mark.slow, pytest.mark.failover]

HELD = re.compile(r"cluster\.json|nats\.conf|keys/[^/]+\.nk|contexts?/.*|heads\.key|.*\.conf")
"""Files of a home that are there to hold secrets; all are private."""


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tc-secret-") as folder:
        made = Path(folder) / "home"
        try:
            yield made
        finally:
            tcctl(made, "down", "--purge", "--data-dir", str(made), check=False)


def tcctl(home: Path, *arguments: str, check: bool = True) -> str:
    environ = {**os.environ, "XDG_CONFIG_HOME": str(home.parent / "config")}
    done = subprocess.run(
        [TCCTL, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environ,
        timeout=100,
    )
    assert not check or done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def secrets_of(home: Path) -> dict[str, bytes]:
    """Every secret, by what it is of."""
    layout = Layout(home)
    config = load_config(layout)
    assert config is not None
    found = {path.name: path.read_bytes().strip() for path in layout.keys.glob("*.nk")}
    for part in ("nats", "postgres"):
        fields = msgspec.to_builtins(getattr(config, part))
        for name, value in fields.items():
            if "password" in name and value:
                found[f"{part}.{name}"] = str(value).encode()
    for path in home.rglob("heads.key"):
        found["heads.key"] = path.read_bytes().strip()
    return found


def test_secrets_are_in_no_event_log_answer_or_backup(home: Path, tmp_path: Path):
    weights = tmp_path / "w.safetensors"
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    weights.write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    place = ("--data-dir", str(home))
    said = [tcctl(home, "up", "--nodes", "2", "--dram", "64MiB", *place, "-o", "json")]
    before = secrets_of(home)
    said.append(tcctl(home, "put", str(weights), "--key", "team/m@1", "-o", "json"))
    said.append(tcctl(home, "replicate", "team/m@1", "--to", "all", "--wait", "-o", "json"))
    said.append(tcctl(home, "keys", "add", "bob", *place, "-o", "json"))
    said.append(tcctl(home, "keys", "rotate", *place, "-o", "json"))
    looks = (
        ("audit", "log"),
        ("signal", "ls"),
        ("node", "ls"),
        ("replay",),
        ("keys", "ls", *place),
        ("access", "ls"),
        ("context", "show"),
        ("status", *place),
        ("doctor",),
    )
    said += [tcctl(home, *arguments, "-o", "json", check=False) for arguments in looks]
    backup = tmp_path / "backup"
    said.append(tcctl(home, "backup", str(backup), *place, "-o", "json"))
    secrets = before | {f"new {name}": value for name, value in secrets_of(home).items()}
    assert {"nats.password", "postgres.password", "postgres.admin_password"} <= set(secrets)
    assert len([name for name in secrets if name.endswith(".nk")]) >= 9
    places = {f"answer {n}": text.encode() for n, text in enumerate(said)}
    for folder in (home, backup):
        for path in folder.rglob("*"):
            name = str(path.relative_to(folder))
            is_held = HELD.search(name) if folder == home else name == "audit/heads.key"
            if path.is_file() and not is_held:
                places[f"{folder.name}/{name}"] = path.read_bytes()
    assert any("log" in name for name in places)
    leaks = [
        (place_, name)
        for place_, content in places.items()
        for name, secret in secrets.items()
        if secret in content
    ]
    assert not leaks
    # A cluster that is restored goes on signing: the key of its heads goes along, private as ever.
    assert not (backup / "audit" / "heads.key").stat().st_mode & 0o077
    for path in (Layout(home).keys, *Layout(home).keys.iterdir(), home / "cluster.json"):
        assert not path.stat().st_mode & 0o077, path
