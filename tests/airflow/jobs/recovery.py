from counting import load_of, mirror_of

load = load_of("recovery")
mirror = mirror_of("recovery")
