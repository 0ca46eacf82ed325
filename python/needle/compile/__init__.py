"""``needle.compile``: a function of tensors, traced once and run as one program.

compiled.py   ``compile``: which program fits a call
trace.py      runs the function once, with values that wait
cells.py      places outside that a program reads and writes
build.py      from a trace to a listing
listing.py    the listing, and the protocol of programs
passes.py     the passes over listings, by the exact rules of rules.py
again.py      computes again what is large and cheap
program.py    the program in Python
call.py       a program with its places, ready to run
places.py     brings a program's arrays and stores its results
explain.py    a program as text
memory.py     what is alive at its peak
"""

from needle.compile.compiled import Compiled, compile
from needle.compile.explain import explain

__all__ = ["Compiled", "compile", "explain"]
