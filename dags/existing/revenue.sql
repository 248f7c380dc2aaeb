-- What each customer has spent so far, from all orders.
INSERT OVERWRITE lake.sales.revenue
SELECT customer, sum(total) AS total, count(*) AS orders
FROM lake.sales.orders
GROUP BY customer
