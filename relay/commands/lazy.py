"""Groups whose commands live in modules of their own, each imported only when it is called."""

from collections.abc import Mapping
from importlib import import_module

import click


class LazyGroup(click.Group):
    """`modules` maps a command's name to the module that has it as `command`."""

    def __init__(self, *args: object, modules: Mapping[str, str], **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        module = self._modules.get(cmd_name)
        if module is None:
            return None
        command = import_module(module).command
        if not isinstance(command, click.Command):
            raise TypeError(f"{module}.command is not a click command")
        return command
