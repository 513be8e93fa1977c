"""Copies of bytes within functions that numba compiles (extra `fast`)."""

from __future__ import annotations

from typing import Any

from numba.core import cgutils, types
from numba.extending import intrinsic


def _copy_code(typing: Any, target: Any, to: Any, source: Any, at: Any, count: Any) -> Any:
    """Returns the type and the code of `copy_bytes`."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        target = context.make_array(kinds[0])(context, builder, arguments[0]).data
        source = context.make_array(kinds[2])(context, builder, arguments[2]).data
        places = builder.gep(target, [arguments[1]]), builder.gep(source, [arguments[3]])
        cgutils.raw_memcpy(builder, *places, arguments[4], 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), emit


copy_bytes: Any = intrinsic(_copy_code)
"""Copies `count` bytes, which must not be negative, of an array to a place in another, without checks of bounds."""
