"""Objects of S3 and other stores, through obstore: read by ranges from several threads, written in
parts. Nothing is seen of an object before all of it is there, and what is read comes from the one
version that was opened.

Addresses are URLs: s3://bucket/path, gs://bucket/path, az://container/path, and http(s):// to read.
Credentials, region and endpoint come from the environment as every tool of that store reads them
(AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME),
on S3 also from its configuration files when boto3 is installed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

from tensorcast.schema.errors import (
    Conflict,
    Corrupt,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    TensorCastError,
    Unavailable,
)
from tensorcast.storage.reader import Part

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import (
        ClientConfig,
        HTTPStore,
        ObjectStore,
        RetryConfig,
        S3Config,
        S3CredentialProvider,
    )

SCHEMES: Final = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "http", "https")
REQUESTS_MAX: Final = 16
"""Range reads of one object that are under way at once."""
RANGE_BYTES: Final = 8 << 20
PART_BYTES_MIN: Final = 8 << 20
PARTS_MAX: Final = 9000
HEAD_BYTES: Final = 256 << 10
"""What is read of an object when it is opened: most headers lie in it."""
RETRIES_MAX: Final = 4
RETRY_S_MAX: Final = 30.0
CONNECT_S_MAX: Final = 5.0
REQUEST_S_MAX: Final = 120.0

_SETTINGS: Final = ("AWS_", "GOOGLE_", "AZURE_")
_NO_SUCH_RANGE: Final = "416"
_URL: Final = re.compile(r"([a-z][a-z0-9+.-]*)://([^/]*)/*(.*)", re.DOTALL)


class Place(NamedTuple):
    """Where an object or a folder of them is: `root` is the URL of the store, `path` lies in it."""

    root: str
    path: str

    @property
    def url(self) -> str:
        return f"{self.root}/{self.path}" if self.path else self.root

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        dot = self.name.rfind(".")
        return self.name[dot:] if dot > 0 else ""

    def child(self, name: str) -> Place:
        """What has this name in the folder."""
        return Place(self.root, f"{self.path}/{name}" if self.path else name)

    def __str__(self) -> str:
        return self.url


def is_url(text: object) -> bool:
    """Whether this names something in a store, not a path of this machine."""
    return isinstance(text, str) and _URL.fullmatch(text) is not None


def parse_url(text: str) -> Place:
    """Raises InvalidArgument for what is no URL of a store."""
    found = _URL.fullmatch(text)
    if found is None or found[1] not in SCHEMES:
        raise InvalidArgument(
            f"{text!r} is no URL of a store.", hint=f"Known are {', '.join(SCHEMES)}."
        )
    scheme, bucket, path = found.groups()
    if not bucket:
        raise InvalidArgument(f"{text!r} names no bucket.", hint="Write it as s3://bucket/path.")
    if scheme.startswith("http"):
        path = unquote(path.partition("?")[0])
    return Place(f"{scheme}://{bucket}", path.rstrip("/"))


class Version(NamedTuple):
    """An object as it was when it was opened; `tag` is None where a store has none."""

    size_bytes: int
    tag: str | None


class Store:
    """One bucket. Safe in several threads. Every method blocks, and raises NotFound,
    PermissionDenied, Unavailable (after some retries) or InvalidArgument."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._inner = _open_inner(root)

    def list_names(self, folder: str) -> tuple[str, ...]:
        """The names of the objects right in a folder, sorted."""
        import obstore

        with _told(Place(self.root, folder)):
            found = obstore.list_with_delimiter(self._lists(), folder or None)
        return tuple(sorted(meta["path"].rpartition("/")[2] for meta in found["objects"]))

    def exists(self, path: str) -> bool:
        """Whether an object is there."""
        import obstore

        with suppress(NotFound), _told(Place(self.root, path)):
            obstore.head(self._inner, path)
            return True
        return False

    @property
    def can_list(self) -> bool:
        """Whether it tells the names of its objects: a plain web server does not."""
        return not self.root.startswith("http")

    def read_whole(self, path: str, bytes_max: int) -> bytes:
        """A small object; of one that is larger, one byte more than `bytes_max`."""
        version, head = self.read_head(path)
        wanted = min(version.size_bytes, bytes_max + 1)
        if len(head) >= wanted:
            return head[:wanted]
        return bytes(self.read(path, version, 0, wanted))

    def read_head(self, path: str) -> tuple[Version, bytes]:
        """An object's version and its first bytes (HEAD_BYTES, or all)."""
        import obstore
        from obstore.exceptions import GenericError

        with _told(Place(self.root, path)):
            try:
                answer = obstore.get(self._inner, path, options={"range": (0, HEAD_BYTES)})
            except GenericError as error:
                if _NO_SUCH_RANGE not in str(error):
                    raise
                meta = obstore.head(self._inner, path)  # it is empty
                return Version(meta["size"], meta.get("e_tag")), b""
            version = Version(answer.meta["size"], answer.meta.get("e_tag"))
            return version, bytes(answer.bytes())

    def read(self, path: str, version: Version, position: int, size: int) -> memoryview:
        """A range of this version of an object; fewer bytes where the store sends fewer. Raises
        Corrupt when the object has changed."""
        import obstore

        with _told(Place(self.root, path)):
            options: GetOptions = {"range": (position, position + size)}
            if version.tag is not None:
                options["if_match"] = version.tag
            answer = obstore.get(self._inner, path, options=options)
            return memoryview(answer.bytes())

    def write(self, path: str, pieces: Iterable[memoryview], total_bytes: int) -> None:
        """Writes an object of several parts, over one that may be there: all of it or nothing. An
        error of `pieces` ends it and comes through."""
        import obstore

        part_bytes = max(PART_BYTES_MIN, -(-total_bytes // PARTS_MAX))
        place = Place(self.root, path)
        with _told(place):
            obstore.put(
                self._writes(place), path, _named(pieces), chunk_size=part_bytes, max_concurrency=8
            )

    def write_new(self, path: str, content: bytes) -> bool:
        """Writes a small object unless one is there; returns whether it was written."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        place = Place(self.root, path)
        with _told(place):
            try:
                obstore.put(self._writes(place), path, content, mode="create")
            except AlreadyExistsError:
                return False
        return True

    def remove(self, path: str) -> None:
        """Removes an object. Safe to repeat."""
        import obstore

        place = Place(self.root, path)
        with suppress(NotFound), _told(place):
            obstore.delete(self._writes(place), path)

    def _lists(self) -> ObjectStore:
        from obstore.store import HTTPStore

        if isinstance(self._inner, HTTPStore):
            raise InvalidArgument(f"{self.root} cannot list files.", hint="Name the file itself.")
        return self._inner

    def _writes(self, place: Place) -> ObjectStore:
        from obstore.store import HTTPStore

        if isinstance(self._inner, HTTPStore):
            raise InvalidArgument(f"{place} can only be read.", hint="Write to s3:// or a path.")
        return self._inner


def open_store(root: str) -> Store:
    """The store behind a URL without a path. Stores are kept, with their connections, for as long
    as the settings in the environment are the same. Raises as the methods of `Store`."""
    settings = tuple(
        (name, value) for name, value in sorted(os.environ.items()) if name.startswith(_SETTINGS)
    )
    return _keep_store(root, settings)


@lru_cache(maxsize=16)
def _keep_store(root: str, settings: tuple[tuple[str, str], ...]) -> Store:
    return Store(root)


class ObjectReader:
    """A `Source` over one version of an object. Opening it takes one request."""

    def __init__(self, store: Store, path: str) -> None:
        self._store = store
        self._path = path
        self._version, self._head = store.read_head(path)

    @property
    def name(self) -> str:
        return Place(self._store.root, self._path).url

    @property
    def size_bytes(self) -> int:
        return self._version.size_bytes

    def read(self, parts: Sequence[Part], position: int) -> int:
        total = sum(part if isinstance(part, int) else part.nbytes for part in parts)
        total = max(0, min(total, self.size_bytes - position))
        if position + total <= len(self._head):
            content = memoryview(self._head)[position : position + total]
        elif total:
            content = self._store.read(self._path, self._version, position, total)
        else:
            return 0
        return _fill(parts, content)


def _fill(parts: Sequence[Part], content: memoryview) -> int:
    at = 0
    for part in parts:
        size = part if isinstance(part, int) else part.nbytes
        taken = min(size, content.nbytes - at)
        if not isinstance(part, int):
            part[:taken] = content[at : at + taken]
        at += taken
    return at


def _named(pieces: Iterable[memoryview]) -> Iterator[bytes]:
    """The library keeps what it is given until it is sent, so it gets bytes of its own."""
    for piece in pieces:
        yield bytes(piece)


# ---- the library -------------------------------------------------------------------------------


def _open_inner(root: str) -> ObjectStore | HTTPStore:
    from obstore.store import S3Store, from_url

    retry: RetryConfig = {
        "max_retries": RETRIES_MAX,
        "retry_timeout": timedelta(seconds=RETRY_S_MAX),
        "backoff": {
            "init_backoff": timedelta(milliseconds=100),
            "max_backoff": timedelta(seconds=2),
            "base": 2,
        },
    }
    client: ClientConfig = {
        "connect_timeout": timedelta(seconds=CONNECT_S_MAX),
        "timeout": timedelta(seconds=REQUEST_S_MAX),
        "allow_http": _may_use_http(root),
    }
    with _told(Place(root, "")):
        if not root.startswith("s3"):
            return from_url(root, client_options=client, retry_config=retry)
        config: S3Config = {"endpoint": _endpoint()} if _endpoint() else {}
        return S3Store.from_url(
            root,
            config=config,
            client_options=client,
            retry_config=retry,
            credential_provider=_configured_credentials(),
        )


def _may_use_http(root: str) -> bool:
    """Plain HTTP only where the URL or the endpoint of the environment asks for it."""
    return root.startswith("http://") or _endpoint().startswith("http://")


def _endpoint() -> str:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")


def _configured_credentials() -> S3CredentialProvider | None:
    """From ~/.aws and the like, as boto3 finds them. None when the environment has some, without
    boto3, or when it finds none."""
    if any(name in os.environ for name in ("AWS_ACCESS_KEY_ID", "AWS_SKIP_SIGNATURE")):
        return None
    try:
        found = import_module("obstore.auth.boto3")
        provider: S3CredentialProvider = found.Boto3CredentialProvider()
    except (ImportError, ValueError):
        return None
    return provider


@contextmanager
def _told(place: Place) -> Iterator[None]:
    """Errors of the library as ours, with the URL."""
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, FileNotFoundError) as error:
        raise explain(error, place) from error


def explain(error: Exception, place: Place) -> TensorCastError:
    """What an error of the library means for whoever wanted `place`."""
    from obstore import exceptions

    text = str(error)
    if "NoSuchBucket" in text or "ContainerNotFound" in text:
        return NotFound(
            f"There is no bucket {place.root}.", hint="Check its name and the endpoint."
        )
    match error:
        case FileNotFoundError():
            return NotFound(f"There is no object {place}.", hint="It, or its bucket, is missing.")
        case exceptions.PermissionDeniedError() | exceptions.UnauthenticatedError():
            return PermissionDenied(
                f"The store refuses access to {place}.",
                hint="Check the credentials in the environment (for S3 AWS_ACCESS_KEY_ID).",
            )
        case exceptions.PreconditionError() | exceptions.NotModifiedError():
            return Corrupt(f"{place} changed while it was read.", hint="Read it again.")
        case exceptions.AlreadyExistsError():
            return Conflict(f"{place} exists.")
        case exceptions.InvalidPathError() | exceptions.NotSupportedError():
            return InvalidArgument(f"{place} cannot be used: {_first_line(text)}")
        case exceptions.UnknownConfigurationKeyError():
            return InvalidArgument(f"The settings for {place.root} are wrong: {_first_line(text)}")
    if "credential" in text.lower():
        return PermissionDenied(
            f"There are no credentials for {place}.",
            hint="Set those of the store in the environment (for S3 AWS_ACCESS_KEY_ID).",
        )
    return Unavailable(
        f"{place} cannot be reached: {_first_line(text)}",
        hint="Check the endpoint and the network.",
    )


def _first_line(text: str) -> str:
    """The library tells much: the last cause of its first line is what people need."""
    line = text.partition("\n")[0].strip()
    return line if len(line) <= 300 else f"{line[:300]}..."
