"""Encryption of records before they leave this machine. The only user of `cryptography`.

Never used by a run without `--replica-key`. AES-256-GCM, as in the `cryptography` package: the one
library of this kind that most distributions, and most Python environments, have already.

    key file   64 hexadecimal digits a line; the first encrypts, all of them decrypt
    sealed     magic (4)  id of the key (8)  keyed hash of the plaintext (16)  nonce (12)
               ciphertext with its tag

S1  What is sealed for one place (a position of a stream, say) opens at that place only.
S2  The keyed hash is of place and plaintext: whoever has no key learns from it only that the same
    thing was sealed twice for the same place. The database compares it.
S3  Each space (a stream, a run) has a key of its own, so that random nonces do not run out.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from hashlib import sha256
from hmac import digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAGIC = b"HSE1"
# Magic, id and hash: equal wherever the same plaintext is sealed with the same key.
COMPARED = 28
_NONCE = 12
_TEXT = "HSE1:"
_SPACES_KEPT = 256
INSTALL = "the cryptography package is missing; install hermes-supervise[encryption]"


class KeyProblem(OSError):
    """There is no usable key; the text says why."""


class Damaged(Exception):
    """What was sealed is not what was stored, or it is from another place."""


def read_keys(path: str) -> list[bytes]:
    """The keys of a key file. Raises KeyProblem."""
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise KeyProblem(f"others may read the key file {path}; run `chmod 600` on it")
            lines = file.read(65536).split(b"\n")
    except OSError as error:
        if isinstance(error, KeyProblem):
            raise
        raise KeyProblem(f"the key file {path} cannot be read: {error.strerror}") from None
    try:
        keys = [bytes.fromhex(line.decode().strip()) for line in lines if line.strip()]
    except ValueError:
        keys = []
    if not keys or any(len(key) != 32 for key in keys):
        raise KeyProblem(
            f"{path} is not a key file: it has to hold 64 hexadecimal digits a line; "
            "`hermes-supervise fleet key PATH` makes one"
        )
    return keys


def id_of(key: bytes) -> bytes:
    return digest(key, b"id", "sha256")[:8]


def key_in(sealed: bytes) -> bytes | None:
    """The id of the key that something was sealed with; None: it is not sealed."""
    return bytes(sealed[4:12]) if sealed[:4] == MAGIC else None


class Sealer:
    """Seals with the first of some keys, and opens with any of them. None at all: plain text."""

    def __init__(self, keys: list[bytes]) -> None:
        self._keys = {id_of(key): key for key in reversed(keys)}
        self._first = id_of(keys[0]) if keys else b""
        self._ciphers: dict[tuple[bytes, str], Any] = {}

    @property
    def seals(self) -> bool:
        return bool(self._keys)

    def lacks(self, ids: set[bytes]) -> list[str]:
        """Of the ids of keys, those that we do not have."""
        return sorted(id.hex() for id in ids - self._keys.keys())

    def seal(self, plain: bytes, space: str, place: int = 0) -> bytes:
        if not self._keys:
            return plain
        where = _where(space, place)
        head = self._head(self._first, where, plain)
        nonce = os.urandom(_NONCE)
        cipher = self._cipher(self._first, space)
        return head + nonce + bytes(cipher.encrypt(nonce, plain, head + where))

    def open(self, sealed: bytes, space: str, place: int = 0) -> bytes:
        """Raises KeyProblem and Damaged. What is not sealed is returned as it is."""
        id = key_in(sealed)
        if id is None:
            return sealed
        if id not in self._keys:
            raise KeyProblem(missing([id.hex()], any_key=self.seals))
        cipher = self._cipher(id, space)  # raises KeyProblem before `cryptography` is asked for
        from cryptography.exceptions import InvalidTag  # an extra

        where = _where(space, place)
        head, rest = bytes(sealed[:COMPARED]), bytes(sealed[COMPARED:])
        try:
            return bytes(cipher.decrypt(rest[:_NONCE], rest[_NONCE:], head + where))
        except (InvalidTag, ValueError):
            raise Damaged(f"{where.decode(errors='replace')} cannot be decrypted") from None

    def may_be(self, hashed: bytes, plain: bytes, space: str, place: int) -> bool:
        """Whether a hash of the database's is of this record: the SHA-256 of what is not sealed,
        or the first bytes of what is. One with a key that we do not have may be of anything: the
        key was changed, and the one before it removed."""
        id = key_in(hashed) if len(hashed) == COMPARED else None
        if id is None:
            return hashed == sha256(plain).digest()
        return id not in self._keys or hashed == self._head(id, _where(space, place), plain)

    def _head(self, id: bytes, where: bytes, plain: bytes) -> bytes:
        hashed = digest(self._derived(id, b"hash"), where + b"\0" + plain, "sha256")
        return MAGIC + id + hashed[: COMPARED - 12]

    def seal_text(self, text: str, space: str) -> str:
        if not self._keys:
            return text
        sealed = self.seal(text.encode("utf-8", "surrogatepass"), space)
        return _TEXT + b64encode(sealed).decode()

    def open_text(self, text: str, space: str) -> str | None:
        """None: it is sealed, and not for us."""
        if not text.startswith(_TEXT):
            return text
        try:
            opened = self.open(b64decode(text[len(_TEXT) :]), space)
            return opened.decode("utf-8", "surrogatepass")
        except (KeyProblem, Damaged, ValueError):
            return None

    def _derived(self, id: bytes, purpose: bytes) -> bytes:
        return digest(self._keys[id], purpose, "sha256")

    def _cipher(self, id: bytes, space: str) -> Any:
        known = self._ciphers.get((id, space))
        if known is not None:
            return known
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # an extra
        except ImportError:
            raise KeyProblem(INSTALL) from None
        if len(self._ciphers) >= _SPACES_KEPT:
            self._ciphers.clear()
        purpose = b"space/" + space.encode("utf-8", "surrogateescape")
        made = self._ciphers[id, space] = AESGCM(self._derived(id, purpose))
        return made


def _where(space: str, place: int) -> bytes:
    return f"{space}/{place}".encode("utf-8", "surrogateescape")


def load(path: str | None) -> Sealer:
    """Raises KeyProblem."""
    return Sealer([] if path is None else read_keys(path))


def missing(ids: list[str], *, any_key: bool) -> str:
    which = ", ".join(ids)
    if any_key:
        return f"the records are encrypted with another key than those of --replica-key: {which}"
    return f"the records are encrypted (key {which}); name the key file with --replica-key"


def new_key() -> str:
    return os.urandom(32).hex() + "\n"


def is_installed() -> bool:
    from importlib.util import find_spec  # start-up: only with --replica-key

    try:
        return find_spec("cryptography") is not None
    except ImportError:
        return False
