"""What the `SparkSubmitOperator` of a test runs."""

from counting import load_of

load = load_of("submitted")

if __name__ == "__main__":
    load.main()
