"""`python -m rn50.train.kernels`: build the library now."""

from . import build

if __name__ == "__main__":
    print(build())
