"""Evaluations of assistants that administer the cluster over MCP: README.md."""
