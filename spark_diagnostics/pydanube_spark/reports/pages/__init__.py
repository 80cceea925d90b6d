"""Reports as files: HTML, a picture, tables, charts."""
