"""Build hook: a wheel ships the stored rows of the preset cpu, for `report` and `reproduce` outside a checkout."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZIP_LZMA, ZipFile, ZipInfo

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class StoredRows(BuildHookInterface):
    """Put ``results/*/cpu.jsonl`` into the package as one archive; nothing is written to the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the archive; an editable install has none and reads the rows of its checkout."""
        self.folder = TemporaryDirectory()
        if version == "standard":
            archive = Path(self.folder.name, "results.zip")
            with ZipFile(archive, "w") as rows:  # with fixed dates: the same rows make the same archive
                for path in sorted(Path(self.root, "results").glob("*/cpu.jsonl")):
                    rows.writestr(ZipInfo(f"{path.parent.name}/{path.name}"), path.read_bytes(), ZIP_LZMA)
            build_data["force_include"][str(archive)] = "time2decide/results.zip"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what `initialize` wrote."""
        self.folder.cleanup()
