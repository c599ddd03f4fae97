"""A put from end to end: look at what is given, get a segment (if it needs one), fill it, seal it.

Whatever goes wrong on the way, the connection closes, which gives the segment back to the mover,
and nothing is registered.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

from tensorcast.client.accepted import Accepted
from tensorcast.client.arena import Arena, find_arena
from tensorcast.client.faults import not_text
from tensorcast.client.filling import Intake, Piece, Progress, digest, write
from tensorcast.client.handles import AsyncArtifact
from tensorcast.client.naming import What
from tensorcast.client.socket import Connection, Descriptors
from tensorcast.schema.aggregates.artifact import KINDS, LABELS_MAX
from tensorcast.schema.chunks import ByteRange, choose_chunk_bytes
from tensorcast.schema.errors import Corrupt, InvalidArgument, NotFound
from tensorcast.schema.ids import ArtifactId, Key, parse_key
from tensorcast.schema.socket import (
    NO_SESSION,
    OpenPut,
    Prepare,
    Prospect,
    PutAccepted,
    PutOpened,
    PutSealed,
    SealPut,
)
from tensorcast.schema.tensors import Index, Manifest
from tensorcast.storage.memory import copy

if TYPE_CHECKING:
    from tensorcast.client.session import AsyncClient, Contents

SEAL_S = 60.0
OPEN_S = 150.0
"""A mover may make room for so long, as long as it makes progress."""
SEAL_BYTES_PER_S_MIN = 100 << 20
"""How fast a mover digests what was written at the very least; a tenth of what it does in rest."""

__all__ = ["Progress", "publish"]


async def publish(
    client: AsyncClient,
    contents: Contents,
    *,
    key: str | None,
    kind: str,
    labels: Mapping[str, str],
    expect: What | None,
    progress: Progress | None,
    wait: bool | None,
) -> AsyncArtifact:
    """As `AsyncClient.put`."""
    target = parse_key(key) if key is not None else None
    check_marks(kind, labels)
    await client.position.settled()
    marks = _Marks(kind, dict(labels), target, await client.api.expected(expect))
    arena = find_arena(client.arenas, contents)
    if arena is not None:
        intake = take_in_arena(arena)
        with arena.taken():
            put = _Put(client, arena.connection, intake, progress, marks, arena, bool(wait))
            answer = await put.carry_out()
        return put.give(answer)
    with contextlib.ExitStack() as opened:
        intake = await client.run(lambda _: opened.enter_context(take_in(contents)))
        marks = marks._replace(labels={**intake.labels, **labels})
        async with client.mover.connection(is_fresh=True) as connection:
            put = _Put(client, connection, intake, progress, marks, None, wait is not False)
            answer = await put.carry_out()
    return put.give(answer)


def check_marks(kind: str, labels: Mapping[str, str]) -> None:
    """Raises InvalidArgument for a kind or labels that no artifact can have; better before the
    bytes are copied than after."""
    if kind not in KINDS:
        raise InvalidArgument(
            f"{kind!r} is not a kind of artifact.", hint=f"Use one of {', '.join(KINDS)}."
        )
    if not isinstance(labels, Mapping):
        raise InvalidArgument(f"{labels!r} are no labels.", hint="Give a dict of texts by name.")
    if len(labels) > LABELS_MAX:
        raise InvalidArgument(f"An artifact has at most {LABELS_MAX} labels.")
    for name, value in labels.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidArgument(f"Label {name!r} is not text.", hint="Use str(...).")
        for text in (name, value):
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise not_text(text) from error


@contextlib.contextmanager
def take_in(contents: Contents) -> Iterator[Intake]:
    """What a put of these contents will write. Files are open until the end of the block."""
    if isinstance(contents, Mapping):
        from tensorcast.client.layout import take_in_tensors

        yield take_in_tensors(contents)
        return
    from tensorcast.client.files import find_files, is_torch_file, open_safetensors
    from tensorcast.client.model_files import find_model_files

    given: Sequence[object] = tuple(contents) if _is_several(contents) else (contents,)
    paths = find_files(given)
    model_files = find_model_files(given)
    if is_torch_file(paths):
        from tensorcast.client.layout import take_in_tensors
        from tensorcast.client.torchfile import as_tensors, read_torch_file

        yield take_in_tensors({**read_torch_file(paths[0]), **as_tensors(model_files)})
        return
    with open_safetensors(paths, model_files) as intake:
        yield intake


def _is_several(contents: object) -> TypeGuard[Iterable[object]]:
    """Whether these are several things to put, not one."""
    is_one = isinstance(contents, str | bytes | os.PathLike)
    return isinstance(contents, Iterable) and not is_one


def take_in_arena(arena: Arena) -> Intake:
    """What a put of the tensors of an arena consists of: bytes that are there already. (They are
    read only when the key must be compared with what they are.)"""
    memory = memoryview(arena)[: arena.size_bytes]

    def read(target: memoryview, start: int) -> None:
        copy(target, memory[start : start + len(target)])

    piece = Piece(ByteRange(0, arena.size_bytes), read, memory)
    return Intake(arena.index, arena.size_bytes, (piece,))


class _Marks(NamedTuple):
    """What a put gives its artifact beside the bytes."""

    kind: str
    labels: dict[str, str]
    key: Key | None
    expect: ArtifactId | None


@dataclass(frozen=True)
class _Put:
    """A put under way, on a connection of its own. With an `arena` its bytes are there already."""

    client: AsyncClient
    connection: Connection
    intake: Intake
    progress: Progress | None
    marks: _Marks
    arena: Arena | None
    waits: bool

    async def carry_out(self) -> PutSealed | PutAccepted:
        """Takes no memory, and drives nothing out of it, for bytes that need none."""
        if await self._may_need_no_memory():
            sealed = await self.client.run(
                lambda stop: digest(self.intake, stop=stop, progress=self.progress)
            )
            with contextlib.suppress(NotFound):
                return await self._seal(NO_SESSION, sealed.manifest, sealed.artifact)
        return await self._seal(await self._write(), self._bare_manifest())

    def give(self, answer: PutSealed | PutAccepted) -> AsyncArtifact:
        """What the caller gets. The kind and labels are those that are stored: content that was
        there before keeps its own."""
        sealed = answer.sealed if isinstance(answer, PutAccepted) else answer
        if sealed is None:
            assert isinstance(answer, PutAccepted)
            accepted = Accepted(self.client, answer.ticket)
            marks = self.marks
            return AsyncArtifact(self.client, accepted, marks.kind, marks.labels, self.intake.index)
        self.client.position.advance(sealed.seq)
        return AsyncArtifact(
            self.client, sealed.artifact, sealed.kind, sealed.labels, self.intake.index
        )

    async def _may_need_no_memory(self) -> bool:
        """Whether it pays to know the identity first: the key decides by it whether this is a
        conflict or done already, and memory must not be made for what is there."""
        request = Prepare(size_bytes=self.intake.size_bytes, key=self.marks.key)
        prospect, _ = await self.connection.ask(request, Prospect)
        is_key_taken = self.marks.key is not None and prospect.key_artifact != self.marks.expect
        return is_key_taken or (self.arena is None and not prospect.fits)

    async def _write(self) -> int:
        """The session of the bytes, once they are written."""
        if self.arena is not None:
            self.arena.make_private()
            if self.waits:
                arena = self.arena
                await self.client.run(lambda _: arena.give_up())
            return self.arena.session
        request = OpenPut(size_bytes=self.intake.size_bytes)
        opened, descriptors = await self.connection.ask(request, PutOpened, timeout=OPEN_S)
        await self.client.run(
            lambda stop: _fill_segment(opened, descriptors, self.intake, stop, self.progress)
        )
        return opened.session

    async def _seal(
        self, session: int, manifest: Manifest, artifact: ArtifactId | None = None
    ) -> PutSealed | PutAccepted:
        request = SealPut(
            session=session,
            artifact=artifact,
            kind=self.marks.kind,
            manifest=manifest,
            labels=self.marks.labels,
            key=self.marks.key,
            expect=self.marks.expect,
            wait=self.waits,
        )
        timeout = SEAL_S + self.intake.size_bytes / SEAL_BYTES_PER_S_MIN
        if self.waits:
            return (await self.connection.ask(request, PutSealed, timeout=timeout))[0]
        return (await self.connection.ask(request, PutAccepted, timeout=timeout))[0]

    def _bare_manifest(self) -> Manifest:
        """Without digests: the mover computes them."""
        size_bytes = self.intake.size_bytes
        return Manifest(
            index=self.intake.index,
            size_bytes=size_bytes,
            chunk_bytes=choose_chunk_bytes(size_bytes),
            digests=b"",
        )


async def make_arena(client: AsyncClient, index: Index, size_bytes: int) -> Arena:
    """Memory of the local mover for tensors of this index. Raises OutOfCapacity, Unavailable."""
    connection = await client.mover.open_connection()
    try:
        request = OpenPut(size_bytes=size_bytes, lasting=True)
        opened, descriptors = await connection.ask(request, PutOpened, timeout=OPEN_S)
    except BaseException:
        connection.close()
        raise
    arena = Arena.over(descriptors, connection, opened.session, index, size_bytes)
    if not opened.is_zero:
        clear_gaps(arena, index, size_bytes)
    client.arenas.add(arena)
    return arena


def clear_gaps(memory: Arena, index: Index, size_bytes: int) -> None:
    """Zeroes what belongs to no tensor: it is part of the content."""
    filled = 0
    for extent in sorted(spec.extent for spec in index):
        if extent.offset > filled:
            memory[filled : extent.offset] = bytes(extent.offset - filled)
        filled = max(filled, extent.end)
    memory[filled:size_bytes] = bytes(size_bytes - filled)


def _fill_segment(
    opened: PutOpened,
    descriptors: Descriptors,
    intake: Intake,
    stop: threading.Event,
    progress: Progress | None,
) -> None:
    """Fills the segment and closes it, so that the mover can seal it."""
    try:
        if len(descriptors) != 1 or opened.capacity_bytes < intake.size_bytes:
            raise Corrupt("The mover's segment is not what was asked for.")
        write(descriptors[0], intake, is_zero=opened.is_zero, stop=stop, progress=progress)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
