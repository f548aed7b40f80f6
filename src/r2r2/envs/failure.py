"""When an environment fails: which one, whose, and when."""

import traceback


class EnvFailure(Exception):
    """An environment raised, or its worker process died.

    Its text names the task, the member and the step, and ends with the environment's
    own traceback where there is one.
    """


class Raised(Exception):
    """An environment raised while it was reset or stepped; its cause is the error."""

    def __init__(self, slot: int):
        super().__init__(slot)
        self.slot = slot

    @property
    def story(self) -> str:
        """The environment's own traceback, as text."""
        return "".join(traceback.format_exception(self.__cause__)).strip()
