"""Two runs compared: the difference of their rates, split into parts that add up. Pure."""

from dlprof.advise.compare.comparison import compare
from dlprof.advise.compare.parts import Comparison, Part, PartCode, SideInfo

__all__ = ["Comparison", "Part", "PartCode", "SideInfo", "compare"]
