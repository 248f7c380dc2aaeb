APPLY CHANGES INTO {target:shop.orders} FROM {source:shop.public.orders} KEYS (id)
