"""WHICH coordinates: flat layouts, level maps, and the rankings that make them."""

from fedgmr.submodels.layout import Layout, TensorPlace
from fedgmr.submodels.levels import Ladder, LevelMap, check_ladder

__all__ = ["Ladder", "Layout", "LevelMap", "TensorPlace", "check_ladder"]
