#!/bin/sh
# a test
# 3 × (Qwen3 30B-A3B bf16 on 2×H100-SXM TP=2 EP=2), KV fp8, SGLang 0.5.23.
# Chat clients need a chat template: name the instruction-tuned checkpoint if this is a base model.
# The plan runs 3 of these, each on its own 2 GPUs, behind a load balancer.
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
