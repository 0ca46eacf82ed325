"""Needle is installed by pip, which reads pyproject.toml; this only answers those who come here."""

import sys

sys.exit("setup.py does not install Needle. Run instead: python -m pip install .")
