from __future__ import annotations

import pytest

from airflow_barrier.protocol.secrets import without_secrets

SECRET = "geheim-42/+_~."


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://dwh:{SECRET.replace('/', '%2F')}@db:5432/dwh",
        f"jdbc:postgresql://db/dwh?user=dwh&password={SECRET}&ssl=true",
        f"jdbc:sqlserver://db;user=dwh;password={SECRET};encrypt=true",
        f"DB_PASSWORD={SECRET} was refused",
        f"{{'user': 'dwh', 'password': '{SECRET}', 'ssl': True}}",
        f'{{"user": "dwh", "clientSecret": "{SECRET}"}}',
        f"fs.s3a.secret.key={SECRET}",
        f"spark.hadoop.fs.s3a.access.key: {SECRET}",
        f"AWS_SECRET_ACCESS_KEY={SECRET}",
        f"fs.azure.account.key.lake.dfs.core.windows.net = {SECRET}",
        f"connect(user='dwh', passwd='{SECRET}')",
        f"sasl.password = {SECRET}",
        f"Authorization: Bearer {SECRET}",
        f"GET /v1?access_token={SECRET}",
        f'password="with \\" a quote {SECRET}", user="dwh"',
    ],
)
def test_what_looks_like_a_secret_is_hidden(text: str) -> None:
    hidden = without_secrets(text)
    assert "***" in hidden
    assert "geheim" not in hidden
    assert without_secrets(hidden) == hidden


@pytest.mark.parametrize(
    "text",
    [
        "",
        "expected a password in connection reporting, found none: give it one",
        "http://db:8080/v1/tables?user=dwh",
        "table shop.tokens: expected column token, found none",
        "connection lake: catalog_password: expected text, found a number",
        "key (id)=(7) already exists",
        "airflow-barrier barrier commit shop 3 --reason ...",
    ],
)
def test_other_text_stays_as_it_is(text: str) -> None:
    assert without_secrets(text) == text


def test_a_long_text_takes_no_long_time() -> None:
    """It grows with the text: none of the patterns tries again from each character."""
    for text in ("x.", "password.", "password=a ", "://x:", "://"):
        assert without_secrets(text * 100_000)
