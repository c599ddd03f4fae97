"""A put from end to end: look at what is given, get a segment (if it needs one), fill it, seal it.

Whatever goes wrong on the way, the connection closes, which gives the segment back to the mover,
and nothing is registered.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard

from tensorcast.client.faults import not_text
from tensorcast.client.filling import Intake, Progress, Sealed, digest, fill
from tensorcast.client.handles import AsyncArtifact
from tensorcast.client.naming import What
from tensorcast.client.socket import Connection, Descriptors
from tensorcast.schema.aggregates.artifact import KINDS, LABELS_MAX
from tensorcast.schema.errors import Corrupt, InvalidArgument, NotFound, TensorCastError
from tensorcast.schema.ids import ArtifactId, Key, parse_key
from tensorcast.schema.socket import (
    NO_SESSION,
    Get,
    Granted,
    OpenPut,
    Prepare,
    Prospect,
    PutOpened,
    PutSealed,
    SealPut,
)

if TYPE_CHECKING:
    from tensorcast.client.session import AsyncClient, Contents

SEAL_S = 60.0
MARKS_S = 5.0

__all__ = ["Progress", "publish"]


async def publish(
    client: AsyncClient,
    contents: Contents,
    *,
    key: str | None,
    kind: str,
    labels: dict[str, str],
    expect: What | None,
    progress: Progress | None,
) -> AsyncArtifact:
    """As `AsyncClient.put`."""
    target = parse_key(key) if key is not None else None
    check_marks(kind, labels)
    expected = await client.api.expected(expect)
    with contextlib.ExitStack() as opened:
        intake = await client.run(lambda _: opened.enter_context(take_in(contents)))
        async with client.mover.connection(is_fresh=True) as connection:
            put = _Put(client, connection, intake, progress, kind, labels, target, expected)
            answer = await put.carry_out()
            stored = await put.find_marks(answer)
    client.position.advance(answer.seq)
    return AsyncArtifact(client, answer.artifact, *stored, intake.index)


def check_marks(kind: str, labels: Mapping[str, str]) -> None:
    """Raises InvalidArgument for a kind or labels that no artifact can have; better before the
    bytes are copied than after."""
    if kind not in KINDS:
        raise InvalidArgument(
            f"{kind!r} is not a kind of artifact.", hint=f"Use one of {', '.join(KINDS)}."
        )
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

    given: Sequence[object] = tuple(contents) if _is_several(contents) else (contents,)
    paths = find_files(given)
    if is_torch_file(paths):
        from tensorcast.client.layout import take_in_tensors
        from tensorcast.client.torchfile import read_torch_file

        yield take_in_tensors(read_torch_file(paths[0]))
        return
    with open_safetensors(paths) as intake:
        yield intake


def _is_several(contents: object) -> TypeGuard[Iterable[object]]:
    """Whether these are several things to put, not one."""
    is_one = isinstance(contents, str | bytes | os.PathLike)
    return isinstance(contents, Iterable) and not is_one


@dataclass(frozen=True)
class _Put:
    """A put under way, on a connection of its own."""

    client: AsyncClient
    connection: Connection
    intake: Intake
    progress: Progress | None
    kind: str
    labels: dict[str, str]
    key: Key | None
    expect: ArtifactId | None

    async def carry_out(self) -> PutSealed:
        """Takes no memory, and drives nothing out of it, for bytes that need none."""
        if await self._may_need_no_memory():
            sealed = await self.client.run(
                lambda stop: digest(self.intake, stop=stop, progress=self.progress)
            )
            with contextlib.suppress(NotFound):
                return await self._seal(NO_SESSION, sealed)
        session, sealed = await self._write()
        return await self._seal(session, sealed)

    async def find_marks(self, sealed: PutSealed) -> tuple[str, dict[str, str]]:
        """The kind and labels that are stored: content that was there before keeps its own. When
        they cannot be asked for (the put is done all the same), those that were given."""
        question = Get(what=sealed.artifact, after=sealed.seq, timeout_s=MARKS_S)
        try:
            granted, descriptors = await self.connection.ask(question, Granted, timeout=MARKS_S)
        except TensorCastError:
            return self.kind, self.labels
        for descriptor in descriptors:
            os.close(descriptor)
        return granted.kind, granted.labels

    async def _may_need_no_memory(self) -> bool:
        """Whether it pays to know the identity first: the key decides by it whether this is a
        conflict or done already, and memory must not be made for what is there."""
        request = Prepare(size_bytes=self.intake.size_bytes, key=self.key)
        prospect, _ = await self.connection.ask(request, Prospect)
        is_key_taken = self.key is not None and prospect.key_artifact != self.expect
        return is_key_taken or not prospect.fits

    async def _write(self) -> tuple[int, Sealed]:
        request = OpenPut(size_bytes=self.intake.size_bytes)
        opened, descriptors = await self.connection.ask(request, PutOpened)
        sealed = await self.client.run(
            lambda stop: _fill_segment(opened, descriptors, self.intake, stop, self.progress)
        )
        return opened.session, sealed

    async def _seal(self, session: int, sealed: Sealed) -> PutSealed:
        request = SealPut(
            session=session,
            artifact=sealed.artifact,
            kind=self.kind,
            manifest=sealed.manifest,
            labels=self.labels,
            key=self.key,
            expect=self.expect,
        )
        answer, _ = await self.connection.ask(request, PutSealed, timeout=SEAL_S)
        return answer


def _fill_segment(
    opened: PutOpened,
    descriptors: Descriptors,
    intake: Intake,
    stop: threading.Event,
    progress: Progress | None,
) -> Sealed:
    """Maps the segment, fills it and unmaps it, so that the mover can seal it."""
    try:
        if len(descriptors) != 1 or opened.capacity_bytes < intake.size_bytes:
            raise Corrupt("The mover's segment is not what was asked for.")
        if intake.size_bytes == 0:
            return fill(memoryview(b""), intake, is_zero=True, stop=stop, progress=progress)
        with (
            mmap.mmap(descriptors[0], intake.size_bytes) as segment,
            memoryview(segment) as memory,
        ):
            return fill(memory, intake, is_zero=opened.is_zero, stop=stop, progress=progress)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
