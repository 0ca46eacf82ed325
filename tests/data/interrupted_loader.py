"""A program that is interrupted while its worker processes make batches."""

from __future__ import annotations

import itertools
import sys

from loader_sets import Faulty

from needle import data


def tell(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def endless(loader):
    """Begin a pass and tell who is at work, then go on for ever."""
    found = iter(loader)
    next(found)
    engine = loader._team.engines[0]
    tell(*(worker.process.pid for worker in engine.team))
    for _ in itertools.count():
        for _ in loader:
            pass


def main():
    loader = data.DataLoader(Faulty(), 8, num_workers=2, workers="process")
    if sys.argv[1] == "interrupted":
        try:
            endless(loader)
        except KeyboardInterrupt:
            loader.close()
            tell("interrupted")
    endless(loader)


if __name__ == "__main__":
    main()
