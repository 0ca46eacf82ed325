"""Text that every Python installation has: the source of its standard library, as bytes.

The two lists below are fixed. Names that this version of Python lacks are skipped. Some modules
became packages, or were split, between Python 3.10 and 3.14; both names are listed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from needle.errors import DataError

__all__ = ["SourceBytes", "python_source"]

HELD_OUT = """
    _weakrefset asyncio/streams concurrent/futures/_base email/_encoded_words filecmp
    http/cookiejar json/encoder multiprocessing/reduction platform rlcompleter tabnanny
    unittest/result xml/dom/minicompat
"""
"""Modules that are not used for training."""

TRAINING = """
    __future__ _ast_unparse _collections_abc _compression _markupbase _py_abc _py_warnings
    _pydatetime _pydecimal _pyio _sitebuiltins _strptime abc argparse ast asyncio/base_events
    asyncio/base_subprocess asyncio/coroutines asyncio/events asyncio/futures asyncio/locks
    asyncio/proactor_events asyncio/protocols asyncio/queues asyncio/runners
    asyncio/selector_events asyncio/sslproto asyncio/subprocess asyncio/taskgroups asyncio/tasks
    asyncio/timeouts asyncio/transports asyncio/unix_events asyncio/windows_events
    asyncio/windows_utils base64 bdb bisect bz2 cProfile calendar cmd code codecs codeop
    collections/__init__ colorsys compileall concurrent/futures/process
    concurrent/futures/thread configparser contextlib copy copyreg csv ctypes/__init__
    ctypes/util curses/__init__ curses/textpad dataclasses datetime dbm/__init__ dbm/dumb
    difflib dis doctest email/_header_value_parser email/_parseaddr email/_policybase
    email/base64mime email/charset email/contentmanager email/errors email/feedparser
    email/generator email/header email/headerregistry email/message email/mime/audio
    email/mime/image email/parser email/policy email/quoprimime email/utils enum fileinput
    fnmatch fractions ftplib functools genericpath getopt getpass gettext glob graphlib gzip
    hashlib heapq hmac html/__init__ html/parser http/__init__ http/client http/cookies
    http/server imaplib importlib/__init__ importlib/_bootstrap importlib/_bootstrap_external
    importlib/abc importlib/metadata/__init__ importlib/resources/_adapters
    importlib/resources/abc importlib/resources/readers importlib/resources/simple
    importlib/util inspect io ipaddress json/__init__ json/decoder json/tool linecache
    logging/__init__ logging/config logging/handlers lzma mailbox mimetypes modulefinder
    multiprocessing/connection multiprocessing/context multiprocessing/dummy/__init__
    multiprocessing/forkserver multiprocessing/heap multiprocessing/managers
    multiprocessing/pool multiprocessing/process multiprocessing/queues
    multiprocessing/resource_sharer multiprocessing/resource_tracker
    multiprocessing/shared_memory multiprocessing/sharedctypes multiprocessing/spawn
    multiprocessing/synchronize multiprocessing/util netrc ntpath numbers opcode operator
    optparse os pathlib pathlib/__init__ pathlib/_local pdb pickle pickletools pkgutil plistlib
    poplib posixpath pprint profile pstats pty py_compile pyclbr pydoc queue quopri random
    re/__init__ re/_casefix re/_compiler re/_constants re/_parser reprlib runpy sched selectors
    shelve shlex shutil site smtplib socket socketserver sqlite3/dbapi2 sqlite3/dump ssl stat
    statistics string string/__init__ subprocess symtable sysconfig sysconfig/__init__ tarfile
    tempfile textwrap threading timeit tokenize tomllib/_parser trace traceback tracemalloc
    turtle types typing unittest/__init__ unittest/async_case unittest/case unittest/loader
    unittest/main unittest/mock unittest/runner unittest/suite unittest/util urllib/parse
    urllib/request urllib/robotparser uuid venv/__init__ warnings wave weakref wsgiref/handlers
    wsgiref/headers wsgiref/simple_server wsgiref/util wsgiref/validate xml/dom/__init__
    xml/dom/domreg xml/dom/expatbuilder xml/dom/minidom xml/dom/pulldom xml/dom/xmlbuilder
    xml/etree/ElementInclude xml/etree/ElementPath xml/etree/ElementTree xml/sax/__init__
    xml/sax/_exceptions xml/sax/expatreader xml/sax/handler xml/sax/saxutils xml/sax/xmlreader
    xmlrpc/client xmlrpc/server zipapp zipfile zipfile/__init__ zoneinfo/_common
    zoneinfo/_tzpath zoneinfo/_zoneinfo
"""


@dataclass(frozen=True)
class SourceBytes:
    """The bytes of several modules, concatenated.

    Attributes:
        values: uint8.
        modules: names of the modules, as paths without ``.py``.
    """

    values: np.ndarray[Any, Any]
    modules: tuple[str, ...]


def python_source(folder: str | Path | None = None, train: bool = True) -> SourceBytes:
    """Return the source of the training modules, or of the held-out modules.

    Args:
        folder: folder of the modules; the standard library of the running Python for None.
        train: True for the training modules, False for the held-out modules.

    Raises:
        DataError: if the folder has none of the modules, or one cannot be read.

    >>> text = ndl.data.python_source(train=False)
    >>> text.values.dtype
    dtype('uint8')
    """
    import sysconfig

    names = (TRAINING if train else HELD_OUT).split()
    root = Path(folder if folder is not None else sysconfig.get_paths()["stdlib"])
    parts, modules = [], []
    for name in names:
        path = root / f"{name}.py"
        if not path.is_file():
            continue
        try:
            parts.append(path.read_bytes().replace(b"\r\n", b"\n"))
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error})") from None
        modules.append(name)
    values = np.frombuffer(b"".join(parts), np.uint8)
    if not values.size:
        raise DataError(
            f"{root}: contains none of the {len(names)} source files of the standard library "
            "(such as argparse.py)\n"
            "  try: --data FOLDER, where FOLDER is the directory Lib of Python's source code"
        )
    return SourceBytes(values, tuple(modules))
