"""What a user installs and reads: size, dependencies, and documents that are true."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import needle
from needle.testing.checks import check_op

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it along there

ROOT = Path(__file__).parents[2]
PACKAGE = Path(needle.__file__).parent
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md")]
SOURCES = {".py", ".cc", ".h", ".c", ".def", ".map", ".md", ".toml", ".txt", ".json"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MEGABYTE = 2**20


def blocks(path: Path, language: str) -> list[str]:
    """Return the code blocks of a document that name this language ("" for commands)."""
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(), re.M | re.S)


# ---- what is installed ---------------------------------------------------------------


def test_the_wheel_is_small():
    """At most 6 MB: the package's files, compressed as in a wheel."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in PACKAGE.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, path.relative_to(PACKAGE))
    assert len(packed.getvalue()) <= 6 * MEGABYTE


def names(requirements: list[str]) -> list[str]:
    return sorted(re.split(r"[<>=!;\[ ]", text)[0] for text in requirements)


def test_dependencies_are_these_and_no_more():
    extras = PROJECT["optional-dependencies"]
    assert names(PROJECT["dependencies"]) == ["ml_dtypes", "numpy", "safetensors"]
    assert names(extras["train"]) == ["matplotlib", "pillow", "rich"]
    assert names(extras["parquet"]) == ["pyarrow"]
    assert names(extras["test"]) == ["hypothesis", "pytest", "pytest-xdist"]


def test_the_package_imports_nothing_else():
    allowed = {*names(PROJECT["dependencies"]), *names(PROJECT["optional-dependencies"]["train"])}
    allowed |= {"needle", "PIL", *sys.stdlib_module_names}  # PIL: the package of pillow
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {(alias.name.split(".")[0], path.name) for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add((node.module.split(".")[0], path.name))
    found -= {("hypothesis", "strategies.py")}  # of needle.testing; for those who test
    found -= {("pyarrow", "columns.py")}  # the extra "parquet", imported where a file is read
    assert sorted(pair for pair in found if pair[0] not in allowed) == []


def test_advice_names_the_distribution():
    """``needle`` is another project on the package index."""
    extras = "|".join(PROJECT["optional-dependencies"])
    wrong = re.compile(rf"\bneedle\[({extras})\]|pip install needle\b(?!-dl)")
    found = [p.name for p in texts() if p != Path(__file__) and wrong.search(p.read_text())]
    assert PROJECT["name"] == "needle-dl" and found == []


def test_setup_py_names_the_command_to_use():
    done = subprocess.run(
        [sys.executable, "setup.py", "install"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "setup.py does not install Needle. Run instead: python -m pip install ."
    ]


def test_one_version():
    assert PROJECT["version"] == needle.__version__


def test_the_type_marker_is_there():
    assert (PACKAGE / "py.typed").exists()


# ---- what is read --------------------------------------------------------------------


def texts() -> list[Path]:
    folders = [ROOT / name for name in ("src", "python", "tests", "apps", "bench", ".ci")]
    inside = [path for folder in folders for path in folder.rglob("*")]
    found = [path for path in [*ROOT.iterdir(), *inside] if path.is_file()]
    return [p for p in found if p.suffix in SOURCES or p.parent.name == ".ci"]


def test_no_file_names_a_place_on_somebody_s_machine():
    assert {"README.md", "kernels.h", "cli.py", "run"} <= {path.name for path in texts()}
    place = re.compile(r"(?<![\w.~])/(?:home|root|work|opt|mnt|Users|scratch)/")
    assert place.search("see /home/me/data") and not place.search("https://a.org/work/x")
    wrong = [
        f"{path.relative_to(ROOT)}:{i}: {line.strip()}"
        for path in texts()
        for i, line in enumerate(path.read_text().splitlines(), 1)
        if place.search(line) and path != Path(__file__)
    ]
    assert wrong == []


PAGES = sorted((ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("document", [*DOCUMENTS, *PAGES], ids=lambda path: path.name)
def test_the_files_that_documents_name_exist(document):
    text = document.read_text()
    mentioned = re.findall(r"`([\w./]+(?:\.(?:py|cc|h|def|md|toml|json)|/))`", text)
    if document in DOCUMENTS:  # mkdocs checks the links of the others
        mentioned += re.findall(r"\]\(([\w./]+)\)", text)
    mentioned = [name for name in mentioned if "/" in name or name.endswith(".md")]
    places = (ROOT, PACKAGE)
    missing = [name for name in mentioned if not any((place / name).exists() for place in places)]
    assert missing == [] and (mentioned or document in PAGES)


AT_BUILD = {"NEEDLE_REQUIRE_NATIVE", "NEEDLE_SANITIZE", "NEEDLE_ISAS"}


def test_the_switches_in_the_documents_are_those_of_config():
    known = {f"NEEDLE_{name.upper()}" for name in needle.config.Config.__dataclass_fields__}
    pages = [*DOCUMENTS, *PAGES]
    mentioned = {x for path in pages for x in re.findall(r"NEEDLE_[A-Z_]+", path.read_text())}
    assert mentioned - known == AT_BUILD


def test_the_page_of_switches_has_every_one_with_its_default():
    page = (ROOT / "docs" / "switches.md").read_text()
    rows = dict(re.findall(r"^\| `NEEDLE_([A-Z_]+)` \| (.*) \|$", page, re.M))
    fields = needle.config.Config.__dataclass_fields__
    assert {name.lower() for name in rows} == set(fields)
    for name, field in fields.items():
        if field.default != "":
            assert f"`{field.default}` (default)" in rows[name.upper()], name


def test_the_architecture_is_short():
    assert len((ROOT / "ARCHITECTURE.md").read_text().split()) <= 2000


def test_the_example_of_the_readme_runs():
    (example,) = blocks(ROOT / "README.md", "python")
    assert 25 <= example.count("\n") <= 40
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", example], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    accuracy = re.search(r"accuracy ([\d.]+)%", done.stdout)
    assert accuracy and float(accuracy[1]) > 95, done.stdout
    assert done.stdout.endswith("12.0\n")


def test_the_readme_s_commands():
    install, test = blocks(ROOT / "README.md", "")
    assert install.startswith("python3 -m venv .venv && .venv/bin/pip install '.[train]'")
    assert test.strip().endswith("-m pytest -n auto")


@pytest.mark.filterwarnings("error")
def test_the_op_of_contributing_is_right(device):
    (source,) = blocks(ROOT / "CONTRIBUTING.md", "python")
    there: dict = {"__name__": "contributing"}
    exec(source, there)
    check_op(there["InverseRoot"], device)
    assert re.findall(r"^ *(\w+):  ", there["InverseRoot"].__doc__, re.M) == ["Shapes", "Dtypes"]
    there["InverseRoot"].expand = lambda self, x: x
    with pytest.raises(AssertionError):
        check_op(there["InverseRoot"], device)
