"""`rezone demo`: the main job on one machine, with its proof."""

from rezone.cli.demo.command import demo

__all__ = ["demo"]
