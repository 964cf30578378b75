"""`Kind[X]` is click's ParamType: it makes an X of the text that a user types. Before click 8.4, it had no such parameter."""

from typing import TYPE_CHECKING, Any

from click import ParamType

__all__ = ["Kind"]

if TYPE_CHECKING:
    Kind = ParamType
else:

    class Kind(ParamType):
        """Also with an older click, which an image or an environment of the user's may have for other programs."""

        def __class_getitem__(cls, _: Any) -> type:
            """Itself."""
            return cls
