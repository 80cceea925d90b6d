"""The admin core: every operation, declared once, carried out in one place, reached by every face alike.

`registry` declares the operations, `core` carries them out beside the broker, and faces call them through
`remote`. `jsonrpc` and `http` are the face on port 8765.
"""
