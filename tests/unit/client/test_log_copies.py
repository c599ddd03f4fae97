"""A copy of the log in a file proves itself, and shows what was done to it."""

from __future__ import annotations

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tensorcast.client import log_copies
from tensorcast.client.log_copies import Copied, export_log, import_log, verify_log_file
from tensorcast.client.log_files import open_log_file
from tensorcast.schema.api_audit import Extent, Imported, ImportEvents, Life, RawEvent, RowsPage
from tensorcast.schema.chain import GENESIS, chain_event
from tensorcast.schema.errors import Corrupt, InvalidArgument, NotFound
from tensorcast.schema.heads import Head, public_key_of, sign
from tensorcast.schema.ids import Seq

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PAYLOADS = (
    b'{"id":"01941f29-7c00-7000-8000-000000000003","type":"node.cordoned","v":1,'
    b'"at":"2030-01-01T00:00:03.000003Z","actor":"user:ada@desk","cause":null,'
    b'"data":{"node":"n1"}}',
    b"\xff\0 no json",
    b'{"two":\n"lines"}',
    b'{"spaces" : "stay",  "like": "this"}',
    b"",
    b"[1, 2]",
)


class Cluster:
    """The history of a cluster, for who copies it; pages of two events."""

    def __init__(self, payloads=PAYLOADS) -> None:
        head, self.events = GENESIS, []
        for seq, payload in enumerate(payloads, 1):
            head = chain_event(head, 1, seq, b"tc.c.log.node.n1", payload)
            self.events.append(
                RawEvent(
                    log_epoch=1,
                    seq=Seq(seq),
                    subject="tc.c.log.node.n1",
                    payload=payload,
                    hash=head.hex(),
                )
            )

    async def extent(self):
        life = Life(log_epoch=1, last=Seq(len(self.events)))
        lives = (life,) if self.events else ()
        return Extent(cluster="c", lives=lives, key=public_key_of(KEY))

    async def hashes(self, log_epoch, seqs):
        known = {0: GENESIS.hex()} | {one.seq: one.hash for one in self.events}
        return tuple(known.get(seq) for seq in seqs)

    async def heads(self, source):
        heads = [
            Head(cluster="c", log_epoch=1, seq=one.seq, hash=one.hash, at="2030")
            for one in self.events[2::3]
        ]
        return [msgspec.json.encode(sign(head, KEY)).decode() for head in heads]

    async def rows(self, log_epoch, after, last):
        page = [one for one in self.events if after < one.seq <= last][:2]
        return RowsPage(previous="", events=tuple(page))


async def copy(path, *, first=None, last=None, parquet=False, cluster=None, force=False):
    if parquet:
        pytest.importorskip("pyarrow")
    return await export_log(
        cluster or Cluster(),
        path,
        first,
        last,
        parquet=parquet,
        force=force,
        count=lambda done, total: None,
    )


@pytest.mark.parametrize("parquet", [False, True])
async def test_a_copy_holds_the_exact_bytes_and_proves_them(tmp_path, parquet):
    path = tmp_path / "log"
    copied = await copy(path, parquet=parquet)
    events = Cluster().events
    assert (copied.events, copied.head) == (len(events), events[-1].hash)
    with open_log_file(path) as reader:
        assert list(reader.events()) == events
    told = []
    info = verify_log_file(path, progress=lambda done, total: told.append((done, total)))
    assert (info.ok, info.events, info.anchors) == (True, len(events), 2)
    assert info.head == copied.head
    assert told[-1] == (6, 6)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("parquet", [False, True])
async def test_a_part_is_proved_from_the_hash_before_it(tmp_path, parquet):
    path = tmp_path / "log"
    await copy(path, first=3, last=5, parquet=parquet)
    info = verify_log_file(path)
    assert (info.ok, info.events, info.anchors) == (True, 3, 1)
    info = verify_log_file(path, first=4, last=4)
    assert (info.ok, info.events) == (True, 1)
    with pytest.raises(InvalidArgument, match="no events 5 to 6"):
        verify_log_file(path, first=5, last=6)


def alter(path, number, change) -> None:
    """Changes line `number` of the file; the heads come before the events."""
    lines = path.read_text().splitlines(keepends=True)
    lines[number] = change(lines[number])
    path.write_text("".join(lines))


FIRST_EVENT = 3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda line: line.replace("stay", "go"), "not those that were hashed"),
        (lambda line: line.replace("node.n1", "node.n2"), "not those that were hashed"),
        (lambda line: line.replace('" : "', '":"'), "not those that were hashed"),
        (lambda line: "", "it is missing"),
        (lambda line: "nothing\n", "has a line that is none"),
        (lambda line: line.replace('"seq":4', '"seq":5'), "it is missing"),
    ],
)
async def test_an_altered_event_is_named(tmp_path, change, reason):
    path = tmp_path / "log"
    await copy(path)
    alter(path, FIRST_EVENT + 3, change)
    info = verify_log_file(path)
    assert not info.ok
    assert (info.first_bad.seq, info.events) == (4, 3)
    assert reason in info.first_bad.reason


async def test_a_file_that_was_cut_off_is_told(tmp_path):
    path = tmp_path / "log"
    await copy(path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-2]))
    info = verify_log_file(path)
    assert (info.ok, info.first_bad.seq) == (False, 6)
    assert "is not whole: 5 events" in info.first_bad.reason
    with open_log_file(path) as reader, pytest.raises(Corrupt, match="not whole"):
        list(reader.events())


async def test_a_copy_that_was_written_anew_as_a_whole_is_found_by_anchors(tmp_path):
    """By the signed heads that somebody has kept; those in the file were forged too."""
    path, anchors = tmp_path / "log", tmp_path / "heads.ndjson"
    anchors.write_text("\n".join(await Cluster().heads("file")) + "\n")
    forged = Cluster((PAYLOADS[0], b"{}", *PAYLOADS[2:]))
    await copy(path, cluster=forged)
    assert verify_log_file(path).ok
    info = verify_log_file(path, anchors=anchors, keys=[public_key_of(KEY)])
    assert (info.ok, info.first_bad.seq) == (False, 1)
    assert "events 1 to 3 are not those signed at 2030" in info.first_bad.reason


async def test_a_wrong_key_is_told(tmp_path):
    """Apart from tampering: the heads fit the events, but nobody has said that their key counts."""
    path, key = tmp_path / "log", public_key_of(KEY)
    await copy(path)
    info = verify_log_file(path, keys=["ab" * 32])
    assert (info.ok, info.first_bad.seq) == (False, 3)
    assert "another key" in info.first_bad.reason
    assert info.strange_key == key
    assert verify_log_file(path, keys=["ab" * 32, key]).ok


async def test_heads_of_a_wrong_key_that_do_not_fit_are_a_fault(tmp_path):
    path, anchors = tmp_path / "log", tmp_path / "heads.ndjson"
    anchors.write_text("\n".join(await Cluster().heads("file")) + "\n")
    await copy(path, cluster=Cluster((PAYLOADS[0], b"{}", *PAYLOADS[2:])))
    info = verify_log_file(path, anchors=anchors, keys=["ab" * 32])
    assert (info.ok, info.strange_key) == (False, None)
    assert "events 1 to 3 are not those signed" in info.first_bad.reason


class Renewed(Cluster):
    """Its control plane has lost the key of the heads, and made a new one."""

    async def extent(self):
        known = await super().extent()
        return msgspec.structs.replace(known, key="ab" * 32, former=(known.key,))


async def test_keys_that_were_lost_count_as_the_record_says(tmp_path):
    path = tmp_path / "log"
    await copy(path, cluster=Renewed())
    info = verify_log_file(path)
    assert (info.ok, info.anchors) == (True, 2)


async def test_what_is_no_copy_is_said(tmp_path):
    path = tmp_path / "log"
    with pytest.raises(NotFound):
        verify_log_file(path)
    for content in (b"", b"{}\n", b"PAR1 no", b'{"tensorcast_log":2}\n'):
        path.write_bytes(content)
        with pytest.raises((InvalidArgument, Corrupt)):
            verify_log_file(path)
    with pytest.raises(InvalidArgument, match="exists"):
        await copy(path)
    await copy(path, force=True)
    assert verify_log_file(path).ok
    with pytest.raises(InvalidArgument, match="no events"):
        await copy(tmp_path / "other", cluster=Cluster(()))
    assert list(tmp_path.iterdir()) == [path]


async def test_a_hole_in_the_history_is_never_copied(tmp_path):
    cluster = Cluster()
    del cluster.events[2]
    with pytest.raises(Corrupt, match="Event 3 or its hash is missing"):
        await copy(tmp_path / "log", cluster=cluster)
    assert not list(tmp_path.iterdir())


async def test_a_column_of_parquet_that_says_something_else_is_found(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    path = tmp_path / "log"
    await copy(path, parquet=True)
    table = pyarrow.parquet.read_table(path)
    place = table.schema.get_field_index("actor")
    actors = ["user:mallory@desk", *table["actor"].to_pylist()[1:]]
    changed = table.set_column(place, "actor", pyarrow.array(actors, pyarrow.string()))
    pyarrow.parquet.write_table(changed, path)
    info = verify_log_file(path)
    assert (info.ok, info.first_bad.seq) == (False, 1)
    assert "do not say what its bytes say" in info.first_bad.reason


# ---- into a cluster --------------------------------------------------------------------------


class Target:
    """A cluster that takes whatever it is given, in one piece or several."""

    def __init__(self, cluster: str = "c") -> None:
        self.cluster = cluster
        self.asked: list[ImportEvents] = []

    async def extent(self):
        return Extent(cluster=self.cluster, lives=(), key=None)

    async def hashes(self, log_epoch, seqs):
        head, known = GENESIS, [GENESIS.hex()]
        events = [event for request in self.asked for event in request.events]
        for seq, (subject, payload) in enumerate(events, 1):
            head = chain_event(head, log_epoch, seq, subject.encode(), payload)
            known.append(head.hex())
        return tuple(known[seq] for seq in seqs)

    async def bring_in(self, request):
        self.asked.append(request)
        return Imported(last=Seq(request.first + len(request.events) - 1))


async def bring(path, target) -> Copied:
    return await import_log(target, path, lambda done, total: None)


@pytest.mark.parametrize("parquet", [False, True])
async def test_a_copy_is_brought_in_event_by_event(tmp_path, parquet, monkeypatch):
    monkeypatch.setattr(log_copies, "IMPORT_EVENTS", 4)
    path, target = tmp_path / "log", Target()
    copied = await copy(path, parquet=parquet)
    assert await bring(path, target) == copied
    assert [(one.first, len(one.events), one.total) for one in target.asked] == [
        (1, 4, 6),
        (5, 2, 6),
    ]
    assert tuple(payload for one in target.asked for _, payload in one.events) == PAYLOADS


async def test_what_was_not_verified_is_not_brought_in(tmp_path):
    path, target = tmp_path / "log", Target()
    await copy(path)
    more = b'{"log_epoch":1,"seq":7,"subject":"tc.c.log.node.n1","hash":"","event":{}}\n'
    path.write_bytes(path.read_bytes().replace(b'{"end":6}\n', more + b'{"end":7}\n'))
    assert (await bring(path, target)).events == len(PAYLOADS)
    path.write_bytes(path.read_bytes().replace(b"ada", b"eve"))
    target = Target()
    with pytest.raises(Corrupt, match="Event 1 of log"):
        await bring(path, target)
    assert target.asked == []


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b'"cluster":"c"', b'"cluster":"d"', "signed head"),
        (b'"last":6', b'"last":0', "not a whole log"),
        (b'[{"log_epoch":1,"last":6,"first":1}]', b"[]", "it is missing"),
    ],
)
async def test_a_file_that_says_something_else_is_refused(tmp_path, old, new, words):
    path, target = tmp_path / "log", Target()
    await copy(path)
    raw = path.read_bytes()
    assert raw.count(old) >= 1
    path.write_bytes(raw.replace(old, new, 1))
    with pytest.raises((Corrupt, InvalidArgument), match=words):
        await bring(path, target)
    assert target.asked == []


async def test_a_part_and_another_clusters_log_are_refused(tmp_path):
    await copy(tmp_path / "part", first=2)
    await copy(tmp_path / "log")
    with pytest.raises(InvalidArgument, match="not a whole log"):
        await bring(tmp_path / "part", Target())
    with pytest.raises(InvalidArgument, match="is the log of cluster 'c', not of 'd'"):
        await bring(tmp_path / "log", Target("d"))
