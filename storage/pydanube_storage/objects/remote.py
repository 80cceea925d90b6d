"""Object stores behind fsspec: S3 and compatibles by s3fs, Google's by gcsfs, Azure's by adlfs, and memory for tests.

fsspec's listing caches are off, because they may show deleted objects. Its errors are translated into ours here. The
library finds the secrets (environment, profile, instance role). They are never arguments here, and no error text is made
from a request.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from pydanube_core.errors import ClusterError, CorruptObject, ObjectMissing, StoreUnavailable

from pydanube_storage.folders import own_folder
from pydanube_storage.objects.protocol import ObjectFact, check_key
from pydanube_storage.objects.retrying import Retry
from pydanube_storage.objects.store_codes import code_of, is_lasting, remedy_of

T = TypeVar("T")
SLOWEST_BYTES_PER_S: Final = 1 << 20
ATTEMPT_S: Final = 10.0  # beside the answer: to create the client and to connect
_LISTING_S: Final = 600.0
_SPOOL_PREFIX: Final = "danube-spool-"
#: names of the modification time in the listings of file systems
_MODIFIED: Final = ("LastModified", "last_modified", "mtime", "created")
#: error codes of stores for an object that exists already
_TAKEN: Final = ("PreconditionFailed", "412", "BlobAlreadyExists")
_REFUSED: Final = (
    "AccessDenied", "Forbidden", "403", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken",
    "Unable to locate credentials", "AuthenticationFailed", "AuthorizationFailure", "Anonymous caller",
)  # fmt: skip


class FsspecStore:
    """A store of fsspec. `root` is bucket and prefix in the file system's form, `url` the same for people."""

    def __init__(
        self, fs: Any, root: str, *, url: str, retry: Retry | None = None, timeout_s: float | None = None
    ) -> None:
        self._fs = fs
        self._root = root.strip("/")
        self._url = url.rstrip("/")
        self._retry = retry or Retry()
        self._timeout_s = timeout_s
        self._spool = own_folder(_SPOOL_PREFIX, Path(tempfile.gettempdir()))

    @property
    def url(self) -> str:
        return self._url

    @property
    def spool(self) -> Path:
        self._spool.mkdir(mode=0o700, exist_ok=True)  # temporary folders may be cleaned up
        return self._spool

    def _path(self, key: str) -> str:
        return f"{self._root}/{check_key(key)}" if self._root else f"/{check_key(key)}"

    def put(self, key: str, source: Path | bytes) -> None:
        path = self._path(key)
        if isinstance(source, bytes):
            self._call(key, lambda: self._fs.pipe_file(path, source, **self._within(len(source))))
            return
        try:
            size = source.stat().st_size
            self._call(key, lambda: self._fs.put_file(str(source), path, **self._within(size)))
        finally:
            # Also after a failure, because the next attempt writes another file
            if source.parent == self._spool:
                source.unlink(missing_ok=True)

    def _within(self, size: int = 0) -> dict[str, float]:
        """Return the timeout of one attempt. The client's own timeouts cover a store that does not answer, but not one
        that does not read the request."""
        if self._timeout_s is None:
            return {}
        return {"timeout": self._timeout_s + ATTEMPT_S + size / SLOWEST_BYTES_PER_S}

    def create(self, key: str, data: bytes) -> bool:
        path = self._path(key)

        def attempt() -> bool:
            try:
                self._fs.pipe_file(path, data, mode="create", **self._within(len(data)))
            except FileExistsError:
                return False
            except Exception as error:
                if code_of(error) in _TAKEN:
                    return False
                raise
            return True

        return self._call(key, attempt)

    def put_new(self, key: str, data: bytes) -> None:
        path = self._path(key)

        def attempt() -> bool:
            self._fs.invalidate_cache()
            return bool(self._fs.exists(path, **self._within()))

        if not self._call(key, attempt):
            self.create(key, data)

    def read(self, key: str, start: int, end: int) -> bytes:
        path = self._path(key)

        def attempt() -> bytes:
            data: bytes = self._fs.cat_file(path, start=start, end=end, **self._within(end - start))
            if len(data) != end - start:
                raise CorruptObject(
                    f"object {key} in {self.url} gave {len(data)} bytes for the {end - start} from {start} on",
                    store=self.url,
                    key=key,
                    cause="short",
                )
            return data

        return b"" if start == end else self._call(key, attempt)

    def size(self, key: str) -> int:
        path = self._path(key)
        return int(self._call(key, lambda: self._fs.info(path, **self._within()))["size"])

    def list(self, prefix: str) -> Iterator[ObjectFact]:
        folder = self._path(prefix) if prefix else self._root

        def attempt() -> dict[str, Any]:
            self._fs.invalidate_cache()
            try:
                found: dict[str, Any] = self._fs.find(folder, detail=True, **self._listing())
            except FileNotFoundError as error:
                if not self._is_absent(error):
                    raise
                return {}
            return found

        found = self._call(prefix, attempt)
        skip = len(self._root.lstrip("/")) + 1 if self._root else 0
        for path in sorted(found):
            info = found[path]
            if info.get("type") == "directory":
                continue
            modified = next((info[name] for name in _MODIFIED if info.get(name)), None)
            yield ObjectFact(
                key=path.lstrip("/")[skip:],
                bytes=int(info["size"]),
                modified_ms=int(modified.timestamp() * 1000) if isinstance(modified, datetime) else None,
            )

    def folders(self, prefix: str) -> Sequence[str]:
        folder = self._path(prefix) if prefix else self._root

        def attempt() -> list[dict[str, Any]]:
            self._fs.invalidate_cache()
            try:
                entries: list[dict[str, Any]] = self._fs.ls(folder, detail=True)
            except FileNotFoundError as error:
                if not self._is_absent(error):
                    raise
                return []
            return entries

        entries = self._call(prefix, attempt)
        found = (
            entry["name"].rstrip("/").rpartition("/")[2] for entry in entries if entry["type"] == "directory"
        )
        return sorted(name for name in found if name)

    def delete(self, key: str) -> None:
        path = self._path(key)

        def attempt() -> None:
            try:
                self._fs.rm_file(path, **self._within())
            except FileNotFoundError as error:
                if not self._is_absent(error):
                    raise

        self._call(key, attempt)

    def close(self) -> None:
        shutil.rmtree(self._spool, ignore_errors=True)

    def _listing(self) -> dict[str, float]:
        """Limit the time of a listing, which consists of many answers."""
        return {} if self._timeout_s is None else {"timeout": max(_LISTING_S, self._timeout_s)}

    def _call(self, key: str, attempt: Callable[[], T]) -> T:
        try:
            return self._retry.call(attempt, _may_help)
        except ClusterError:
            raise
        except Exception as error:
            self._fail(key, error)

    def _is_absent(self, error: FileNotFoundError) -> bool:
        """Return whether an object or folder is missing: not the bucket, and no local file, as a program that gives
        credentials."""
        if remedy_of(code_of(error), bucket="") is not None:
            return False
        file = str(error.filename or "").lstrip("/")
        return not file or file.startswith(self._root.partition("/")[0])

    def _fail(self, key: str, error: Exception) -> NoReturn:
        bucket = self._root.split("/", 1)[0]
        cause = f"{type(error).__name__}: {str(error) or 'no answer'}"[:300]
        if isinstance(error, FileNotFoundError) and self._is_absent(error):
            raise ObjectMissing(
                f"object {key} is not in {self.url}", store=self.url, bucket=bucket, key=key, cause="missing"
            ) from error
        if (known := remedy_of(code_of(error), bucket=bucket)) is not None:
            remedy = known
        elif isinstance(error, FileNotFoundError):
            remedy = (
                "put the file there that the credentials need (profile, environment), or correct its name"
            )
        elif _refused(error):
            remedy = (
                f"check the credentials (environment or tier.profile) and their rights on the bucket {bucket}"
            )
        else:
            remedy = "check tier.endpoint, the network and the store"
        raise StoreUnavailable(
            f"the object store {self.url} failed{f' at {key}' if key else ''} ({cause}): {remedy}. It is tried again",
            store=self.url,
            bucket=bucket,
            key=key,
            cause=cause,
            remedy=remedy,
        ) from error


def _refused(error: Exception) -> bool:
    text = f"{type(error).__name__} {error}"
    return isinstance(error, PermissionError) or any(word in text for word in _REFUSED)


def _may_help(error: Exception) -> bool:
    """Return whether the same call may succeed soon: not if an object is missing, access refused, or it is our bug."""
    if isinstance(error, FileNotFoundError | TypeError | AttributeError) or _refused(error):
        return False
    if is_lasting(code_of(error)):
        return False
    if isinstance(error, CorruptObject):
        return error.details.get("cause") == "short"  # a body truncated in transit
    return not isinstance(error, ClusterError)
