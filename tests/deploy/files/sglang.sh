#!/bin/sh
# a test
# 3 × (Qwen3 30B-A3B bf16 on 2×H100-SXM TP=2 EP=2), KV fp8, SGLang 0.5.23.
# 3 replicas on 3 machines: none is spare. With one down, 1 of 3 are lost and targets may be missed.
# Chat clients need a chat template: name the instruction-tuned checkpoint if this is a base model.
# Run this on each of the 3 machines.
# Put a load balancer in front of all of them.
python -m sglang.launch_server \
  --model-path Qwen/Qwen3-30B-A3B \
  --tp-size 2 \
  --ep-size 2 \
  --dtype auto \
  --kv-cache-dtype fp8_e4m3 \
  --max-running-requests 2048 \
  --chunked-prefill-size 8192 \
  --context-length 4096 \
  --enable-metrics \
  --host 0.0.0.0 \
  --port 8000
