"""PyTorch's BF16 decode attention on the same shapes: cuDNN and flash, several layers in one CUDA graph."""
import statistics

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

Q_HEADS, KV_HEADS, D, REPEATS = 32, 8, 128, 15


def measure(backend, context, sequences, layers):
    shape = (sequences, KV_HEADS, context, D)
    keys = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(layers)]
    values = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(layers)]
    query = torch.randn((sequences, Q_HEADS, 1, D), device="cuda", dtype=torch.bfloat16)

    def run():
        for k, v in zip(keys, values):
            torch.nn.functional.scaled_dot_product_attention(query, k, v, enable_gqa=True)

    with sdpa_kernel(backend):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
    times = []
    for i in range(REPEATS + 3):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        stop.record()
        torch.cuda.synchronize()
        if i >= 3:
            times.append(start.elapsed_time(stop) * 1e3 / layers)
    bytes_read = 2 * sequences * KV_HEADS * context * D * 2
    median = statistics.median(times)
    print(f"{backend.name:16} {context:8} x{sequences:<3} layers {layers:2} {median:8.2f} us/layer "
          f"({min(times):.2f}-{max(times):.2f}) {bytes_read / median * 1e-3:6.0f} GB/s", flush=True)


def main():
    print(torch.__version__, "cuDNN", torch.backends.cudnn.version(), torch.cuda.get_device_name())
    torch.manual_seed(1)
    for context, sequences, layers in ((8192, 1, 36), (32768, 1, 36), (102400, 1, 36), (131072, 1, 36),
                                       (1048576, 1, 4), (8192, 32, 8)):
        for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
            try:
                measure(backend, context, sequences, layers)
            except Exception as error:  # a backend that refuses a shape is a result too
                print(f"{backend.name:16} {context:8} x{sequences:<3} failed: {str(error).splitlines()[0][:120]}", flush=True)
            torch.cuda.empty_cache()


main()
