"""What public caches pass: ``python measure_whole_caches.py [NAME ...]`` writes the reports.

Each adapter is measured where its packages are installed, and the C++ example where there is a
compiler. Names such as ``kvpress`` measure these alone: kvpress and the newest transformers need
environments of their own.
"""

import json
import platform
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory

from kvlab.fast.lab import conformance
from kvlab.reference.conformance import Isolated, Program, Status, check, published

HERE = Path(__file__).parent
REPORTS = HERE / "reports"


def versions(*packages):
    """Name packages with their versions; those that are not installed are left out."""
    found = []
    for package in packages:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def measured(name, what, under_test):
    """Write the counts of every target of whole caches."""
    targets, first = {}, {}
    for target in sorted({case.target for case in published()}):
        if not target.endswith(".whole_cache") or not under_test.offers(target):
            continue
        report = check(target, under_test, minimise=False)
        passed, failed, untested = (
            report.count(status) for status in (Status.PASSED, Status.FAILED, Status.NOT_TESTED)
        )
        if passed or failed:
            targets[target] = [passed, failed, untested]
        first |= {each.case.name: each.reason for each in report.failures()}
    content = {"what": what, "targets": targets, "first_failures": first}
    (REPORTS / f"whole_cache_{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    print(name, targets)


def main():
    """Measure every adapter."""
    adapters = {
        "kvlab": (Path(conformance.__file__), f"kvlab's `compress`, {versions('torch')}"),
        "transformers": (
            HERE / "transformers_caches.py",
            f"`DynamicCache`, `QuantizedCache`: {versions('transformers', 'optimum-quanto')}",
        ),
        "kvpress": (HERE / "kvpress_caches.py", versions("kvpress", "transformers")),
    }
    wanted = sys.argv[1:] or [*adapters, "cpp"]
    for name, (file, what) in adapters.items():
        if name not in wanted:
            continue
        try:
            under_test = Isolated(file)
        except ValueError as error:
            print(f"{name} is not measured: {error}", file=sys.stderr)
            continue
        measured(name, what, under_test)
        under_test.close()
    if "cpp" in wanted and shutil.which("c++") is not None:
        with TemporaryDirectory() as folder:
            binary, source = Path(folder, "whole_cache"), HERE / "whole_cache.cpp"
            subprocess.run(["c++", "-std=c++17", "-O2", source, "-o", binary], check=True)
            what = f"`whole_cache.cpp`, {platform.machine()}"
            measured("cpp", what, Program(str(binary)))


if __name__ == "__main__":
    main()
