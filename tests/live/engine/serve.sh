#!/usr/bin/env bash
# A real vLLM 0.32 on CPU with its own KV offload, events and replay; in the foreground, its log on standard error.
#
#   serve.sh DIR FORM TIER_BYTES [argument of `vllm serve` ...]
#
# DIR has the venv and the model that setup.sh made; the tier manager's calls are written to DIR/trace.pid*.
# FORM: size      --kv-offloading-size: the page says how large the tier is
#       transfer  --kv-transfer-config alone: the page does not say it
#       shm       the tier lies in /dev/shm, as on CUDA, with BPC (4) blocks a chunk
#       tiering   a tier of files in DIR/fs lies behind it
# Environment: PORT (8123), EVENTS (5757), REPLAY (5857), BLOCKS (160 blocks of 32 tokens in the pool), MAX_LEN (2048),
# MODEL (DIR/model).
dir=$(cd "$1" && pwd)
form=$2
bytes=$3
shift 3
here=$(cd "$(dirname "$0")" && pwd)

export KV_TRACE_FILE=$dir/trace PYTHONPATH=$here PATH=$dir/venv/bin:$PATH
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
# It serves /reset_prefix_cache.
export VLLM_SERVER_DEV_MODE=1
export VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES=""

# connector SPEC MORE: the connector with that spec of host_copy.py.
connector() {
    printf '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"spec_name":"%s","spec_module_path":"host_copy"%s}}' "$1" "$2"
}
case $form in
size)
    offload=(--kv-offloading-size "$(python3 -c "print($bytes/2**30)")" --kv-offloading-backend native
        --kv-transfer-config "$(connector HostCopySpec "")")
    ;;
transfer) offload=(--kv-transfer-config "$(connector HostCopySpec ",\"cpu_bytes_to_use\":$bytes")") ;;
shm) offload=(--kv-transfer-config "$(connector HostShmSpec ",\"blocks_per_chunk\":${BPC:-4},\"cpu_bytes_to_use\":$bytes")") ;;
tiering)
    mkdir -p "$dir/fs"
    behind="[{\"type\":\"fs\",\"root_dir\":\"$dir/fs\",\"enable_kv_events\":true}]"
    offload=(--kv-transfer-config "$(connector HostShmTieringSpec ",\"cpu_bytes_to_use\":$bytes,\"secondary_tiers\":$behind")")
    ;;
*)
    echo "serve.sh: form $form is none of size, transfer, shm, tiering" >&2
    exit 2
    ;;
esac
events="{\"enable_kv_cache_events\": true, \"publisher\": \"zmq\", \"endpoint\": \"tcp://*:${EVENTS:-5757}\", \"replay_endpoint\": \"tcp://*:${REPLAY:-5857}\"}"
exec "$dir/venv/bin/vllm" serve "${MODEL:-$dir/model}" --served-model-name tiny-llama --host 127.0.0.1 --port "${PORT:-8123}" \
    --max-model-len "${MAX_LEN:-2048}" --enforce-eager --dtype bfloat16 --block-size 32 \
    --num-gpu-blocks-override "${BLOCKS:-160}" --kv-events-config "$events" "${offload[@]}" "$@" >&2
