"""Reading raw material: JSON, CSV, parquet and Excel files, folders of them, or a Hugging Face data set."""

from .errors import SourceError
from .records import Record, read_records, read_texts
from .tables import FolderSource, HubSource, Source, Table, open_source

__all__ = [
    "FolderSource",
    "HubSource",
    "Record",
    "Source",
    "SourceError",
    "Table",
    "open_source",
    "read_records",
    "read_texts",
]
