"""The page of the study: the report of its sweep, as `kvlab report` writes it."""

from pathlib import Path
from tempfile import TemporaryDirectory

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from kvlab.fast.lab.sweep.report import write_report
from kvlab.fast.lab.sweep.run import read_stored
from study.stored import RESULTS


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page, its pictures, and its figures as data."""
    with TemporaryDirectory() as folder:
        write_report(read_stored(RESULTS / "study"), Path(folder))
        for made in sorted(Path(folder).iterdir()):
            if made.suffix in (".md", ".svg", ".json"):
                content = made.read_text("utf-8")
                files.append(File.generated(config, f"study/{made.name}", content=content))
    return files
