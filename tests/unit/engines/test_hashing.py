import hashlib
import random
import warnings

import pytest

from tensorcast.engines.vllm.hashing import encode_cbor, hash_blocks, root_hash


@pytest.mark.parametrize(
    ("item", "encoded"),
    [
        (None, "f6"),
        (0, "00"),
        (23, "17"),
        (24, "1818"),
        (255, "18ff"),
        (256, "190100"),
        (65536, "1a00010000"),
        (1 << 32, "1b0000000100000000"),
        (-1, "20"),
        (-500, "3901f3"),
        (b"ab", "426162"),
        ("é", "62c3a9"),
        ((), "80"),
        ((1, (b"", None)), "82018240f6"),
        (tuple(range(25)), "9819" + "".join(f"{n:02x}" for n in range(24)) + "1818"),
    ],
)
def test_the_canonical_form(item, encoded):
    assert encode_cbor(item).hex() == encoded


def test_numbers_have_an_end():
    with pytest.raises(OverflowError):
        encode_cbor(1 << 64)


def test_blocks_chain():
    root = root_hash()
    assert root == hashlib.sha256(b"\x6evllm-none-hash").digest()
    first, second = hash_blocks([1, 2, 3, 4, 5], 2, root=root)
    assert second == hashlib.sha256(encode_cbor((first, (3, 4), None))).digest()
    assert hash_blocks([1], 2, root=root) == []


def vllm_modules():
    pytest.importorskip("vllm")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from vllm.utils.hashing import sha256_cbor
        from vllm.v1.core import kv_cache_utils
    return sha256_cbor, kv_cache_utils


@pytest.mark.parametrize("seed", [None, "0", "some seed"])
@pytest.mark.parametrize("extras", [{}, {"salt": "s"}, {"lora": ("a", "/p")}])
def test_hashes_are_those_of_vllm(monkeypatch, seed, extras):
    """Against the real one: only where vLLM is installed."""
    sha256_cbor, utils = vllm_modules()
    if seed is None:
        monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    else:
        monkeypatch.setenv("PYTHONHASHSEED", seed)
    utils.init_none_hash(sha256_cbor)
    root = root_hash() if seed is None else root_hash(seed)
    assert root == bytes(utils.NONE_HASH)
    dice = random.Random(7)
    tokens = [dice.choice((0, 23, 24, 255, 256, 65_535, 65_536, 151_000)) for _ in range(70)]
    parent, expected = None, []
    for start in range(0, 64, 16):
        extra = []
        if "lora" in extras:
            extra.append(("lora", *extras["lora"]))
        if "salt" in extras and not start:
            extra.append(("cache_salt", extras["salt"]))
        block = tokens[start : start + 16]
        parent = utils.hash_block_tokens(sha256_cbor, parent, block, tuple(extra) or None)
        expected.append(bytes(parent))
    assert hash_blocks(tokens, 16, root=root, **extras) == expected
