"""An object store that speaks S3 as a sink of files needs it: objects that appear whole, and a put that replaces none.

Paths are relative to the sink's folder. Methods raise SinkUnavailableError when the store does not answer,
SinkRefusedError where it says no, and FileNotFoundError as said.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import boto3
from botocore import exceptions as of_client
from botocore.config import Config

from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.errors import ConfigurationError, SinkRefusedError, SinkUnavailableError

#: What a connection's extra may say. Others are refused: a role that is not assumed would deliver as somebody else.
_EXTRAS = frozenset({"region_name", "endpoint_url", "aws_session_token"})
#: How often the store may say that another request to the same object is under way.
_CONFLICTS = 20
_CONFLICT_SECONDS = 0.25


class ObjectStore:
    """``prefix``: of all that is the sink's; without a slash at its ends, it may be empty."""

    def __init__(self, bucket: str, prefix: str, credentials: Credentials | None) -> None:
        found = credentials or Credentials("")
        if odd := sorted(set(found.extra) - _EXTRAS):
            raise ConfigurationError(
                f"connection {found.conn_id}: expected extras of {', '.join(sorted(_EXTRAS))}, found "
                f"{', '.join(odd)}; remove it, or leave conn_id out and have the worker's own AWS configuration say it"
            )
        endpoint = found.extra.get("endpoint_url")
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._client: Any = boto3.session.Session(
            aws_access_key_id=found.login or None,
            aws_secret_access_key=found.password or None,
            aws_session_token=found.extra.get("aws_session_token"),
            region_name=found.extra.get("region_name"),
        ).client(
            "s3",
            endpoint_url=endpoint,
            config=Config(
                connect_timeout=10,
                read_timeout=60,
                retries={"mode": "standard", "total_max_attempts": 2},
                # a store of one's own seldom has a name for each bucket
                s3={"addressing_style": "path"} if endpoint else {},
            ),
        )

    def names(self, folder: str) -> list[str]:
        """Return the names of what lies in a folder, in order."""
        start = len(self._prefix) + len(folder) + 1
        found: list[str] = []
        for page in self._pages(f"{folder}/", Delimiter="/"):
            found += (each["Prefix"][start:-1] for each in page.get("CommonPrefixes", ()))
            found += (each["Key"][start:] for each in page.get("Contents", ()))
        return sorted(found)

    def paths(self, folder: str, start: str = "") -> list[str]:
        """All that is under it, however deep, from the name ``start`` on, relative to it."""
        begin = len(self._prefix) + len(folder) + 1
        pages = self._pages(f"{folder}/", StartAfter=f"{self._prefix}{folder}/{start}")
        return [each["Key"][begin:] for page in pages for each in page.get("Contents", ())]

    def read(self, path: str) -> bytes:
        """Raises FileNotFoundError."""
        with self._told(path):
            return bytes(self._client.get_object(Bucket=self._bucket, Key=self._key(path))["Body"].read())

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        """An object, to be written; it is there once the block has ended."""
        with tempfile.TemporaryFile() as file:
            yield file
            file.seek(0)
            with self._told(path):
                # In one request, so that a dead deliverer leaves no parts of an upload, which cost and are not listed.
                self._client.put_object(Bucket=self._bucket, Key=self._key(path), Body=file)

    def put_new(self, path: str, data: bytes) -> bool:
        """An object of that name, unless there is one. False: there is, and it was not changed."""
        for _ in range(_CONFLICTS):
            with self._told(path):
                try:
                    self._client.put_object(Bucket=self._bucket, Key=self._key(path), Body=data, IfNoneMatch="*")
                except of_client.ClientError as error:
                    if _status(error) == 412:
                        return False
                    if _status(error) != 409:
                        raise
                else:
                    return True
            time.sleep(_CONFLICT_SECONDS)
        raise SinkUnavailableError(
            f"{self._url(path)}: expected the object store to decide who puts it, found that it named a conflict with "
            f"another request {_CONFLICTS} times; it is tried again; if it stays so, see which tasks deliver there"
        )

    def remove(self, path: str) -> None:
        """Nothing happens if it is not there."""
        with self._told(path):
            self._client.delete_object(Bucket=self._bucket, Key=self._key(path))

    def close(self) -> None:
        self._client.close()

    def _pages(self, prefix: str, **options: str) -> Iterator[Any]:
        asked = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=f"{self._prefix}{prefix}", **options
        )
        with self._told(prefix):
            yield from asked

    def _key(self, path: str) -> str:
        return f"{self._prefix}{path}"

    def _url(self, path: str) -> str:
        return f"s3://{self._bucket}/{self._key(path)}"

    @contextmanager
    def _told(self, path: str) -> Iterator[None]:
        """The client's errors as those of a sink, but for what is not there."""
        silent = (of_client.ConnectionError, of_client.HTTPClientError, of_client.IncompleteReadError, OSError)
        try:
            yield
        except of_client.ClientError as error:
            status, code = _status(error), error.response["Error"].get("Code")
            if code == "NoSuchKey":
                raise FileNotFoundError(self._url(path)) from error
            if 400 <= status < 500 and status not in (408, 409, 429):
                raise SinkRefusedError(
                    f"{self._url(path)}: expected rights to list, read, write and delete there, in a bucket that "
                    f"exists, found {error}; correct the url, the connection or the bucket's policy"
                ) from error
            if status == 501:
                raise SinkRefusedError(
                    f"{self._url(path)}: expected an object store with conditional puts (If-None-Match), found "
                    f"{error}; deliver to one that has them, to a disk or to HDFS"
                ) from error
            raise self._unavailable(path, error) from error
        except silent as error:
            raise self._unavailable(path, error) from error
        except of_client.BotoCoreError as error:
            raise SinkRefusedError(
                f"{self._url(path)}: expected settings that a request can be made of, found {type(error).__name__}: "
                f"{error}; correct the url or the connection"
            ) from error

    def _unavailable(self, path: str, error: Exception) -> SinkUnavailableError:
        return SinkUnavailableError(
            f"{self._url(path)}: expected the object store to answer, found {type(error).__name__}: {error}; it is "
            "tried again; if it stays so, see whether it is up, and can be reached from the worker"
        )


def _status(error: Any) -> int:
    return int(error.response["ResponseMetadata"]["HTTPStatusCode"])
