#!/bin/sh
# a test
# 7 × (Qwen3 30B-A3B bf16 on 2×H100-SXM TP=2), KV bf16, vLLM 0.32.0.
# 7 replicas on 2 machines, 4 on one at the most: none is spare. With one down, 4 of 7 are lost and targets may be missed.
# Chat clients need a chat template: name the instruction-tuned checkpoint if this is a base model.
# Run this on each of the 2 machines.
# It starts 4 replicas, each on 2 GPUs of its own, behind ports 8000 to 8003.
# Put a load balancer in front of all of them.
for i in 0 1 2 3; do
  CUDA_VISIBLE_DEVICES="$(seq -s, $((i * 2)) $((i * 2 + 1)))" vllm serve Qwen/Qwen3-30B-A3B \
    --tensor-parallel-size 2 \
    --dtype auto \
    --kv-cache-dtype auto \
    --max-num-seqs 1024 \
    --max-num-batched-tokens 8192 \
    --max-model-len 4096 \
    --gpu-memory-utilization 0.92 \
    --enable-prefix-caching \
    --host 0.0.0.0 \
    --port $((8000 + i)) &
done
wait
