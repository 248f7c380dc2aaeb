-- What each customer has spent, by the prices of the items: computed anew for those of whom an order or an item changed.
MERGE INTO {target:shop.customers} t
USING (
    SELECT c.customer, count(DISTINCT o.id) AS orders, coalesce(sum(i.quantity * i.price), 0) AS spent
    FROM (
        SELECT customer FROM {changes:shop.orders}
        UNION
        SELECT o.customer FROM {changes:shop.items} i JOIN {read:shop.orders} o ON o.id = i.order_id
    ) c
    LEFT JOIN {read:shop.orders} o ON o.customer = c.customer
    LEFT JOIN {read:shop.items} i ON i.order_id = o.id
    GROUP BY c.customer
) s
ON t.customer = s.customer
WHEN MATCHED AND s.orders = 0 THEN DELETE
WHEN MATCHED THEN UPDATE SET orders = s.orders, spent = s.spent
WHEN NOT MATCHED AND s.orders > 0 THEN INSERT (customer, orders, spent) VALUES (s.customer, s.orders, s.spent)
