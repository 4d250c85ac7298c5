"""Two runs compared: the difference of their rates, split into parts that add up. Pure."""

from dlprof.advise.compare.comparison import Comparison, Part, SideInfo, compare
from dlprof.advise.compare.sides import PartCode

__all__ = ["Comparison", "Part", "PartCode", "SideInfo", "compare"]
