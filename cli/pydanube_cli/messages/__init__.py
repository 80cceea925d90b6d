"""`danube produce` and `danube consume`: lines, files and messages."""
