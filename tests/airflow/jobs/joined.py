from counting import load_of, mirror_of

load = load_of("joined")
mirror = mirror_of("joined")
