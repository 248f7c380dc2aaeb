"""Where the tills' and the catalogue's files land: a folder a day. The environment says where."""

import os

from airflow_barrier.sources.files import Files

FOLDER = os.environ.get("SHOPPING_LANDING", "/data/landing")

SHOPPING = Files(
    f"{FOLDER}/shopping",
    schema="household_id BIGINT, basket_id BIGINT, product_id BIGINT, quantity BIGINT, sales_value DECIMAL(12, 2), "
    "transaction_timestamp TIMESTAMP, sent_at TIMESTAMP, void BOOLEAN",
    attribute_by="path",
    path_date="date=%Y-%m-%d",
)
PRODUCTS = Files(
    f"{FOLDER}/products",
    schema="product_id BIGINT, department STRING, product_category STRING, brand STRING",
    attribute_by="path",
    path_date="date=%Y-%m-%d",
)
