"""What a batch costs: nanoseconds a message, or microseconds a call, for encode, decode, validate and select.

    python benchmarks/batch_codec.py [--messages 2000] [--bytes 128] [--json]

Every line is the best of several repeats on one core: the cost of the code, not of the machine's other work.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import timeit
from collections.abc import Callable
from zlib import crc32

import numpy as np
from pydanube_core.batch import BatchView, Codec, encode_batch, read_producer_part
from pydanube_core.batch.select import Cutter, key_slots
from pydanube_core.batch.validate import check_body, validate_batch

LIMIT = 4_000_000


def best_us(call: Callable[[], object], seconds: float) -> float:
    """Microseconds of one call: the best of 5 repeats that share `seconds`."""
    timer = timeit.Timer(call)
    once = max(timer.timeit(3) / 3, 1e-7)
    number = max(1, int(seconds / 5 / once))
    return min(timer.repeat(5, number)) / number * 1e6


def cases(messages: int, size: int) -> dict[str, Callable[[], object]]:
    rng = random.Random(1)
    equal = [rng.randbytes(size) for _ in range(messages)]
    ragged = [rng.randbytes(rng.randint(size // 2, size * 3 // 2)) for _ in range(messages)]
    text = [
        (b'{"sensor": %d, "value": %d, "unit": "celsius"}' % (i % 50, i)).ljust(size)[:size]
        for i in range(messages)
    ]
    keys = [b"key-%d" % rng.randrange(1000) for _ in range(messages)]
    attributes = [{"source": "bench", "number": str(i)} for i in range(messages)]

    plain, uneven = encode_batch(equal), encode_batch(ragged)
    keyed, rich = encode_batch(equal, keys=keys), encode_batch(equal, keys=keys, attributes=attributes)
    lz4, zstd = encode_batch(text, codec=Codec.LZ4), encode_batch(text, codec=Codec.ZSTD)
    part, rich_part = read_producer_part(plain), read_producer_part(rich)
    quarter = np.sort(np.random.default_rng(1).choice(messages, max(1, messages // 4), replace=False))
    few = max(1, messages // 4)
    return {
        "checksum alone (crc32 of the plain batch)": lambda: crc32(plain),
        "encode, payload only": lambda: encode_batch(equal),
        "encode, with keys": lambda: encode_batch(equal, keys=keys),
        "encode, with keys and attributes": lambda: encode_batch(equal, keys=keys, attributes=attributes),
        "encode, lz4": lambda: encode_batch(text, codec=Codec.LZ4),
        "encode, zstd": lambda: encode_batch(text, codec=Codec.ZSTD),
        "decode payloads, checksum verified": lambda: BatchView(plain).payloads(),
        "decode payloads": lambda: BatchView(plain, part=part).payloads(),
        "decode keys": lambda: BatchView(rich, part=rich_part).keys(),
        "decode attributes": lambda: BatchView(rich, part=rich_part).attributes(),
        "validate, payload only, with checksum": lambda: validate_batch(plain, max_message_bytes=LIMIT),
        "validate, payload only, without checksum": lambda: check_body(plain, part, max_message_bytes=LIMIT),
        "validate, keys and attributes, without checksum": lambda: check_body(
            rich, rich_part, max_message_bytes=LIMIT
        ),
        "validate, lz4": lambda: validate_batch(lz4, max_message_bytes=LIMIT),
        "validate, zstd": lambda: validate_batch(zstd, max_message_bytes=LIMIT),
        "select a quarter, equal lengths": lambda: Cutter(plain).select(quarter),
        "select a quarter, unequal lengths": lambda: Cutter(uneven).select(quarter),
        "select a quarter, keys and attributes": lambda: Cutter(rich).select(quarter),
        "select a quarter, lz4": lambda: Cutter(lz4).select(quarter),
        "slice a quarter": lambda: Cutter(plain).slice(few, 2 * few),
        "slots of keys": lambda: key_slots(keyed),
        "sizes of messages": lambda: Cutter(plain).sizes(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=2000)
    parser.add_argument("--bytes", type=int, default=128, help="payload bytes a message")
    parser.add_argument("--seconds", type=float, default=0.5, help="spent on each line")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = {
        name: best_us(call, options.seconds) for name, call in cases(options.messages, options.bytes).items()
    }
    if options.json:
        facts = {
            "messages": options.messages,
            "payload_bytes": options.bytes,
            "python": platform.python_version(),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "call_us": {name: round(us, 2) for name, us in results.items()},
        }
        print(json.dumps(facts, indent=2))
        return
    print(f"{options.messages} messages of {options.bytes} bytes, Python {platform.python_version()}")
    print(f"{'':50}{'us a call':>12}{'ns a message':>14}")
    for name, us in results.items():
        print(f"{name:50}{us:12.1f}{us * 1000 / options.messages:14.1f}")


if __name__ == "__main__":
    main()
