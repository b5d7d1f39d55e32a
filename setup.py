"""Maps the top-level folders to the packages kvlab.reference and kvlab.fast."""

from setuptools import find_packages, setup

ROOTS = {"kvlab.reference": "reference", "kvlab.fast": "fast"}

setup(
    package_dir=ROOTS,
    packages=[
        name
        for root, folder in ROOTS.items()
        for name in (root, *(f"{root}.{sub}" for sub in find_packages(folder)))
    ],
)
