"""`python -m rn50.train.kernels`: build the libraries now."""

from . import SOURCE, STAMP_SOURCE, STEP_SOURCE, build

if __name__ == "__main__":
    for source in (SOURCE, STAMP_SOURCE, STEP_SOURCE):
        print(build(source))
