"""Whoever asks `help()` of a public name of the SDK gets an answer."""

import inspect

import pydanube
import pydanube.sync
import pydanube.testing


def test_every_public_class_function_and_member_has_a_docstring() -> None:
    missing = []
    for module in (pydanube, pydanube.sync, pydanube.testing):
        for name in module.__all__:
            thing = getattr(module, name)
            if not (inspect.isclass(thing) or inspect.isfunction(thing)):
                continue
            if not inspect.getdoc(thing):
                missing.append(f"{module.__name__}.{name}")
            if not inspect.isclass(thing):
                continue
            for member, value in inspect.getmembers(thing):
                callable_or_property = isinstance(value, property) or inspect.isfunction(value)
                if member.startswith("_") or not callable_or_property:
                    continue
                if not inspect.getdoc(value):
                    missing.append(f"{module.__name__}.{name}.{member}")
    assert missing == []
