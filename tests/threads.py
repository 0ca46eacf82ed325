"""Functions that run side by side."""

from __future__ import annotations

import threading


def in_threads(*functions) -> None:
    """Run each function in a thread; raise what one of them raised."""
    errors: list[BaseException] = []

    def guarded(function):
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(f,)) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
