"""How a Kafka cluster is entered: from one Airflow connection of type `kafka`, for the client here and for Spark's.

The connection's extra is librdkafka's configuration, as Airflow's own Kafka provider has it. What of it says where the
brokers are and who enters is taken; what belongs to one consumer or producer, such as `group.id`, is left.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_barrier.protocol import datasets
from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONN_TYPE = "kafka"

_TAKEN = frozenset(
    {
        "bootstrap.servers",
        "security.protocol",
        "sasl.mechanism",
        "sasl.username",
        "sasl.password",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.key.location",
        "ssl.key.pem",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
    }
)
#: librdkafka has two names for it.
_ALSO = {"sasl.mechanisms": "sasl.mechanism"}
#: Those that both clients take a name and a password for.
_LOGINS = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
#: A session's conf: what is left out of texts.
REDACTED = "spark.sql.redaction.string.regex"
#: As a plan's text has them, which may end in the middle of one.
_SECRET_OPTIONS = r"""key: "kafka\.(?:sasl|ssl)\.[^"]*+"\s++value: "[^"\\]*+(?:\\.[^"\\]*+)*+"""
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}\Z")
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


def topic_fault(name: str) -> str | None:
    """Return why Kafka has no topic of this name, as "expected …, found …"; None: it may have one.

    >>> topic_fault("purchases"), topic_fault("..")
    (None, "expected the name of a topic, of 1 to 249 letters, digits, '.', '_' and '-', found '..'")
    """
    if _TOPIC.match(name) and name not in (".", ".."):
        return None
    return f"expected the name of a topic, of 1 to 249 letters, digits, '.', '_' and '-', found {name!a}"


def client_settings(what: str, credentials: Credentials | None) -> dict[str, Any]:
    """librdkafka's settings; ``what`` enters, such as `source purchases`, is for errors.

    Raises ConfigurationError, which quotes no setting's value that may be secret.
    """
    if credentials is None:
        raise ConfigurationError(f"{what}: expected a connection of type {CONN_TYPE}, found none; define it")
    found = {_ALSO.get(name, name): value for name, value in credentials.extra.items()}
    settings: dict[str, Any] = {name: value for name, value in found.items() if name in _TAKEN}
    where = f"{what}: connection {credentials.conn_id}"
    if not settings.get("bootstrap.servers"):
        raise ConfigurationError(
            f"{where}: expected 'bootstrap.servers' in its extra, found none; give it the brokers' addresses: "
            '{"bootstrap.servers": "kafka-1:9092,kafka-2:9092"}'
        )
    protocol = settings.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in _PROTOCOLS:
        raise ConfigurationError(
            f"{where}: expected security.protocol to be one of {', '.join(_PROTOCOLS)}, found {protocol!r}"
        )
    mechanism = settings.get("sasl.mechanism")
    if protocol.startswith("SASL") and mechanism not in _LOGINS:
        raise ConfigurationError(
            f"{where}: expected sasl.mechanism to be one of {', '.join(_LOGINS)}, found {mechanism or 'none'}"
        )
    return settings


def dataset(topic: str, credentials: Credentials | None) -> tuple[str, str]:
    """Return the topic's namespace and name in OpenLineage."""
    return datasets.topic("" if credentials is None else credentials.extra.get("bootstrap.servers", ""), topic)


def spark_settings(what: str, credentials: Credentials | None) -> dict[str, str]:
    """The same as options of Spark's Kafka connector. Certificates and keys are in them, since executors have no such
    files.

    Raises ConfigurationError.
    """
    found = client_settings(what, credentials)
    settings: dict[str, str] = {
        name: found[name] for name in ("bootstrap.servers", "security.protocol", "sasl.mechanism") if name in found
    }
    if "ssl.endpoint.identification.algorithm" in found:
        # Java says "none" by an empty text
        algorithm = found["ssl.endpoint.identification.algorithm"]
        settings["ssl.endpoint.identification.algorithm"] = "" if algorithm == "none" else algorithm
    if found.get("security.protocol", "").upper().startswith("SASL"):
        module = _LOGINS[found["sasl.mechanism"]]
        user, password = (_quoted(found.get(f"sasl.{name}", "")) for name in ("username", "password"))
        settings["sasl.jaas.config"] = f"{module} required username={user} password={password};"
    authority, certificate, key = (_pem(what, found, name) for name in ("ca", "certificate", "key"))
    if authority:
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authority}
    if certificate and key:
        settings |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": certificate,
            "ssl.keystore.key": _opened(what, key, found.get("ssl.key.password")),
        }
    return {f"kafka.{name}": value for name, value in settings.items()}


def keep_off_pages(spark: SparkSession) -> None:
    """Have a Spark Connect server leave out of its pages what lets the session in: they show a plan's options."""
    found = spark.conf.get(REDACTED, "") or ""
    if _SECRET_OPTIONS not in found:
        spark.conf.set(REDACTED, f"{found}|{_SECRET_OPTIONS}".lstrip("|"))


def _pem(what: str, settings: dict[str, Any], name: str) -> str | None:
    text: str | None = settings.get(f"ssl.{name}.pem")
    path = settings.get(f"ssl.{name}.location")
    if text is not None or path is None:
        return text
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{what}: expected a PEM file that this worker can read as ssl.{name}.location, found "
            f"{type(error).__name__} at {path}; put it there, or give its text as ssl.{name}.pem"
        ) from error


def _opened(what: str, key: str, password: str | None) -> str:
    """A private key as Java 17 reads one: PKCS #8, without the encryptions that are usual there. Spark is told it where
    it would be told the password.
    """
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
    )

    try:
        read = load_pem_private_key(key.encode(), password.encode() if password else None)
    except (TypeError, ValueError) as error:  # whose texts quote nothing
        raise ConfigurationError(
            f"{what}: expected a private key in PEM as ssl.key, which ssl.key.password opens if it is encrypted, "
            f"found: {error}; correct the connection's extra"
        ) from None
    return read.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def _quoted(text: str) -> str:
    """A value in Java's login configuration."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
