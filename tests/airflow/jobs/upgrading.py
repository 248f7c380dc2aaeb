from counting import load_of

load = load_of("upgrading")
