#include "kernels/cuda/attend_kernel.cuh"

namespace attend {

kernel_entry kernel_for_128(int nt, int mode)
{
    return kernel_for<128>(nt, mode);
}

} // namespace attend
