"""Write down what fails of the array API standard's test suite, from the suite's own output.

    python docs/array_api_report.py OUTPUT

OUTPUT is what ``pytest -rfs`` printed; docs/array_api.md says how to run the suite. This rewrites
docs/array_api_failing.txt and the end of docs/array_api.md, and stops at a case that fails for no
reason known here.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
MARK = "<!-- written by docs/array_api_report.py -->"
REASONS = {
    "it needs complex numbers, and there are no complex dtypes": r"imag\(x_i\)|vecdot_conj",
    "it needs the extension fft, whose results are complex": r"\[fft-",
    "arrays have at most 16 dimensions, as `capabilities()` says": r"test_reshape",
}  # fmt: skip
SKIPS = {
    "the suite skips it: flaky": r"flaky",
    "there is no extension fft": r"fft not found",
    "there are no complex dtypes": r"no complex data types",
    "it is about a later version of the standard": r"requires ARRAY_API_TESTS_VERSION",
}


def reason(text: str, known: dict[str, str]) -> str:
    """Return why a case fails or is skipped."""
    for sentence, pattern in known.items():
        if re.search(pattern, text):
            return sentence
    raise SystemExit(f"no reason is known for: {text}")


def main(output: str) -> None:
    """Rewrite both files."""
    failed = re.findall(r"^FAILED (array_api_tests/\S+?::\w+(?:\[.*?\](?= - |$))?)", output, re.M)
    counts = {name: int(n) for n, name in re.findall(r"(\d+) (failed|passed|skipped)", output)}
    if len(failed) != counts.get("failed", 0):
        raise SystemExit(f"{len(failed)} lines FAILED, {counts} counted: use COLUMNS=1000")
    groups: dict[str, list[str]] = {}
    for case in failed:
        groups.setdefault(reason(case, REASONS), []).append(case)
    skipped: Counter[str] = Counter()
    for count, text in re.findall(r"^SKIPPED \[(\d+)\] (.*)$", output, re.M):
        skipped[reason(text, SKIPS)] += int(count)
    total = sum(counts.values())
    page = [MARK, "", f"Of {total} cases {counts['passed']} pass.", ""]
    page += ["| cases | what | why |", "|---|---|---|"]
    page += [f"| {len(cases)} | fail | {why} |" for why, cases in groups.items()]
    page += [f"| {n} | are skipped | {why} |" for why, n in skipped.items()]
    page += [
        "",
        "The cases that fail are in [array_api_failing.txt](array_api_failing.txt), by reason.",
    ]
    listed = ["# Cases of the array API standard's test suite that fail: see array_api.md."]
    for why, cases in groups.items():
        listed += ["", f"# {why}", *cases]
    document = HERE / "array_api.md"
    kept = document.read_text().partition(MARK)[0]
    document.write_text(kept + "\n".join(page) + "\n")
    (HERE / "array_api_failing.txt").write_text("\n".join(listed) + "\n")
    sys.stdout.write(f"{counts['passed']} of {total}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).read_text())
