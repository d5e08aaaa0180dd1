#!/bin/sh
# a test
# 1 × (Llama 3.3 70B fp8 on 2×H100-SXM TP=2), KV bf16, vLLM 0.32.0.
# 1 replica on 1 machine: no redundancy. Nothing is served while it is down.
# Weights below the checkpoint's bf16: check quality on your own task.
# Chat clients need a chat template: name the instruction-tuned checkpoint if this is a base model.
vllm serve RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic \
  --tensor-parallel-size 2 \
  --dtype auto \
  --kv-cache-dtype auto \
  --max-num-seqs 1024 \
  --max-num-batched-tokens 8192 \
  --max-model-len 4096 \
  --gpu-memory-utilization 0.92 \
  --enable-prefix-caching \
  --host 0.0.0.0 \
  --port 8000
