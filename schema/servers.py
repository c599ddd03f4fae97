"""Several servers in one setting: URLs with commas between, any one of which will do."""

from __future__ import annotations

from urllib.parse import urlsplit


def split_servers(urls: str) -> tuple[str, ...]:
    """The URLs in `nats://ada:secret@h1:4222,h2:4222`: one without a scheme has that of the first,
    and its user and password."""
    first, *others = (part.strip() for part in urls.split(","))
    scheme, _, rest = first.partition("://")
    user, at, _ = rest.rpartition("@")
    return (first, *(url if "://" in url else f"{scheme}://{user}{at}{url}" for url in others))


def name_servers(urls: str) -> str:
    """The hosts and ports of the servers, without users and passwords."""
    return ",".join(urlsplit(url).netloc.rpartition("@")[2] or url for url in split_servers(urls))
