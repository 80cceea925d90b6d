"""How answers of operations are shown: findings, plans, rows of tables, paths of objects, progress while one waits."""
