-- What was paid for each item so far, kept up to date by what came since the barrier before. SQL.
MERGE INTO {target:shop.price} t
USING (SELECT itemId, sum(price) AS price FROM {source:purchases} GROUP BY itemId) s
ON t.itemId <=> s.itemId  -- by = a NULL would never find its row again
WHEN MATCHED THEN UPDATE SET price = t.price + s.price
WHEN NOT MATCHED THEN INSERT *
