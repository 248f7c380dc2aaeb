from counting import load_of

load = load_of("outage")

if __name__ == "__main__":
    load.main()
