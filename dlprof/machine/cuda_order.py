"""Which NVML card is which CUDA device: their orders differ. Pure.

CUDA numbers what ``CUDA_VISIBLE_DEVICES`` names, in that order, and by itself puts the fastest card
first; NVML goes by the bus. Sure are UUIDs, and numbers where ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` or
where all cards are alike (CUDA then keeps the order of the bus).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dlprof.records import GpuInfo

UNSURE = "CUDA may order unlike cards by speed: set CUDA_DEVICE_ORDER=PCI_BUS_ID to be sure"
HIDDEN = "CUDA_VISIBLE_DEVICES hides the card"
SPLIT = "CUDA_VISIBLE_DEVICES names a part of a card (MIG)"


def cuda_indices(
    cards: Sequence[GpuInfo], environ: Mapping[str, str]
) -> tuple[dict[str, int], dict[str, str]]:
    """CUDA's index of each card, by UUID, and the reason for each that has none.

    Args:
        cards: In NVML's order, which is the bus's.
        environ: Of the process that uses CUDA.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    is_by_bus = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    is_sure = is_by_bus or len({card.name for card in cards}) <= 1
    if visible is None:
        if is_sure:
            return {card.uuid: place for place, card in enumerate(cards)}, {}
        return {}, {card.uuid: UNSURE for card in cards}
    found: dict[str, int] = {}
    hidden = HIDDEN
    for place, entry in enumerate(visible.split(",")):
        card = _named(entry.strip(), cards)
        if entry.strip().startswith("MIG-"):
            hidden = SPLIT
            continue
        if card is None or card.uuid in found:
            break  # CUDA sees nothing of what stands behind an entry that it can't take
        if not is_sure and _is_number(entry):
            return {}, {card.uuid: UNSURE for card in cards}
        found[card.uuid] = place
    return found, {card.uuid: hidden for card in cards if card.uuid not in found}


def card_of(uuid: str, cards: Sequence[GpuInfo]) -> GpuInfo | None:
    """The card of a CUDA device, by the UUID that torch tells; ``None`` for none that is known.

    Args:
        uuid: As ``torch.cuda.get_device_properties`` has it: without ``GPU-``, or with it.
        cards: As NVML lists them.
    """
    wanted = uuid.lower().removeprefix("gpu-")
    same = (card for card in cards if card.uuid.lower().removeprefix("gpu-") == wanted)
    return next(same, None) if wanted else None


def _named(entry: str, cards: Sequence[GpuInfo]) -> GpuInfo | None:
    """The card that an entry of ``CUDA_VISIBLE_DEVICES`` names: by number or start of its UUID."""
    if _is_number(entry):
        return cards[int(entry)] if int(entry) < len(cards) else None
    matching = [card for card in cards if entry and card.uuid.lower().startswith(entry.lower())]
    return matching[0] if len(matching) == 1 else None


def _is_number(entry: str) -> bool:
    return entry.strip().isascii() and entry.strip().isdigit()
