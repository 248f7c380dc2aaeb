-- The tables as they were made long ago, each statement on one line.
CREATE NAMESPACE IF NOT EXISTS lake.sales;
CREATE TABLE IF NOT EXISTS lake.sales.orders (orderId BIGINT, customer STRING, total DECIMAL(12, 2), day DATE) USING iceberg PARTITIONED BY (day);
CREATE TABLE IF NOT EXISTS lake.sales.revenue (customer STRING, total DECIMAL(18, 2), orders BIGINT) USING iceberg;
