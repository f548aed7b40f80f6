"""Silence while a task is built, and at no other time."""

import contextlib
import importlib
import warnings
from collections.abc import Callable, Generator
from typing import Protocol, cast

Handler = Callable[[str], None]


class MuJoCo(Protocol):
    """The part of the untyped module `mujoco` that is used here."""

    def get_mju_user_warning(self) -> Handler | None:
        """Who hears MuJoCo's warnings; None for a log file and stderr."""
        ...

    def set_mju_user_warning(self, handler: Handler | None) -> None:
        """Chooses who hears MuJoCo's warnings."""
        ...


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """Drops what libraries say about the tasks they ship, which no user can mend.

    MuJoCo's compiler, besides warning, leaves a `MUJOCO_LOG.TXT` in the working
    folder. Its warnings about a simulation come later, outside, and are heard.
    """
    mujoco = cast(MuJoCo, importlib.import_module("mujoco"))
    handler = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda _: None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        mujoco.set_mju_user_warning(handler)
