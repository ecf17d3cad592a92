"""Reading raw benchmark material: folders of JSON, JSON lines and CSV, or a Hugging Face data set."""

from .records import Record, SourceError, read_records, read_texts
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
