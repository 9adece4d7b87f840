"""Files that arrive in parts: what has come stays, what is not what was announced goes."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from jellybean_agent import InvalidInputError
from jellybean_agent.process.content_store import ContentStore

CONTENT = b"a model"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def test_a_file_is_complete_only_at_its_end_and_goes_on_where_it_stopped() -> None:
    store = ContentStore()
    assert asyncio.run(store.append(SHA256, CONTENT[:3])) == 3
    assert not store.path(SHA256).exists()
    assert store.received_bytes(SHA256) == 3
    asyncio.run(store.append(SHA256, CONTENT[3:]))
    asyncio.run(store.complete(SHA256))
    assert store.path(SHA256).read_bytes() == CONTENT
    assert store.received_bytes(SHA256) == 0
    store.close()
    assert not store.path(SHA256).exists()
    store.close()


def test_other_content_is_not_kept() -> None:
    store = ContentStore()
    asyncio.run(store.append(SHA256, b"another"))
    with pytest.raises(InvalidInputError, match="it was announced as"):
        asyncio.run(store.complete(SHA256))
    assert (store.received_bytes(SHA256), store.path(SHA256).exists()) == (0, False)
    store.close()


def test_only_what_is_needed_is_kept() -> None:
    store, empty = ContentStore(), hashlib.sha256(b"").hexdigest()
    asyncio.run(store.complete(empty))
    asyncio.run(store.append(SHA256, CONTENT[:3]))
    store.keep_only({empty})
    assert [path.name for path in store.folder.iterdir()] == [empty]
    store.close()


@pytest.mark.parametrize("name", ["", "..", "../" + SHA256, SHA256.upper(), SHA256 + "0"])
def test_names_that_are_no_digests_are_refused(name: str) -> None:
    store = ContentStore()
    with pytest.raises(InvalidInputError, match="is no sha256"):
        store.path(name)
    store.close()
