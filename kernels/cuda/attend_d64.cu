#include "kernels/cuda/attend_kernel.cuh"

namespace attend {

kernel_entry kernel_for_64(int nt, int mode)
{
    return kernel_for<64>(nt, mode);
}

} // namespace attend
