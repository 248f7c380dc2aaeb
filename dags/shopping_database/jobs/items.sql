APPLY CHANGES INTO {target:shop.items} FROM {source:shop.public.items} KEYS (id)
