"""Data maker `world`: laptop worlds by their settings, or reference worlds by their names."""

from coseek.lab.world.settings import WorldSettings
from coseek.lab.world.world import chosen_world as chosen, make_world as make

__all__ = ["SETTINGS", "chosen", "make"]

SETTINGS = WorldSettings
