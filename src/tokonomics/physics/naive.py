"""The decode formula people start from, kept to show what it leaves out.

    tokens per second = batch ÷ (weight bytes ÷ bandwidth × overhead factor)

It has no KV reads and no compute limit, so it grows with the batch for ever. ``steptime`` is the model to use.
"""


def naive_decode_tokens_per_s(
    weight_bytes: float, bandwidth_bytes_per_s: float, batch: int, overhead_factor: float = 1.2
) -> float:
    """Decode throughput as a weight read shared by the batch."""
    return batch / (weight_bytes / bandwidth_bytes_per_s * overhead_factor)
