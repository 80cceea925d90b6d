"""Telemetry that brokers record about themselves: the tables, and which files count. Pure."""

from pydanube_core.telemetry.files import TelemetryFile, live_files, telemetry_folder
from pydanube_core.telemetry.tables import TABLES, ColumnType, Table, TableColumn, table_named

__all__ = [
    "TABLES",
    "ColumnType",
    "Table",
    "TableColumn",
    "TelemetryFile",
    "live_files",
    "table_named",
    "telemetry_folder",
]
