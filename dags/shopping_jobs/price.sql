-- What each user paid for each item so far, kept up to date from the changes of shop.shopping. Keys are compared by <=>,
-- since by = a NULL would get another row in each epoch that has one.
MERGE INTO {target:shop.user_item_price} t
USING (
    SELECT userId, itemId, sum(price * _weight) AS price, sum(_weight) AS purchases
    FROM {changes:shop.shopping}
    GROUP BY userId, itemId
) d
ON t.userId <=> d.userId AND t.itemId <=> d.itemId
WHEN MATCHED AND t.purchases + d.purchases = 0 THEN DELETE
WHEN MATCHED THEN UPDATE SET totalPrice = t.totalPrice + d.price, purchases = t.purchases + d.purchases
WHEN NOT MATCHED AND d.purchases > 0 THEN
    INSERT (userId, itemId, totalPrice, purchases) VALUES (d.userId, d.itemId, d.price, d.purchases)
